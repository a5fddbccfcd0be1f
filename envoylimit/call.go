package envoylimit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

type descriptor = commonv3.RateLimitDescriptor

// call is one request of Envoy's.
type call struct {
	service *Service
	policy  *outage.Policy
	domain  *domain

	asked     []asked     // for each descriptor
	questions []*question // one for each counter and what is done with it
	passes    bool
	until     time.Time // when the answer must be there, if ctx has a deadline
}

// asked is what becomes of a descriptor.
type asked struct {
	rule     *rule     // nil: no limit
	question *question // nil: there is nothing to ask
}

// deed is what is done with a counter. Of a counter that a call has twice the greater one is done.
type deed int

const (
	look   deed = iota // more used than the limit?
	take               // all or none
	always             // charged, even if it is too much
	giveBack
	settle
)

// question is what is asked of one counter.
type question struct {
	*rule

	deed        deed
	key         string
	metric      string
	permits     int64
	reservation string // what is settled

	answer
}

// reservationKey is the key of the entry, the last of its descriptor, that names what is settled.
const reservationKey = "rrl_reservation"

// read makes the questions of a request.
func (c *call) read(r *ratelimitv3.RateLimitRequest) error {
	c.asked = make([]asked, len(r.GetDescriptors()))
	if c.domain == nil {
		return nil
	}
	allOwn := !slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool {
		return d.GetHitsAddend().GetValue() == 0 || d.GetIsNegativeHits()
	})
	var replaced []string
	for i, d := range r.GetDescriptors() {
		entries, reservation, settles := withoutReservation(d.GetEntries())
		of, values, metric := c.domain.match(entries)
		if d.GetLimit() != nil {
			var err error
			if of, err = c.override(d, entries, of); err != nil {
				return err
			}
			values, metric = nil, of.metric
		}
		if of == nil {
			continue
		}
		replaced = append(replaced, of.replaces...)
		c.asked[i].rule = of
		if of.unlimited || settles && d.GetHitsAddend() == nil { // the hold ends it
			continue
		}
		q := &question{rule: of, metric: metric, reservation: reservation, key: c.domain.key(entries, values, &of.per)}
		q.cost(r, d, settles, allOwn)
		c.asked[i].question = q
	}
	for i := range c.asked {
		switch of := &c.asked[i]; {
		case of.question == nil:
		case of.rule.name != "" && slices.Contains(replaced, of.rule.name):
			*of = asked{}
		default:
			of.question = c.add(of.question)
		}
	}
	return nil
}

// withoutReservation returns the entries without the one that names a reservation, and that.
func withoutReservation(all []*entry) (entries []*entry, reservation string, settles bool) {
	last := len(all) - 1
	if last < 1 || all[last].GetKey() != reservationKey {
		return all, "", false
	}
	return all[:last], all[last].GetValue(), true
}

// cost sets how many permits a descriptor asks for, and what is done with them.
func (q *question) cost(r *ratelimitv3.RateLimitRequest, d *descriptor, settles, allOwn bool) {
	hits := max(1, uint64(r.GetHitsAddend()))
	own := d.GetHitsAddend() != nil
	switch {
	case own:
		hits = d.GetHitsAddend().GetValue()
	case q.estimate > 0:
		hits = uint64(q.estimate)
	}
	q.permits = int64(min(hits, math.MaxUint32))
	switch {
	case d.GetIsNegativeHits():
		q.deed = giveBack
	case settles:
		q.deed = settle
	case hits == 0:
		q.deed = look
	case q.charge == "always" || q.charge == "" && allOwn && q.estimate == 0:
		q.deed = always
	default:
		q.deed = take
	}
}

