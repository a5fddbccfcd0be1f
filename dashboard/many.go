package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	// many is the action that changes the rates of all limiters that a search shows.
	many = "rates"

	// maxMany is how many one review may change.
	maxMany = 100_000

	// maxReviews is how many reviews are kept until they are made.
	maxReviews = 4

	// walkTime bounds the walk over all keys for a review.
	walkTime = time.Minute
)

// reviews are the changes of many limiters that were shown, the newest last. Each is made
// step by step, a request each, so that the page can stop, and go on.
type reviews struct {
	looking chan struct{} // holds one token: one walk over the keys at a time

	mu   sync.Mutex
	kept []*review
}

type review struct {
	request *request // as the page repeats it
	plan    *rates.Plan
	entry   *entry // of the list of changes, once a step was made
}

func (rs *reviews) keep(r *review) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.kept = append(rs.kept, r)
	rs.kept = slices.Delete(rs.kept, 0, max(len(rs.kept)-maxReviews, 0))
}

// of returns the review that a request was shown, nil if it is not kept.
func (rs *reviews) of(r *request) *review {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if i := slices.IndexFunc(rs.kept, func(one *review) bool { return one.request.String() == r.String() && one.request.Expect == r.Expect }); i >= 0 {
		return rs.kept[i]
	}
	return nil
}

// failure is a limiter that did not get its rate.
type failure struct {
	named

	Error string `json:"error"`
}

