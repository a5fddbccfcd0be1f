package httplimit

import "net/http"

// IsPreflight reports whether a browser asks by this request if it may send another: it is the preflight
// of CORS, an OPTIONS request with the headers Origin and Access-Control-Request-Method. Use it
// with [WithSkip] if the handler answers preflights, so that they are not counted:
//
//	httplimit.New(limiter, httplimit.WithSkip(httplimit.IsPreflight))
//
// It is better to wrap the middleware of CORS around this one: preflights then do not reach this one, and
// scripts can read a 429. docs/http.md says which headers to expose.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}
