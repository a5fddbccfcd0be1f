package httplimit

import (
	"fmt"
	"net/http"
	"net/textproto"
	"reflect"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/limit"
)

// KeyFunc tells one part of the key that a request is counted under. What it
// returns may be anything: [WithKey] says how it is written. It is "" where the
// request has no such thing. An error is one of the application's, such as a
// session store that is down: the request is answered 503, whatever
// [WithFailure] says.
type KeyFunc func(*http.Request) (string, error)

// Header counts by a header, such as an API key. Nothing proves that the client
// speaks the truth: before it there should be something that has checked it.
// "Host" is what [http.Request] has as Host.
func Header(name string) KeyFunc {
	if name == "" {
		return badKey(fmt.Errorf("%w: Header: the name is empty", limit.ErrInvalidConfig))
	}
	if textproto.CanonicalMIMEHeaderKey(name) == "Host" {
		// net/http takes it out of the other headers.
		return func(r *http.Request) (string, error) { return r.Host, nil }
	}
	return func(r *http.Request) (string, error) { return r.Header.Get(name), nil }
}

// User counts by the name that user finds in the request, or in its context. ""
// is nobody: all of these share one limit.
func User(user func(*http.Request) string) KeyFunc {
	if user == nil {
		return badKey(fmt.Errorf("%w: User: the function is nil", limit.ErrInvalidConfig))
	}
	return func(r *http.Request) (string, error) { return user(r), nil }
}

// Path counts by the path of the URL. Use it where the handler serves few paths:
// else clients go round the limit by inventing more, and [Route] is the right
// choice.
func Path() KeyFunc {
	return func(r *http.Request) (string, error) { return r.URL.Path, nil }
}

// Route counts by the pattern that http.ServeMux matched, such as
// "GET /items/{id}". It is known to what the mux calls, not to what is wrapped
// round the mux, where all requests have the empty one.
func Route() KeyFunc {
	return func(r *http.Request) (string, error) { return r.Pattern, nil }
}

// Host counts by the host that a request goes to, which is the default of [NewTransport]: that of
// its URL, else its Host. Case, a dot at the end and the scheme's own port make no other one.
func Host() KeyFunc {
	return func(r *http.Request) (string, error) {
		host := strings.ToLower(r.URL.Host)
		if host == "" {
			host = strings.ToLower(r.Host)
		}
		own, known := map[string]string{"http": ":80", "https": ":443"}[r.URL.Scheme]
		if port := strings.LastIndexByte(host, ':'); port > strings.LastIndexByte(host, ']') {
			name, port := strings.TrimSuffix(host[:port], "."), host[port:]
			if known && port == own || port == ":" {
				port = ""
			}
			return name + port, nil
		}
		return strings.TrimSuffix(host, "."), nil
	}
}

// badKey reports with each request how a key function was not made properly. It is not inlined,
// so that all that it returns is the same function: see faultOf.
//
//go:noinline
func badKey(err error) KeyFunc {
	return func(*http.Request) (string, error) { return "", err }
}

var badKeyFunc = reflect.ValueOf(badKey(nil)).Pointer()

// faultOf returns what a key function that was not made properly reports, without calling one
// that is the application's.
func faultOf(key KeyFunc) error {
	if key == nil || reflect.ValueOf(key).Pointer() != badKeyFunc {
		return nil
	}
	_, err := key(nil)
	return err
}

// questions returns a result for each policy that has nothing but the key and
// whom to ask.
func (m *middleware) questions(r *http.Request) ([]result, error) {
	shared, err := m.parts(r, m.keys)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(m.policies))
	for i, p := range m.policies {
		parts := shared
		if len(p.keys) > 0 {
			if parts, err = m.parts(r, p.keys); err != nil {
				return nil, err
			}
		}
		results[i] = result{policy: p, Question: p.limit.Question(p.prefix + parts)}
	}
	return results, nil
}

// parts returns what follows the prefix in a key.
func (m *middleware) parts(r *http.Request, keys []KeyFunc) (string, error) {
	return keypart.Join(keys, m.Tagged, func(part KeyFunc) (string, error) {
		text, err := part(r)
		if err != nil {
			return "", fmt.Errorf("httplimit: key: %w", err)
		}
		return text, nil
	})
}
