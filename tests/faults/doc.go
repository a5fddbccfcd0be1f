// Package faults proves that nothing is granted twice and no permit is lost if requests and answers get lost, come late or twice,
// if Redis hangs or refuses, and if a hook of the Redis client panics; what callers with a policy for outages are answered then;
// and that an observer learns of it.
//
// A proxy between a Client and its server cuts, drops, delays and doubles requests and answers; each case checks that the permits in use
// are those that callers hold. Every call is a row of limitertest.Verbs, which meets each single fault of TestVerb_HappensOnce, with members as
// two releases of Redisson write them; verbs has more of some, and of calls of several limiters, which meet all faults and all members. The
// tests of a hung server bound every answer by the call timeout.
package faults
