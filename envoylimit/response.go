package envoylimit

import (
	"math"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type descriptorStatus = ratelimitv3.RateLimitResponse_DescriptorStatus

const (
	ok   = ratelimitv3.RateLimitResponse_OK
	over = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// response returns the answer to Envoy.
func (c *call) response() *ratelimitv3.RateLimitResponse {
	r := &ratelimitv3.RateLimitResponse{OverallCode: c.overall()}
	metadata := map[string]any{}
	for _, of := range c.asked {
		s := of.status()
		if s.GetCode() == ok && of.question != nil {
			mergeMetadata(metadata, of.rule.metadata)
		}
		r.Statuses = append(r.Statuses, s)
	}
	all := map[string]any{}
	if len(metadata) > 0 {
		all["metadata"] = metadata
	}
	if id := c.id(); id != "" && c.passes {
		all[reservationKey] = id
	}
	if len(all) > 0 {
		r.DynamicMetadata, _ = structpb.NewStruct(all) // as was checked when it was read
	}
	if c.service.headers {
		r.ResponseHeadersToAdd = c.headers(r)
	}
	return r
}

func (c *call) overall() ratelimitv3.RateLimitResponse_Code {
	if c.passes || c.service.shadow {
		return ok
	}
	return over
}

// undecided returns the answer while Redis does not decide, if the domain is closed or all requests pass.
func (c *call) undecided() *ratelimitv3.RateLimitResponse {
	c.passes = false
	r := &ratelimitv3.RateLimitResponse{OverallCode: c.overall()}
	for _, of := range c.asked {
		s := &descriptorStatus{Code: ok}
		if of.question != nil && !of.question.shadow && c.domain.closed {
			s.Code, s.DurationUntilReset = over, durationpb.New(time.Second)
		}
		r.Statuses = append(r.Statuses, s)
	}
	return r
}

// status returns the status of a descriptor.
func (a *asked) status() *descriptorStatus {
	switch {
	case a.rule != nil && a.rule.unlimited:
		return &descriptorStatus{Code: ok, LimitRemaining: math.MaxUint32}
	case a.question == nil || a.question.open || a.question.err != nil || a.question.deed >= giveBack:
		return &descriptorStatus{Code: ok}
	}
	q := a.question
	d := q.decision
	s := &descriptorStatus{Code: ok, CurrentLimit: q.current(), LimitRemaining: uint32(min(d.Remaining, math.MaxUint32))}
	wait := d.ResetAfter
	if q.over {
		s.LimitRemaining = 0
		if !q.shadow {
			s.Code = over
		}
		if d.RetryAfter > 0 {
			wait = d.RetryAfter
		}
	}
	s.DurationUntilReset = durationpb.New(wholeSeconds(wait))
	return s
}

// wholeSeconds rounds up: Envoy tells clients whole seconds, and leaves out the rest.
func wholeSeconds(d time.Duration) time.Duration {
	if d > math.MaxInt64-time.Second {
		return d.Truncate(time.Second)
	}
	return (d + time.Second - 1).Truncate(time.Second)
}

// current returns the limit as Envoy shows it.
func (q *question) current() *ratelimitv3.RateLimitResponse_RateLimit {
	l := &ratelimitv3.RateLimitResponse_RateLimit{
		Name: q.name, Unit: q.unit, RequestsPerUnit: uint32(q.limit),
	}
	if q.algorithm != tokenBucket && q.decision.Limit > 0 { // it may have been set by hand
		l.RequestsPerUnit = uint32(min(q.decision.Limit, math.MaxUint32))
	}
	if q.multiple > 1 {
		l.UnitMultiplier = wrapperspb.UInt32(uint32(min(q.multiple, math.MaxUint32)))
	}
	return l
}

// headers returns those of the last limit that refused, or else of the one that has the least left.
func (c *call) headers(r *ratelimitv3.RateLimitResponse) []*corev3.HeaderValue {
	var of *descriptorStatus
	for i, s := range r.GetStatuses() {
		switch {
		case s.GetCurrentLimit() == nil:
		case of == nil, s.GetLimitRemaining() < of.GetLimitRemaining(), s.GetCode() == over && !c.asked[i].rule.quota:
			of = s
		}
	}
	if of == nil {
		return nil
	}
	header := func(name string, n uint64) *corev3.HeaderValue {
		return &corev3.HeaderValue{Key: name, Value: strconv.FormatUint(n, 10)}
	}
	reset := uint64(of.GetDurationUntilReset().GetSeconds())
	all := []*corev3.HeaderValue{
		header("RateLimit-Limit", uint64(of.GetCurrentLimit().GetRequestsPerUnit())),
		header("RateLimit-Remaining", uint64(of.GetLimitRemaining())),
		header("RateLimit-Reset", reset),
	}
	if r.GetOverallCode() == over {
		longest := uint64(1)
		for _, s := range r.GetStatuses() {
			if s.GetCode() == over {
				longest = max(longest, uint64(s.GetDurationUntilReset().GetSeconds()))
			}
		}
		all = append(all, header("Retry-After", longest))
	}
	return all
}
