package adapters_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/examples/adapters"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func ExampleGin() {
	rdb, stop := limittest.ConnectExample() // whose clock stands still
	defer stop()
	limiter := slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: 2, Window: time.Minute})

	router := gin.New()
	router.Use(adapters.Gin(httplimit.New(limiter, httplimit.WithTimeout(time.Minute)).Handler))
	router.GET("/hello", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	for range 3 {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/hello", http.NoBody))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "default";r=1;t=60
	// 200 "default";r=0;t=60
	// 429 "default";r=0;t=60
}

type middleware = func(http.Handler) http.Handler

// frameworks make a router of each framework, with a middleware around one route, "/items/{id}".
var frameworks = map[string]func(get middleware, handler http.HandlerFunc) http.Handler{
	"net/http": func(get middleware, handler http.HandlerFunc) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("GET /items/{id}", get(handler))
		return mux
	},
	"chi": func(get middleware, handler http.HandlerFunc) http.Handler {
		router := chi.NewRouter()
		router.With(get).Get("/items/{id}", handler)
		router.With(get).Head("/items/{id}", handler)
		return router
	},
	"gin": func(get middleware, handler http.HandlerFunc) http.Handler {
		router := gin.New()
		router.Match([]string{http.MethodGet, http.MethodHead}, "/items/:id", adapters.Gin(get), gin.WrapF(handler))
		return router
	},
	"echo": func(get middleware, handler http.HandlerFunc) http.Handler {
		router := echo.New()
		router.Match([]string{http.MethodGet, http.MethodHead}, "/items/:id", echo.WrapHandler(handler), echo.WrapMiddleware(get))
		return router
	},
}

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	m.Run()
}

type answer struct {
	status int
	header http.Header
	body   string
}

func send(t *testing.T, server *httptest.Server, method string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/items/7", http.NoBody)
	require.NoError(t, err)
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	defer func() { assert.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, resp.Header, string(body)}
}

type seen struct{}

// noting puts the route that httplimit.Route knows into the request.
func noting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, _ := httplimit.Route()(r)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), seen{}, "at "+route)))
	})
}

// What a middleware puts into the request reaches the handler. It knows the routes of chi, by With, and of gin.
func TestLimitInEachFramework(t *testing.T) {
	t.Parallel()
	routes := map[string]string{"net/http": "GET /items/{id}", "chi": "/items/{id}", "gin": "/items/:id"}
	for name, framework := range frameworks {
		limits := httplimit.New(httplimit.Local(2, time.Hour), httplimit.WithTimeout(time.Minute))
		server := httptest.NewServer(framework(func(next http.Handler) http.Handler { return noting(limits.Handler(next)) },
			func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, r.Context().Value(seen{}).(string))
			}))
		t.Cleanup(server.Close)
		for _, rest := range []string{`1;t=\d+$`, `0;t=\d+$`} {
			got := send(t, server, http.MethodGet)
			assert.Equal(t, http.StatusCreated, got.status)
			assert.Equal(t, "at "+routes[name], got.body)
			assert.Equal(t, `"default";q=2;w=3600`, got.header.Get("RateLimit-Policy"))
			assert.Regexp(t, `^"default";r=`+rest, got.header.Get("RateLimit"))
		}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := send(t, server, method)
			assert.Equal(t, http.StatusTooManyRequests, got.status)
			assert.Equal(t, `"default";r=0;t=`+got.header.Get("Retry-After"), got.header.Get("RateLimit"))
			assert.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
			assert.Equal(t, method == http.MethodGet, json.Valid([]byte(got.body)), got.body)
		}
	}
}

// charging tells the status by which a request is charged.
func charging(charged chan int) middleware {
	policy := httplimit.Policy{Limiter: &middlewaretest.Reserver{Fake: middlewaretest.Grants()}}
	policy.Charge = func(_ *http.Request, status int) int64 {
		charged <- status
		return int64(status)
	}
	return httplimit.New(policy, httplimit.WithTimeout(time.Minute)).Handler
}

// A policy's Charge gets the status that the client gets, however it is written.
func TestChargeInEachFramework(t *testing.T) {
	t.Parallel()
	charged := make(chan int, 1)
	for name, handler := range map[string]http.HandlerFunc{
		"error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"flush": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			assert.NoError(t, http.NewResponseController(w).Flush())
			w.WriteHeader(http.StatusTeapot)
		},
		"taken over": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
			_, _ = io.WriteString(conn, "HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for framework, router := range frameworks {
				limits := charging(charged)
				server := httptest.NewServer(router(limits, handler))
				status := send(t, server, http.MethodGet).status
				server.Close()
				if name == "taken over" {
					assert.Equal(t, http.StatusTeapot, status, framework)
					status = http.StatusSwitchingProtocols
				}
				assert.Equal(t, status, <-charged, framework)
			}
		})
	}
}

// The same for what only gin does. What comes before in its chain may still write the body.
func TestChargeByGin(t *testing.T) {
	t.Parallel()
	charged := make(chan int, 1)
	for want, handler := range map[int]gin.HandlerFunc{
		http.StatusOK:           func(*gin.Context) {},
		http.StatusCreated:      func(c *gin.Context) { c.JSON(http.StatusCreated, "made") },
		http.StatusUnauthorized: func(c *gin.Context) { c.AbortWithStatus(http.StatusUnauthorized) },
		http.StatusTeapot:       func(c *gin.Context) { c.Status(http.StatusTeapot) },
		http.StatusAccepted: func(c *gin.Context) {
			c.Status(http.StatusAccepted)
			c.Stream(func(io.Writer) bool { return false })
		},
	} {
		router := gin.New()
		router.Use(func(c *gin.Context) {
			c.Next()
			assert.Equal(t, want, c.Writer.Status())
			if !c.Writer.Written() {
				c.String(c.Writer.Status(), "before")
			}
		}, adapters.Gin(charging(charged)), adapters.Gin(noting))
		router.GET("/items/:id", handler)
		server := httptest.NewServer(router)
		got := send(t, server, http.MethodGet)
		server.Close()
		assert.Equal(t, want, got.status)
		assert.Equal(t, want, <-charged)
		if want == http.StatusOK || want == http.StatusTeapot {
			assert.Equal(t, "before", got.body)
			assert.Contains(t, got.header.Get("Content-Type"), "text/plain")
		}
	}
}

// What follows in gin's chain runs once, or not at all, and what comes before finds the request as it was.
func TestGinChain(t *testing.T) {
	t.Parallel()
	var steps []string
	step := func(name string) gin.HandlerFunc {
		return func(c *gin.Context) {
			before, route := c.Request, c.Request.Pattern
			steps = append(steps, name)
			c.Next()
			steps = append(steps, "/"+name)
			assert.Same(t, before, c.Request)
			assert.Equal(t, route, before.Pattern)
		}
	}
	router := gin.New()
	router.Use(step("before"), adapters.Gin(httplimit.New(httplimit.Local(1, time.Hour)).Handler), adapters.Gin(noting), step("after"))
	router.GET("/items/:id", func(c *gin.Context) {
		steps = append(steps, "handler")
		assert.Equal(t, "at /items/:id", c.Request.Context().Value(seen{}))
		assert.Equal(t, "/items/:id", c.Request.Pattern)
	})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)

	assert.Equal(t, http.StatusOK, send(t, server, http.MethodGet).status)
	assert.Equal(t, []string{"before", "after", "handler", "/after", "/before"}, steps)
	steps = nil
	assert.Equal(t, http.StatusTooManyRequests, send(t, server, http.MethodGet).status)
	assert.Equal(t, []string{"before", "/before"}, steps)
}
