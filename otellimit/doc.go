// Package otellimit reports what limiters do to OpenTelemetry, as metrics and, with
// [WithTracerProvider], as spans.
//
//	client := rratelimiter.New(rdb, rratelimiter.WithObserver(otellimit.New()))
//	logins := slidinglog.New(client, config, rratelimiter.WithName("logins"))
//
// Give each Client an observer of its own, so that their counts of waiting callers add up.
//
// # Metrics
//
// Names and units follow OpenTelemetry's semantic conventions. Below each is the name that its
// Prometheus exporter gives.
//
//	ratelimiter.decisions             counter, {decision}: calls that asked for permits
//	  ratelimiter_decisions_total     name, outcome, source, error.type, shadow
//	ratelimiter.permits               counter, {permit}: permits that they asked for
//	  ratelimiter_permits_total       name, outcome, source, error.type, shadow
//	ratelimiter.decision.duration     histogram, s: from the call to its answer, waiting included
//	  ratelimiter_decision_duration_seconds
//	                                  name, outcome
//	ratelimiter.utilization           histogram, 1: the share of the limit that is used after a decision with figures
//	  ratelimiter_utilization         name
//	ratelimiter.waiting_callers       updowncounter, {caller}: who wait for permits now
//	  ratelimiter_waiting_callers     name
//	ratelimiter.round_trip.duration   histogram, s: round trips to Redis
//	  ratelimiter_round_trip_duration_seconds
//	                                  error.type
//	ratelimiter.round_trip.requests   counter, {request}: callers' requests in them
//	  ratelimiter_round_trip_requests_total
//	ratelimiter.round_trip.calls      counter, {call}: script calls in them
//	  ratelimiter_round_trip_calls_total
//	ratelimiter.round_trip.repeats    counter, {call}: of these, calls sent again
//	  ratelimiter_round_trip_repeats_total
//	ratelimiter.lease.count           updowncounter, {lease}: leases now
//	  ratelimiter_lease_count         name
//	ratelimiter.lease.permits         counter, {permit}: permits that leases took ahead
//	  ratelimiter_lease_permits_total name
//	ratelimiter.lease.unused          counter, {permit}: of these, permits given back unused
//	  ratelimiter_lease_unused_total  name
//	ratelimiter.settlements           counter, {settlement}: reservations that were settled, or could not be
//	  ratelimiter_settlements_total   name, error.type
//	ratelimiter.settlement.reserved   counter, {permit}: what those that were settled had reserved, in Redis or not
//	  ratelimiter_settlement_reserved_total
//	                                  name
//	ratelimiter.settlement.used       counter, {permit}: what they used in fact
//	  ratelimiter_settlement_used_total
//	                                  name
//	ratelimiter.open_breakers         updowncounter, {breaker}: servers that are asked no more now
//	  ratelimiter_open_breakers
//	ratelimiter.events                counter, {event}: what is rare; there from the beginning
//	  ratelimiter_events_total        event
//
// # Attributes
//
//	ratelimiter.name     the limiter, or the prefix of its keys
//	ratelimiter.outcome  granted, refused, too_costly or failed
//	ratelimiter.source   who decided: redis, memory, open or local; not there if none did
//	ratelimiter.shadow   true if the limiter only watches; otherwise not there
//	ratelimiter.event    the kind of a limit.Event with _ for each space: server_silent
//	error.type           the limit.ErrorKind; not there unless the call or the settlement failed
//
// None of them holds a key: limit.Decided.Key is in no attribute. A program that makes a limiter for each user has as many names as
// users: the first 200 are counted each by itself ([WithMaxNames]), the others together as
// _OTHER. The other attributes have few values. A name then has some ten counters, and its
// durations one histogram for each outcome.
//
// # Spans
//
// With [WithTracerProvider] each decision is a span, named after the method, such as
// ratelimiter.TryAcquire, and a child of the span in the call's context. Its attributes are
// those of the decision, with the limiter's own name, ratelimiter.call and ratelimiter.permits.
// The span of a call that failed has the status Error.
package otellimit
