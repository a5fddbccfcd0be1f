// Package model says in plain Go what calls do to a limiter.
//
// Grants are the permits in use, with the rules that hold for all callers: which permits have
// run out, how many are free and when more will be, whose permits a release takes. [State] is
// all that Redis holds of a limiter, to the byte; a [Module] is what this module does to it, a
// [Release] what a release of Redisson does, each of its defects included. Package linear
// reckons with Grants alone, for many calls at once.
package model
