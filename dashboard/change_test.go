package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
	"github.com/rratelimiter/rratelimiter/limit"
)

// entries are those of the list of changes, the newest first.
func (s *site) entries() (all []map[string]any) {
	for _, e := range s.get("/api/audit")["entries"].([]any) {
		all = append(all, e.(map[string]any))
	}
	return all
}

func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	bodies, codes := make([]m, 8), make([]int, 8)
	for i := range bodies {
		bodies[i] = m{"rate": 20 + i, "interval_ms": 1000}
		_, preview := s.post("/api/preview/rate?name=orders", bodies[i])
		bodies[i]["expect"] = preview["expect"]
	}
	limitertest.Together(len(bodies), func(i int) { codes[i] = s.do(s.request("/api/change/rate?name=orders", bodies[i])).Code })
	slices.Sort(codes)
	assert.Equal(t, append([]int{http.StatusOK}, slices.Repeat([]int{http.StatusConflict}, 7)...), codes)
}

func TestAudit_IsBounded(t *testing.T) {
	t.Parallel()
	var a audit
	for i := range maxEntries + 50 {
		a.add(&entry{Action: fmt.Sprint(i), Outcome: done}, 0)
	}
	assert.Len(t, a.entries, maxEntries)
	assert.Equal(t, int64(maxEntries+50), a.entries[maxEntries-1].Number)
}

// What a search shows is changed in steps, within the pattern only, and as it was shown.
func TestChangeMany_Rates(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		prefix := redistest.Name(t)
		s := siteOn(t, rdb, func(c *Config) { c.Pattern = prefix + ":api:*" })
		hostile := prefix + ":api:<b>\u202e\xff\n"
		pipe := rdb.Pipeline()
		for i := range 220 {
			pipe.HSet(t.Context(), fmt.Sprintf("%s:api:%03d", prefix, i), "rate", 10, "interval", 3_600_000, "type", i%2, "keepAliveTime", 7_200_000)
		}
		for _, name := range []string{prefix + ":other", hostile} {
			pipe.HSet(t.Context(), name, "rate", 10, "interval", 3_600_000, "type", 0)
		}
		pipe.HSet(t.Context(), prefix+":api:bad", "rate", "SECRET", "interval", 1000, "type", 0)
		require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
		s.client(func(c *rratelimiter.Client) { limitertest.MustAcquire(t, c.RateLimiter(prefix+":api:000"), 6) })
		shown, body := "rates?search="+url.QueryEscape(strings.ToUpper(prefix)), m{"rate": 5, "interval_ms": 3_600_000}
		code, preview := s.post("/api/preview/"+shown, body)
		require.Equal(t, http.StatusOK, code, "%v", preview)
		has(t, m{"todo": 222.0}, preview)
		assert.Equal(t, []any{prefix + ":api:bad", "broken", "5/1h"}, preview["first"].([]any)[0])
		assert.Len(t, preview["warnings"], 3, "kept permits, one limiter with more in use, a broken one")

		// Stopped after a step, and run again.
		body["expect"] = preview["expect"]
		code, step := s.post("/api/change/"+shown, body)
		require.Equal(t, http.StatusOK, code)
		changed, left := step["changed"].(float64), step["left"].(float64) // a slow server gets smaller steps
		assert.LessOrEqual(t, changed, 99.0)
		has(t, m{"todo": 222.0, "left": 221 - changed, "failed": 1.0}, step)
		has(t, m{"action": many, "outcome": partly, "undo": false}, s.entries()[0])
		shown, again := "rates?search="+url.QueryEscape(prefix), m{"rate": 5, "interval_ms": 3_600_000}
		_, preview = s.post("/api/preview/"+shown, again)
		has(t, m{"todo": left + 1}, preview)
		again["expect"] = preview["expect"]
		s.limiter(prefix+":api:218", rratelimiter.PerHour(77), 0) // by another, meanwhile
		s.play("change delete?name=NAME:api:219", "NAME", url.QueryEscape(prefix))
		for step["left"] != 0.0 {
			code, step = s.post("/api/change/"+shown, again)
			require.Equal(t, http.StatusOK, code, "%v", step)
		}
		has(t, m{"changed": left - 2, "failed": 1.0, "gone": 1.0, "meanwhile": 1.0}, step)
		has(t, m{"name": prefix + ":api:bad"}, step["failures"].([]any)[0].(m))
		require.Len(t, s.entries(), 3, "an entry each, however many steps")
		want := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 5, Interval: time.Hour, KeepAlive: 2 * time.Hour}
		assert.Equal(t, want, s.config(prefix+":api:001"))
		assert.Equal(t, []int64{5, 77}, []int64{s.config(hostile).Rate, s.config(prefix + ":api:218").Rate})
		has(t, m{"free": 0.0}, s.get("/api/limiter?name="+url.QueryEscape(prefix+":api:000")), "permits in use stay counted")
		assert.Equal(t, "10", rdb.HGet(t.Context(), prefix+":other", "rate").Val(), "outside of the pattern")
		assert.NotContains(t, s.log.String(), "SECRET")
	})
}

