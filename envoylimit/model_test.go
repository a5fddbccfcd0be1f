package envoylimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// model is what Services promise, in words that know nothing of Redis: how much of each limit is used.
type model struct {
	*rand.Rand

	text   string // the configuration
	limits map[string]*modelLimit
	keys   []string
	held   map[string]*modelHeld // by id
	ids    []string
}

type modelLimit struct {
	limit, used   int
	shadow, quota bool
	estimate      int
	charge        string
}

// modelHeld is what is reserved at a limit. It is settled once.
type modelHeld struct {
	key     string
	permits int
	settled bool
}

type modelQuestion struct {
	key  string
	deed deed
	n    int
	id   string
	over bool
}

// modelDescriptor is one of a call's, with its hits and what it settles, "" if there is none.
type modelDescriptor struct{ key, hits, id string }

func newModel(seed uint64) *model {
	m := &model{Rand: rand.New(rand.NewPCG(seed, 0)), limits: map[string]*modelLimit{}, held: map[string]*modelHeld{}}
	m.text = []string{"", "hash: descriptor\n"}[m.IntN(2)] + "domain: web\ndescriptors:\n"
	for i := range 8 {
		l, mode := &modelLimit{limit: m.IntN(15)}, ""
		counts := []string{"unit: hour", "unit: hour", "unit: day", "unit: hour, algorithm: token_bucket"}[m.IntN(4)]
		switch what := m.IntN(7); {
		case what == 0:
			l.shadow, mode = true, "shadow_mode: true, "
		case what <= 2:
			l.quota, mode = true, "quota_mode: true, "
		case what <= 4:
			l.charge = []string{"always", "granted"}[what-3]
			counts += ", charge: " + l.charge
		case what == 5 && l.limit > 3:
			l.estimate, counts = 3, "unit: hour, estimate: 3"
		}
		key := fmt.Sprint("k", i)
		m.text += fmt.Sprintf("- {key: %s, %srate_limit: {%s, requests_per_unit: %d}}\n", key, mode, counts, l.limit)
		m.limits[key], m.keys = l, append(m.keys, key)
	}
	return m
}

func (m *model) call() (all []modelDescriptor) {
	spent := m.IntN(3) == 0
	taken := map[string]string{} // what settles a limit is not beside anything else of it
	for range 1 + m.IntN(4) {
		d := modelDescriptor{key: m.keys[m.IntN(len(m.keys))]}
		d.hits = []string{"", "", "", "0", "1", "2", "4", "-1", "-3", "20"}[m.IntN(10)]
		if spent || m.limits[d.key].estimate > 0 && strings.HasPrefix(d.hits, "-") { // that may take from what is reserved
			d.hits = strconv.Itoa(1 + m.IntN(4))
		}
		if len(m.ids) > 0 && m.IntN(8) == 0 && !strings.HasPrefix(d.hits, "-") {
			d.id = m.ids[m.IntN(len(m.ids))]
			d.key = m.held[d.id].key
		}
		if id, is := taken[d.key]; is && id != d.id {
			continue
		}
		taken[d.key], all = d.id, append(all, d)
	}
	return all
}

// questions returns what a call asks, and the question of each descriptor, nil if it has none.
func (m *model) questions(call []modelDescriptor) (all, of []*modelQuestion) {
	spent := true
	for _, d := range call {
		spent = spent && d.hits != "" && d.hits != "0" && !strings.HasPrefix(d.hits, "-")
	}
	for _, d := range call {
		l, q := m.limits[d.key], &modelQuestion{key: d.key, id: d.id, n: max(1, m.limits[d.key].estimate), deed: take}
		if d.hits != "" {
			q.n, _ = strconv.Atoi(strings.TrimPrefix(d.hits, "-"))
		}
		switch {
		case strings.HasPrefix(d.hits, "-"):
			q.deed = giveBack
		case d.id != "" && d.hits == "":
			of = append(of, nil)
			continue
		case d.id != "":
			q.deed = settle
		case q.n == 0:
			q.deed = look
		case l.charge == "always" || l.charge == "" && spent && l.estimate == 0:
			q.deed = always
		}
		for _, other := range all {
			if other.key == q.key && (other.deed == q.deed || other.deed <= always && q.deed <= always) {
				other.n, other.deed, q = other.n+q.n, max(other.deed, q.deed), other
				break
			}
		}
		if of = append(of, q); !slices.Contains(all, q) {
			all = append(all, q)
		}
	}
	return all, of
}

