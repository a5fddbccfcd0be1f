package grpclimit

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// The texts that callers get; the error handler receives more.
var (
	misconfigured = status.New(codes.Internal, "rate limiter is not configured properly")
	unavailable   = status.New(codes.Unavailable, "rate limiter is unavailable")
	badCost       = status.New(codes.InvalidArgument, "the cost of the call is unknown")
)

// Parts of the google.rpc.ErrorInfo of a refusal.
const (
	// ErrorDomain is the domain of all refusals.
	ErrorDomain = "github.com/rratelimiter/rratelimiter"
	// ReasonExceeded: the limit is used up for now.
	ReasonExceeded = "RATE_LIMIT_EXCEEDED"
	// ReasonTooCostly: the call costs more than can ever be granted at once.
	ReasonTooCostly = "COST_EXCEEDS_LIMIT"
)

// The trailing metadata that a server sends with a call if its limiter decided. With a
// client's interceptor they are in the ErrorInfo of refusals.
const (
	// TrailerLimit is the most permits that can be granted at once.
	TrailerLimit = "ratelimit-limit"
	// TrailerRemaining is how many permits are left.
	TrailerRemaining = "ratelimit-remaining"
)

// figures returns the trailers of a decision, nil if it has none.
func figures(d limit.Decision) metadata.MD {
	if d.Limit <= 0 {
		return nil
	}
	return metadata.Pairs(
		TrailerLimit, strconv.FormatInt(d.Limit, 10),
		TrailerRemaining, strconv.FormatInt(max(0, d.Remaining), 10))
}

// A refusal says how a call ends that may not go on.
type refusal struct {
	status   *status.Status
	pushback string // the trailer grpc-retry-pushback-ms; none if empty
}

func (r *refusal) err() error { return r.status.Err() }

// trailer returns the trailer that a server sends with the refusal.
func (r *refusal) trailer() metadata.MD {
	if r.pushback == "" {
		return nil
	}
	return metadata.Pairs("grpc-retry-pushback-ms", r.pushback)
}

// never tells clients not to retry.
const never = "-1"

// exhausted is the answer to a call that the limiter refused.
func (g *gate) exhausted(subject string, d limit.Decision) *refusal {
	failure := quota(subject, d.Limit, fmt.Sprintf("the limit is %d", d.Limit))
	info := g.info(ReasonExceeded, d)
	info.Metadata["remaining"] = strconv.FormatInt(max(0, d.Remaining), 10)
	if d.RetryAfter <= 0 || ask.Never(d) {
		return &refusal{detailed("rate limit exceeded", failure, info), never}
	}
	info.Metadata["retryAfter"] = strconv.FormatFloat(d.RetryAfter.Seconds(), 'f', -1, 64) + "s"
	return &refusal{
		detailed(fmt.Sprintf("rate limit exceeded, retry after %v", d.RetryAfter),
			&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}, failure, info),
		pushback(d.RetryAfter),
	}
}

// tooCostly is the answer to a call that can never pass.
func (g *gate) tooCostly(subject string, d limit.Decision, n int64) *refusal {
	return &refusal{
		detailed("the call costs more than its rate limit",
			quota(subject, d.Limit, fmt.Sprintf("a call of cost %d never passes", n)), g.info(ReasonTooCostly, d)),
		never,
	}
}

func quota(subject string, value int64, description string) *errdetails.QuotaFailure {
	return &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
		Subject: subject, Description: description, QuotaValue: value,
	}}}
}

func (g *gate) info(reason string, d limit.Decision) *errdetails.ErrorInfo {
	about := map[string]string{"limiter": g.name}
	if d.Limit > 0 || reason == ReasonExceeded {
		about["limit"] = strconv.FormatInt(max(0, d.Limit), 10)
	}
	return &errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain, Metadata: about}
}

func detailed(message string, details ...protoadapt.MessageV1) *status.Status {
	st := status.New(codes.ResourceExhausted, message)
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	return st
}

// pushback rounds d up to milliseconds. Beyond an int32, as the protocol has
// it, a retry would be too early.
func pushback(d time.Duration) string {
	ms := (d-1)/time.Millisecond + 1
	if ms > math.MaxInt32 {
		return never
	}
	return strconv.FormatInt(int64(ms), 10)
}
