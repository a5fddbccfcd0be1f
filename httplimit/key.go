package httplimit

import (
	"errors"
	"net/http"
	"net/textproto"
	"reflect"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
)

// KeyFunc returns one part of the key under which a request is counted: any text, which
// [WithKey] escapes, or "" if the request has no such thing. An error is the application's own,
// such as a session store that is down. The request is then answered with 503, with 500 for a
// limit.ErrInvalidConfig, whatever [WithFailure] says.
type KeyFunc func(*http.Request) (string, error)

// Header counts by a header, such as an API key. It does not check the value: something in
// front of the server must have checked it. "Host" stands for the Host of [http.Request].
func Header(name string) KeyFunc {
	if name == "" {
		return badKey(errors.New("Header: the name is empty"))
	}
	if textproto.CanonicalMIMEHeaderKey(name) == "Host" {
		// net/http takes it out of the other headers.
		return func(r *http.Request) (string, error) { return r.Host, nil }
	}
	return func(r *http.Request) (string, error) { return r.Header.Get(name), nil }
}

// User counts by the name that user returns for the request. Requests for which it returns ""
// share one limit. Names that are spelled differently are different keys: if your application takes
// "Ann" and "ann " for one account, return an ID or one form for both.
func User(user func(*http.Request) string) KeyFunc {
	if user == nil {
		return badKey(errors.New("User: the function is nil"))
	}
	return func(r *http.Request) (string, error) { return user(r), nil }
}

// Path counts by the path of the URL. Use it only if the handler serves few paths:
// otherwise clients evade the limit by inventing paths. In that case use [Route].
func Path() KeyFunc {
	return func(r *http.Request) (string, error) { return r.URL.Path, nil }
}

// Route counts by the pattern that http.ServeMux matched, such as "GET /items/{id}".
// Only handlers inside the mux know it. In middleware around the mux the pattern is empty
// for all requests.
func Route() KeyFunc {
	return func(r *http.Request) (string, error) { return r.Pattern, nil }
}

// Host counts by the host that a request goes to: its URL's, or its Host if the URL has none. It is
// the default of [NewTransport]. Case, a final dot and the scheme's own port make no difference.
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

// badKey returns a key function that was not made properly, because of err. It is not inlined, so
// that it always returns the same function: see faultOf.
//
//go:noinline
func badKey(err error) KeyFunc {
	return func(*http.Request) (string, error) { return "", middleware.Fault(err) }
}

var badKeyFunc = reflect.ValueOf(badKey(nil)).Pointer()

// faultOf returns the error of a key function of badKey. It never calls a function of the
// application's.
func faultOf(key KeyFunc) error {
	if key == nil || reflect.ValueOf(key).Pointer() != badKeyFunc {
		return nil
	}
	_, err := key(nil)
	return err
}
