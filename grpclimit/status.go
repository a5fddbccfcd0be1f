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

	"github.com/rratelimiter/rratelimiter/limit"
)

// What callers are told; the error handler hears more.
var (
	misconfigured = status.New(codes.Internal, "rate limiter is not configured properly")
	unavailable   = status.New(codes.Unavailable, "rate limiter is unavailable")
)

// A refusal is how a call ends that may not go on.
type refusal struct {
	status   *status.Status
	pushback string // the trailer grpc-retry-pushback-ms; none where empty
}

func (r *refusal) err() error { return r.status.Err() }

// trailer returns what a server sends along.
func (r *refusal) trailer() metadata.MD {
	if r.pushback == "" {
		return nil
	}
	return metadata.Pairs("grpc-retry-pushback-ms", r.pushback)
}

// never tells clients not to retry.
const never = "-1"

// exhausted is the answer to a call that the limiter refused.
func exhausted(call Call, d limit.Decision) *refusal {
	violation := &errdetails.QuotaFailure_Violation{
		Subject:     call.Method,
		Description: fmt.Sprintf("the limit is %d", d.Limit),
		QuotaValue:  d.Limit,
	}
	if d.RetryAfter <= 0 || d.Limit <= 0 {
		return &refusal{detailed("rate limit exceeded", quota(violation)), never}
	}
	return &refusal{
		detailed(fmt.Sprintf("rate limit exceeded, retry after %v", d.RetryAfter),
			&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}, quota(violation)),
		pushback(d.RetryAfter),
	}
}

// tooCostly is the answer to a call that can never pass.
func tooCostly(call Call, n int64) *refusal {
	return &refusal{
		detailed("the call costs more than its rate limit", quota(&errdetails.QuotaFailure_Violation{
			Subject:     call.Method,
			Description: fmt.Sprintf("a call of cost %d never passes", n),
		})),
		never,
	}
}

func quota(v *errdetails.QuotaFailure_Violation) *errdetails.QuotaFailure {
	return &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{v}}
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