// passes finds out what is over, and whether the call passes.
func (m *model) passes(all []*modelQuestion) bool {
	passes, quotas, over := true, 0, 0
	for _, q := range all {
		l := m.limits[q.key]
		if q.deed >= giveBack {
			continue
		}
		q.over = l.used+q.n > l.limit || l.limit == 0
		passes = passes && (!q.over || l.shadow || l.quota)
		if l.quota {
			quotas++
		}
		if l.quota && q.over && !l.shadow {
			over++
		}
	}
	return passes && (quotas == 0 || over < quotas)
}

// do charges what a call costs, and returns what it reserves and what is left of the limits then.
func (m *model) do(all []*modelQuestion, passes bool) (reserves *modelHeld, left map[*modelQuestion]int) {
	left = map[*modelQuestion]int{}
	for _, q := range all {
		l, held := m.limits[q.key], m.held[q.id]
		switch {
		case q.deed == settle && held.settled:
		case q.deed == settle:
			l.used, held.settled = l.used+q.n-held.permits, true
		case q.deed == always:
			l.used += q.n
		case q.deed == take && passes && !q.over:
			l.used += q.n
			if l.estimate > 0 {
				reserves = &modelHeld{key: q.key, permits: q.n}
			}
		}
		left[q] = max(0, l.limit-l.used)
		if q.deed == giveBack && passes {
			l.used = max(0, l.used-q.n)
		}
	}
	return reserves, left
}

// answer returns the answer to a call in words, and what it reserves.
func (m *model) answer(call []modelDescriptor) (string, *modelHeld) {
	all, of := m.questions(call)
	passes := m.passes(all)
	slices.SortStableFunc(all, func(a, b *modelQuestion) int { return int(a.deed) - int(b.deed) }) // what is given back comes last
	reserves, left := m.do(all, passes)
	text := map[bool]string{true: "OK:", false: "OVER:"}[passes]
	for _, q := range of {
		switch {
		case q == nil || q.deed >= giveBack:
			text += " OK"
		case q.over && m.limits[q.key].shadow:
			text += fmt.Sprintf(" OK 0/%d", m.limits[q.key].limit)
		case q.over:
			text += fmt.Sprintf(" OVER 0/%d", m.limits[q.key].limit)
		default:
			text += fmt.Sprintf(" OK %d/%d", left[q], m.limits[q.key].limit)
		}
	}
	return text, reserves
}

// Any calls one after the other are answered as the model says, for all kinds of limits, hits and descriptors together.
func TestService_AsTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			m := newModel(seed)
			s, log := newService(t, rdb, m.text), ""
			for range 40 {
				var lines []string
				call := m.call()
				for _, d := range call {
					line := d.key + "=v"
					if d.id != "" {
						line += ", rrl_reservation=" + d.id
					}
					lines = append(lines, line+" | "+d.hits)
				}
				want, reserves := m.answer(call)
				log += strings.Join(lines, "; ") + " -> " + want + "\n"
				r := s.ask(t, strings.Join(lines, "; "))
				require.Equal(t, want, says(r, nil), "seed %d\n%s\n%s", seed, m.text, log)
				id := reservation(r)
				require.Equal(t, reserves != nil, id != "", "seed %d\n%s\n%s", seed, m.text, log)
				if reserves != nil {
					m.held[id], m.ids = reserves, append(m.ids, id)
				}
			}
		})
	}
}
