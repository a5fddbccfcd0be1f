// Package adapters shows httplimit in front of chi, gin and echo.
//
// The method Handler of what httplimit.New returns is middleware of net/http,
// func(http.Handler) http.Handler. chi takes such middleware directly, with Use or With. echo has echo.WrapMiddleware for it. gin has nothing,
// so this package has [Gin], to be copied.
//
// The limit is the outermost thing that should happen to a request: put it before
// what costs something, and after what says who the user is. What rewrites the
// client's address from headers that anybody can send, as chi's RealIP does, must
// not come before it: httplimit.ClientIP reads such headers itself, from trusted
// proxies only.
package adapters

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin makes a gin handler of net/http middleware. If the middleware does not
// call what it wraps, because it has answered by itself, the handlers that follow
// are not called either. They get the request as the middleware passes it on; its
// Pattern is gin's full path meanwhile, so that httplimit.Route works. Handlers
// before find theirs as they left it.
//
// What they write goes through the ResponseWriter that the middleware passes on: that of a httplimit.Policy with Charge
// notes the status.
func Gin(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		before, pattern, own := c.Request, c.Request.Pattern, c.Writer
		defer func() { c.Request, before.Pattern, c.Writer = before, pattern, own }()
		passed := false
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r // the middleware may have replaced it
			out := &writer{ResponseWriter: own, through: w}
			c.Writer = out
			c.Next()
			if own.Status() != http.StatusOK {
				out.tell() // by c.Status: gin sends it later
			}
		})
		before.Pattern = c.FullPath()
		middleware(next).ServeHTTP(own, before)
		if !passed {
			c.Abort()
		}
	}
}

// writer is gin's ResponseWriter whose writes go through that of a middleware around it.
type writer struct {
	gin.ResponseWriter

	through http.ResponseWriter
	told    bool
}

// tell lets through know the status that gin has noted.
func (w *writer) tell() {
	if !w.told {
		w.told = true
		w.through.WriteHeader(w.Status())
	}
}

func (w *writer) WriteHeaderNow() {
	w.tell()
	w.ResponseWriter.WriteHeaderNow()
}

func (w *writer) Write(p []byte) (int, error) {
	w.tell()
	return w.through.Write(p)
}

func (w *writer) WriteString(s string) (int, error) {
	w.tell()
	return io.WriteString(w.through, s)
}

func (w *writer) Flush() {
	w.tell()
	_ = http.NewResponseController(w.through).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.through).Hijack()
}

// Unwrap returns the ResponseWriter of the middleware, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.through }