// A hash of many is read in parts.
func TestAPI_ManyThresholds(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	const thresholds = 2500
	pipe := s.rdb.Pipeline()
	for i := range thresholds {
		pipe.HSet(t.Context(), "limits", fmt.Sprintf("log:%04d", i), i)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
	got := map[string]bool{}
	for cursor, more := "0", true; more; {
		list := object(t, s.ask("GET /thresholds?hash=limits&cursor="+cursor, "", http.StatusOK, "").Body.Bytes())
		for key := range rows(t, list, "thresholds") {
			got[key] = true
		}
		cursor, more = list["cursor"].(string), list["more"].(bool)
	}
	assert.Len(t, got, thresholds)
}

// TestScripts plays those of testdata/script, in virtual time. A title may set the site's options.
func TestScripts(t *testing.T) {
	t.Parallel()
	story.Run(t, func(t *testing.T, title string, steps []story.Step) {
		t.Helper()
		options := strings.Split(title, " | ")[1:]
		synctest.Test(t, func(t *testing.T) {
			rdb, mini := redistest.Mini(t)
			if slices.Contains(options, "untouchable") {
				rdb = limittest.Unreachable(t)
			}
			newSite := siteOn
			if slices.Contains(options, "api") {
				newSite = apiOn
			}
			s := newSite(t, rdb, func(c *Config) {
				for _, option := range options {
					switch words := strings.Fields(option); words[0] {
					case "pattern":
						c.Pattern = words[1]
					case "redisson":
						c.RedissonVersion = words[1]
					case "thresholds":
						withLogs(words[1:]...)(c)
					case "others":
						withOthers(c)
					case "hosts":
						c.Hosts = words[1:]
					case "tokens":
						c.Authorize = WithTokens(lookToken, token)
					case "observer":
						c.Observer = &Observer{}
					case "api", "untouchable":
					case "read-only":
						c.Write = false
					default:
						t.Fatal(option)
					}
				}
			})
			s.mini = mini
			for _, step := range steps {
				s.step(step)
			}
		})
	})
}

// play runs the steps of a script, in which the pairs are replaced.
func (s *site) play(script string, pairs ...string) {
	s.t.Helper()
	for _, step := range story.Steps(s.t, script, pairs...) {
		s.step(step)
	}
}

// step does what a line says:
//
//	redis HSET bad rate x                      runs a command of the server, which may be compared with what it answers
//	fails LOADING not yet                      lets the server answer so, or well again
//	limiter orders 10 1h 2h                    sets a rate by a program, with a keep-alive time or none
//	default orders 10 1h                       takes a permit by a program with this default
//	acquire orders 4 ann                       takes permits, by a client of this name and id if there is one
//	refused busy 6                             is refused them, which the site's observer sees
//	take log:ann 5                             takes permits of an other limiter
//	settle orders 20                           takes a permit by a reservation that turns out to need as many as that
//	wait 10s                                   lets time pass
//	may 200 401 "Basic: a password"            answers looking and changing with such headers so
//	host evil.example at 10.0.0.5 => 421       is what a browser gets that calls this server so, if it is reached at this address
//	refuses 403 "Sec-Fetch-Site: cross-site"   answers all changes with such headers so; one without a value is left out
//	log limiter changed                        is in the log
//	GET limiter?name=orders => {"free":6}      asks, and compares the answer as lacks says
//	DELETE /limiters => 405 GET, HEAD          asks an API without the page, whose answer has a part
//	preview rate?name=orders {"rate":3} => 404 shows what a change would do; the status is 200 unless it is named
//	confirm rate?name=orders {"rate":3}        makes the change that was shown
//	change rate?name=orders {"rate":3}         does both, and what it is compared with is of both answers; a status that
//	                                           refuses is that of the preview, and of the change without one
func (s *site) step(step story.Step) {
	t, words := s.t, step.Words
	t.Helper()
	count, span := func(i int) int64 { return step.Int(t, i) }, func(i int) time.Duration { return step.Span(t, i) }
	switch words[0] {
	case "redis":
		step.Redis(t, s.rdb)
	case "fails":
		s.mini.SetError(strings.Join(words[1:], " "))
	case "limiter":
		s.limiter(words[1], rratelimiter.Config{Rate: count(2), Interval: span(3), KeepAlive: span(4)}, 0)
	case "default":
		s.client(func(c *rratelimiter.Client) {
			limitertest.MustAcquire(t, limitertest.ByDefault(c, words[1], limitertest.Every(count(2), span(3))), 1)
		})
	case "acquire":
		var opts []rratelimiter.Option
		if len(words) > 3 {
			opts = append(opts, rratelimiter.WithClientID(words[3]), rratelimiter.WithClientName(words[3]))
		}
		s.client(func(c *rratelimiter.Client) { limitertest.MustAcquire(t, c.RateLimiter(words[1]), count(2)) }, opts...)
	case "refused":
		s.client(func(c *rratelimiter.Client) {
			limitertest.MustRefuse(t, c.RateLimiter(words[1]), count(2))
		}, rratelimiter.WithObserver(s.cfg.Observer))
	case "wait":
		time.Sleep(span(1))
	case "take":
		i := slices.IndexFunc(s.cfg.Others, func(o Other) bool { return strings.HasPrefix(words[1], o.Prefix) })
		require.NoError(t, limitertest.Second(s.cfg.Others[i].Limiter.(limit.Limiter).Take(t.Context(), words[1], count(2))))
	case "settle":
		s.client(func(c *rratelimiter.Client) {
			require.NoError(t, limitertest.Reserve(t, c.RateLimiter(words[1]), 1).Settle(t.Context(), count(2)))
		})
	case "refuses":
		s.refuses(step)
	case "may":
		s.may(step)
	case "host":
		code := s.code(http.MethodGet, "/api/about", func(r *http.Request) {
			r.Host = words[1]
			if len(words) > 3 {
				at := &net.TCPAddr{IP: net.ParseIP(words[3]), Port: 8320}
				*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
			}
		})
		assert.Equal(t, step.Want, strconv.Itoa(code), step.Line)
	case "log":
		assert.Contains(t, s.log.String(), strings.Join(words[1:], " "))
	default:
		if strings.HasPrefix(words[1], "/") {
			s.asksPlainly(step)
			return
		}
		s.asks(step)
	}
}

// refuses asks for changes with other headers than the page's, or by another method.
func (s *site) refuses(step story.Step) {
	s.t.Helper()
	for _, path := range []string{"preview/rate?name=orders", "change/rate?name=orders", "preview/rates?search=orders", "change/rates?search=orders"} {
		r := s.request("/api/"+path, m{"rate": 20, "interval_ms": 1000})
		setHeaders(r, step.Words[2:])
		assert.EqualValues(s.t, step.Int(s.t, 1), s.do(r).Code, "%s: %s", step.Line, path)
	}
	assert.NotContains(s.t, s.log.String(), token)
}

// setHeaders changes those of a request: one without a value is left out. Basic is a password, and Method the request's own.
func setHeaders(r *http.Request, headers []string) {
	for _, header := range headers {
		switch name, value, _ := strings.Cut(header, ": "); {
		case name == "Method":
			r.Method = value
		case name == "Basic":
			r.SetBasicAuth("anybody", value)
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
}

// may asks to look and to change with such headers.
func (s *site) may(step story.Step) {
	s.t.Helper()
	looks := s.code(http.MethodGet, "/api/limiters", func(r *http.Request) { setHeaders(r, step.Words[3:]) })
	assert.EqualValues(s.t, step.Int(s.t, 1), looks, step.Line)
	r := s.request("/api/preview/rate?name=orders", m{"rate": 1, "interval_ms": 1})
	setHeaders(r, step.Words[3:])
	assert.EqualValues(s.t, step.Int(s.t, 2), s.do(r).Code, step.Line)
	assert.NotContains(s.t, s.log.String(), token)
	assert.NotContains(s.t, s.log.String(), lookToken)
}

// asksPlainly makes a request of an API without the page, whose answer has a part.
func (s *site) asksPlainly(step story.Step) {
	s.t.Helper()
	status, says, _ := strings.Cut(step.Want, " ")
	code, err := strconv.Atoi(status)
	require.NoError(s.t, err, step.Line)
	w := s.ask(step.Words[0]+" "+step.Words[1], strings.Join(step.Words[2:], " "), code, says)
	assert.Equal(s.t, code == http.StatusMethodNotAllowed, w.Header().Get("Allow") != "", step.Line)
}

func (s *site) asks(step story.Step) {
	t := s.t
	t.Helper()
	code, want, verb, path := http.StatusOK, step.Want, step.Words[0], step.Words[1]
	if number, rest, _ := strings.Cut(want, " "); !strings.HasPrefix(want, "{") && want != "" {
		var err error
		code, err = strconv.Atoi(number)
		require.NoError(t, err, step.Line)
		want = rest
	}
	body := m{}
	if len(step.Words) > 2 {
		body = object(t, []byte(step.Words[2]))
	}
	answer := m{}
	send := func(r *http.Request) {
		w := s.do(r)
		require.Equal(t, code, w.Code, "%s%s", step.Line, w.Body)
		maps.Copy(answer, object(t, w.Body.Bytes()))
	}
	if verb == "GET" {
		r := s.request("/api/"+path, body)
		r.Method, r.Body = http.MethodGet, http.NoBody
		send(r)
	}
	if verb == "preview" || verb == "change" {
		send(s.request("/api/preview/"+path, body))
		s.expect[path] = answer["expect"]
	}
	if verb == "confirm" || verb == "change" {
		if expect := s.expect[path]; expect != nil {
			body["expect"] = expect
		}
		send(s.request("/api/change/"+path, body))
	}
	if want != "" {
		assert.Empty(t, lacks(object(t, []byte(want)), answer), "%s%v", step.Line, answer)
	}
}

// lacks returns how an answer is not the one that is wanted. An object may have more than that, unless it is wanted with "=";
// null is what is missing, what begins with ~ is a regular expression, and pairs of names and values are an object.
func lacks(want, got any) string {
	switch want := want.(type) {
	case m:
		if list, ok := got.([]any); ok {
			all := m{}
			for _, pair := range list {
				all[pair.([]any)[0].(string)] = pair.([]any)[1]
			}
			got = all
		}
		object, _ := got.(m)
		if want["="] != nil && len(want)-1 != len(object) {
			return fmt.Sprintf("%v has other names than %v", got, want)
		}
		for name, part := range want {
			if why := lacks(part, object[name]); why != "" && name != "=" {
				return name + ": " + why
			}
		}
		return ""
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return fmt.Sprintf("%v has not %d parts", got, len(want))
		}
		for i, part := range want {
			if why := lacks(part, list[i]); why != "" {
				return why
			}
		}
		return ""
	case string:
		if pattern, ok := strings.CutPrefix(want, "~"); ok && regexp.MustCompile(pattern).MatchString(fmt.Sprint(got)) {
			return ""
		}
	}
	if assert.ObjectsAreEqual(want, got) {
		return ""
	}
	text, _ := json.Marshal(got)
	return fmt.Sprintf("%s, not %v", text, want)
}