// add adds a question, to that about the same counter if there is one.
func (c *call) add(q *question) *question {
	for _, other := range c.questions {
		if other.key != q.key || !other.goesWith(q) {
			continue
		}
		other.permits = min(other.permits+q.permits, math.MaxUint32)
		other.deed = max(other.deed, q.deed)
		// By an override, which is never mild.
		if other.mild() && !q.mild() || other.mild() == q.mild() && q.limit < other.limit {
			other.rule, other.metric = q.rule, q.metric
		}
		return other
	}
	c.questions = append(c.questions, q)
	return q
}

// goesWith reports whether two questions about one counter are asked as one.
func (q *question) goesWith(other *question) bool {
	if q.deed <= always || other.deed <= always {
		return q.deed <= always && other.deed <= always
	}
	return q.deed == other.deed && (q.deed == giveBack || q.reservation == other.reservation)
}

// override returns the rule that a request brings along. What the configuration says of reservations and charges of the
// same entries stays.
func (c *call) override(d *descriptor, entries []*entry, configured *rule) (*rule, error) {
	of, multiple := d.GetLimit(), int64(1)
	u := unit(of.GetUnit())
	if lengths[u] == 0 {
		return nil, fmt.Errorf("the limit of a descriptor has the unit %v", of.GetUnit())
	}
	if m := of.GetUnitMultiplier(); m != nil {
		if multiple = int64(m.GetValue()); multiple == 0 {
			return nil, errors.New("the limit of a descriptor has a multiplier of 0")
		}
	}
	var metric strings.Builder
	metric.WriteString(c.domain.name)
	for _, e := range entries {
		add(&metric, e.GetKey(), "")
	}
	r := &rule{limit: int64(of.GetRequestsPerUnit()), per: ofUnit(u, multiple), metric: metric.String()}
	if configured != nil && !configured.unlimited {
		r.estimate, r.hold, r.charge = min(configured.estimate, r.limit), configured.hold, configured.charge
		switch {
		case configured.window == r.window:
			r.per = configured.per
		case r.estimate > 0:
			r.algorithm = slidingLog
		}
	}
	if r.endless() {
		return nil, fmt.Errorf("with the limit of a descriptor its bucket, for a burst of %d, takes more than 292 years to fill", r.burst)
	}
	r.setName()
	return r, nil
}

// key returns the name of a counter, without what all have. values are those by which it is counted if they are others than
// the entries'.
func (d *domain) key(entries []*entry, values []string, of *per) string {
	var key strings.Builder
	key.Grow(128)
	key.WriteByte('{')
	key.WriteString(keypart.Escape(d.name))
	for i, e := range entries {
		if d.spread && valueOf(e, values, i) != "" {
			key.WriteByte(':')
			key.WriteString(keypart.Escape(valueOf(e, values, i)))
			break
		}
	}
	key.WriteByte('}')
	for i, e := range entries {
		key.WriteByte(':')
		key.WriteString(escapeKey(e.GetKey()))
		key.WriteByte('_')
		key.WriteString(keypart.Escape(valueOf(e, values, i)))
	}
	key.WriteByte(':')
	key.WriteString(of.name)
	return key.String()
}

// escapeKey writes an entry's key without '_', which comes between it and the value.
func escapeKey(key string) string {
	return strings.ReplaceAll(keypart.Escape(key), "_", "%5F")
}

func valueOf(e *entry, values []string, i int) string {
	if i < len(values) {
		return values[i]
	}
	return e.GetValue()
}

// most is the most permits that the counter ever grants at once.
func (r *rule) most() int64 {
	if r.algorithm == tokenBucket && r.burst > 0 {
		return r.burst
	}
	return r.limit
}

// endless reports whether a bucket would take longer to fill than can be counted.
func (r *rule) endless() bool {
	return r.burst > 0 && r.limit > 0 && (r.burst-1)/int64(math.MaxInt64/r.window) >= r.limit
}

// held is how long a reservation counts that is not settled. Less than an interval, so that Redis says when it was granted.
func (r *rule) held() time.Duration {
	if longest := r.window - time.Millisecond; r.hold == 0 || r.hold > longest {
		return max(longest, time.Millisecond)
	}
	return r.hold
}
