package dashboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

// player plays a story on a site of its own.
type player struct {
	*site

	mini   *miniredis.Miniredis
	expect map[string]any // of the last preview, by its path
}

// TestScripts plays those of testdata/script, in virtual time. A title may set the site's options.
func TestScripts(t *testing.T) {
	t.Parallel()
	story.Run(t, func(t *testing.T, title string, steps []story.Step) {
		t.Helper()
		options := strings.Split(title, " | ")[1:]
		synctest.Test(t, func(t *testing.T) {
			rdb, mini := redistest.Mini(t)
			s := siteOn(t, rdb, func(c *Config) {
				for _, option := range options {
					switch words := strings.Fields(option); words[0] {
					case "pattern":
						c.Pattern = words[1]
					case "redisson":
						c.RedissonVersion = words[1]
					case "thresholds":
						withLogs(words[1:]...)(c)
					default:
						t.Fatal(option)
					}
				}
			})
			p := &player{s, mini, map[string]any{}}
			for _, step := range steps {
				p.step(step)
			}
		})
	})
}

// step does what a line says:
//
//	redis HSET bad rate x                      runs a command of the server, which may be compared with what it answers
//	fails LOADING not yet                      lets the server answer so, or well again
//	limiter orders 10 1h 2h                    sets a rate by a program, with a keep-alive time or none
//	default orders 10 1h                       takes a permit by a program with this default
//	acquire orders 4 ann                       takes permits, as this client if one is named
//	log limiter changed                        is in the log
//	GET limiter?name=orders => {"free":6}      asks, and compares the answer as lacks says
//	preview rate?name=orders {"rate":3} => 404 shows what a change would do; the status is 200 unless it is named
//	confirm rate?name=orders {"rate":3}        makes the change that was shown
//	change rate?name=orders {"rate":3}         does both, and what it is compared with is of both answers; a status that
//	                                           refuses is that of the preview, and of the change without one
func (p *player) step(step story.Step) {
	t, words := p.t, step.Words
	t.Helper()
	count := func(i int) int64 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		require.NoError(t, err, step.Line)
		return n
	}
	span := func(i int) (d time.Duration) {
		if len(words) > i {
			var err error
			d, err = time.ParseDuration(words[i])
			require.NoError(t, err, step.Line)
		}
		return d
	}
	switch words[0] {
	case "redis":
		step.Redis(t, p.rdb)
	case "fails":
		p.mini.SetError(strings.Join(words[1:], " "))
	case "limiter":
		p.limiter(words[1], rratelimiter.Config{Rate: count(2), Interval: span(3), KeepAlive: span(4)}, 0)
	case "default":
		p.client(func(c *rratelimiter.Client) {
			limitertest.MustAcquire(t, limitertest.ByDefault(c, words[1], limitertest.Every(count(2), span(3))), 1)
		})
	case "acquire":
		var opts []rratelimiter.Option
		if len(words) > 3 {
			opts = append(opts, rratelimiter.WithClientID(words[3]))
		}
		p.client(func(c *rratelimiter.Client) { limitertest.MustAcquire(t, c.RateLimiter(words[1]), count(2)) }, opts...)
	case "log":
		assert.Contains(t, p.log.String(), strings.Join(words[1:], " "))
	default:
		p.ask(step)
	}
}

func (p *player) ask(step story.Step) {
	t := p.t
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
		w := p.do(r)
		require.Equal(t, code, w.Code, "%s%s", step.Line, w.Body)
		maps.Copy(answer, object(t, w.Body.Bytes()))
	}
	if verb == "GET" {
		r := p.request("/api/"+path, body)
		r.Method, r.Body = http.MethodGet, http.NoBody
		send(r)
	}
	if verb == "preview" || verb == "change" {
		send(p.request("/api/preview/"+path, body))
		p.expect[path] = answer["expect"]
	}
	if verb == "confirm" || verb == "change" {
		if expect := p.expect[path]; expect != nil {
			body["expect"] = expect
		}
		send(p.request("/api/change/"+path, body))
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
			for name, value := range facts(list) {
				all[name] = value
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
