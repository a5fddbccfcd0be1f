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
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin makes a gin handler of net/http middleware. If the middleware does not
// call what it wraps, because it has answered by itself, the handlers that follow
// are not called either. They get the request as the middleware passes it on; its
// Pattern is gin's full path meanwhile, so that httplimit.Route works. Handlers
// before find theirs as they left it.
//
// The ResponseWriter stays gin's own: this is for middleware that passes it on as it is, as
// httplimit's does, and not for middleware that wraps it, for example to compress.
func Gin(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		before, pattern := c.Request, c.Request.Pattern
		defer func() { c.Request, before.Pattern = before, pattern }()
		passed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r // the middleware may have replaced it
			c.Next()
		})
		before.Pattern = c.FullPath()
		middleware(next).ServeHTTP(c.Writer, before)
		if !passed {
			c.Abort()
		}
	}
}