// previewMany tells what a change of many limiters would do, and changes nothing.
func (c *call) previewMany(r *request) error {
	err := r.checkRate()
	if err != nil {
		return err
	}
	cfg, err := r.config(rratelimiter.Config{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(walkTime + patience))
	found, err := c.search(ctx, r.search)
	if err != nil {
		return err
	}
	var plan *rates.Plan
	_ = c.by(ctx, "", func(client *rratelimiter.Client) error {
		plan = rates.NewPlan(found, func(now rratelimiter.Config) rratelimiter.Config {
			to := cfg
			to.Type = now.Type
			return rates.Keep(now, to)
		}, false, setOne(client), func(_ string, err error) string {
			told, _ := problemOf(err)
			return told.Detail
		})
		return nil
	})
	switch {
	case plan.Found == 0:
		return httpjson.Refuse(http.StatusNotFound, "no limiter has this in its name")
	case plan.Planned() == 0 && plan.Failed > 0:
		return httpjson.Refuse(http.StatusConflict, "%s", failsText(plan))
	case plan.Planned() == 0:
		return httpjson.Refuse(http.StatusConflict, "all of them have that rate already")
	case plan.Planned() > maxMany:
		return httpjson.Refuse(http.StatusConflict, "more than %d limiters: search for fewer", maxMany)
	}
	r.Expect = rand.Text()
	c.reviews.keep(&review{request: r, plan: plan})
	first := [][3]string{}
	for _, change := range plan.First {
		first = append(first, [3]string{shown(change.Name), change.From, change.To})
	}
	limiters := func(n int) string { return words.Plural(int64(n), "limiter") }
	return c.ok(struct {
		Action   string      `json:"action"`
		Limiter  named       `json:"limiter"`
		Before   []fact      `json:"before"`
		After    []fact      `json:"after"`
		First    [][3]string `json:"first"` // name, before and after
		Todo     int         `json:"todo"`
		Warnings []string    `json:"warnings"`
		Expect   string      `json:"expect"`
	}{
		r.verb, searchName(r.search),
		[]fact{{"Limiters", limiters(plan.Found)}, {"With that rate", limiters(plan.Already)}},
		[]fact{{"Limiters", limiters(plan.Planned()) + " changed"}, {"With that rate", limiters(plan.Already + plan.Planned())}},
		first, plan.Planned(), warningsOf(plan), r.Expect,
	})
}

// searchName stands for the limiters of a search in place of one limiter's name.
func searchName(search string) named {
	return named{Name: "names with " + shown(search), Bytes: len(search)}
}

// setOne sets the rate of one of many limiters.
func setOne(client *rratelimiter.Client) rates.Setter {
	return func(ctx context.Context, change rates.Change) (bool, error) {
		return client.RateLimiter(change.Name).UpdateRate(ctx, change.Config, rratelimiter.KeepState())
	}
}

// failsText says which of the limiters can't get the rate.
func failsText(p *rates.Plan) string {
	return fmt.Sprintf("%s can't have that rate: %s", words.Plural(int64(p.Failed), "limiter"), p.Failures[0].Error)
}

func warningsOf(p *rates.Plan) []string {
	all := []string{"Permits in use stay counted, and type and keep-alive time as they are; one that was the interval follows it. " +
		"There is no undo for all of them at once."}
	if p.Over > 0 {
		all = append(all, fmt.Sprintf("%s with more permits in use than the new rate: no call gets one there until enough are back.",
			words.Plural(int64(p.Over), "limiter")))
	}
	if p.Failed > 0 {
		all = append(all, failsText(p)+".")
	}
	if p.Broken > 0 {
		all = append(all, fmt.Sprintf("%s that can't be read: these fail and stay as they are.", words.Plural(int64(p.Broken), "limiter")))
	}
	return all
}

// search returns the limiters that a search shows, broken ones first, then by name.
func (c *call) search(ctx context.Context, part string) ([]*look.Short, error) {
	end, err := begin(ctx, c.reviews.looking)
	if err != nil {
		return nil, err
	}
	defer end()
	var mu sync.Mutex
	all := map[string]*look.Short{} // SCAN may show a key more than once
	err = nodes.ForEach(ctx, c.cfg.Redis, func(ctx context.Context, node nodes.Client) error {
		return look.EachPage(ctx, c.cfg.Redis, node, c.cfg.Pattern, func(_ int, found []*look.Short) {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range found {
				if look.Has(l.Name, part) && c.within(l.Name) == nil {
					all[l.Name] = l
				}
			}
		})
	})
	if err != nil {
		return nil, err
	}
	found := make([]*look.Short, 0, len(all))
	for _, l := range all {
		found = append(found, l)
	}
	slices.SortFunc(found, func(a, b *look.Short) int {
		return cmp.Or(cmp.Compare(a.State.Rank(), b.State.Rank()), strings.Compare(a.Name, b.Name))
	})
	return found, nil
}

// changeMany makes the next step of a review, with the token for changes held.
func (c *call) changeMany(ctx context.Context, r *request) error {
	found := c.reviews.of(r)
	if found == nil {
		return errShownOtherwise
	}
	plan := found.plan
	var err error
	if plan.Left() > 0 {
		err = c.by(ctx, "", func(client *rratelimiter.Client) error {
			return plan.Step(ctx, c.cfg.Redis, func(ctx context.Context, change rates.Change) (bool, error) {
				set, err := setOne(client)(ctx, change)
				made := gone(set, err)
				c.logChange(&entry{
					Action: many, name: change.Name, Outcome: outcomeOf(made), Before: []fact{{factRate, change.From}}, After: []fact{{factRate, change.To}},
				}, made)
				return set, err
			})
		})
	}
	told := c.enterMany(found)
	if err != nil {
		c.log(slog.LevelWarn, "change of many limiters stopped", slog.Int("left", plan.Left()), slog.Any("error", unquoted(err)))
		return err
	}
	failures := []failure{}
	for _, f := range plan.Failures {
		failures = append(failures, failure{nameOf(f.Name), f.Error})
	}
	return c.ok(struct {
		Todo      int       `json:"todo"`
		Left      int       `json:"left"`
		Changed   int       `json:"changed"`
		Gone      int       `json:"gone"`
		Meanwhile int       `json:"meanwhile"`
		Failed    int       `json:"failed"`
		Failures  []failure `json:"failures"`
		Entry     entry     `json:"entry"`
	}{plan.Meant(), plan.Left(), plan.Changed, plan.Gone, plan.Meanwhile, plan.Failed, failures, told})
}

// enterMany puts a review into the list of changes, or brings its entry up to date.
func (c *call) enterMany(r *review) entry {
	plan := r.plan
	outcome := partly
	switch {
	case plan.Changed == plan.Meant():
		outcome = done
	case plan.Changed == 0:
		outcome = failed
	}
	after := []fact{
		{factRate, words.ShortRate(*r.request.Rate, *r.request.IntervalMS)},
		{"Limiters", fmt.Sprintf("%d of %d changed, %d failed", plan.Changed, plan.Meant(), plan.Failed)},
	}
	if r.entry == nil {
		r.entry = &entry{Who: c.who, Action: many, Limiter: searchName(r.request.search), After: after, Outcome: outcome, name: r.request.search}
		return c.audit.add(r.entry, 0)
	}
	return c.audit.update(r.entry, func() { r.entry.After, r.entry.Outcome = after, outcome })
}
