package adapters_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/examples/adapters"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

type middleware = func(http.Handler) http.Handler

// frameworks make a router of each framework, with a middleware around one route,
// "/items/{id}", for every method.
var frameworks = map[string]func(mw middleware, handler http.HandlerFunc) http.Handler{
	"chi": func(mw middleware, handler http.HandlerFunc) http.Handler {
		router := chi.NewRouter()
		router.With(mw).HandleFunc("/items/{id}", handler)
		return router
	},
	"gin": func(mw middleware, handler http.HandlerFunc) http.Handler {
		router := gin.New()
		router.Use(adapters.Gin(mw))
		router.Any("/items/:id", gin.WrapF(handler))
		return router
	},
	"echo": func(mw middleware, handler http.HandlerFunc) http.Handler {
		router := echo.New()
		router.Use(echo.WrapMiddleware(mw))
		router.Any("/items/:id", echo.WrapHandler(handler))
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

func TestLimitInEachFramework(t *testing.T) {
	t.Parallel()
	for name, framework := range frameworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handled atomic.Int64
			server := httptest.NewServer(framework(httplimit.New(httplimit.Local(2, time.Hour)),
				func(w http.ResponseWriter, _ *http.Request) {
					handled.Add(1)
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, "made")
				}))
			t.Cleanup(server.Close)
			for i := range 2 {
				got := send(t, server, http.MethodPost)
				assert.Equal(t, http.StatusCreated, got.status)
				assert.Equal(t, "made", got.body)
				assert.Equal(t, `"default";q=2;w=3600`, got.header.Get("RateLimit-Policy"))
				assert.Regexp(t, `^"default";r=`+strconv.Itoa(1-i)+`;t=\d+$`, got.header.Get("RateLimit"))
				assert.Empty(t, got.header.Get("Retry-After"))
			}
			for _, method := range []string{http.MethodPost, http.MethodHead} {
				got := send(t, server, method)
				assert.Equal(t, http.StatusTooManyRequests, got.status)
				assert.Equal(t, `"default";q=2;w=3600`, got.header.Get("RateLimit-Policy"))
				assert.Equal(t, `"default";r=0;t=`+got.header.Get("Retry-After"), got.header.Get("RateLimit"))
				seconds, err := strconv.Atoi(got.header.Get("Retry-After"))
				require.NoError(t, err)
				assert.Positive(t, seconds)
				assert.LessOrEqual(t, seconds, 3600)
				assert.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
				if method == http.MethodHead {
					assert.Empty(t, got.body)
					continue
				}
				var problem struct {
					Type     string
					Status   int
					Violated []string `json:"violated-policies"`
				}
				require.NoError(t, json.Unmarshal([]byte(got.body), &problem), got.body)
				assert.Equal(t, "https://iana.org/assignments/http-problem-types#quota-exceeded", problem.Type)
				assert.Equal(t, http.StatusTooManyRequests, problem.Status)
				assert.Equal(t, []string{"default"}, problem.Violated)
			}
			assert.EqualValues(t, 2, handled.Load())
		})
	}
}

// down is a limiter whose Redis is down.
type down struct{}

func (down) Take(context.Context, string, int64) (limit.Decision, error) {
	return limit.Decision{}, io.ErrUnexpectedEOF
}

func TestFailureInEachFramework(t *testing.T) {
	t.Parallel()
	quiet := httplimit.WithErrorHandler(func(*http.Request, error) {})
	for name, framework := range frameworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(framework(httplimit.New(down{}, quiet),
				func(http.ResponseWriter, *http.Request) { assert.Fail(t, "the handler was called") }))
			t.Cleanup(server.Close)
			got := send(t, server, http.MethodGet)
			assert.Equal(t, http.StatusServiceUnavailable, got.status)
			assert.NotEmpty(t, got.header.Get("Retry-After"))
		})
	}
}

type seen struct{}

// What a middleware puts into the request reaches the handler.
func TestRequestOfTheMiddlewareReachesTheHandler(t *testing.T) {
	t.Parallel()
	mw := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), seen{}, "yes")))
		})
	}
	for name, framework := range frameworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(framework(mw, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Context().Value(seen{}).(string))
			}))
			t.Cleanup(server.Close)
			assert.Equal(t, "yes", send(t, server, http.MethodGet).body)
		})
	}
}

// What follows in gin's chain runs once, or not at all.
func TestGinChain(t *testing.T) {
	t.Parallel()
	var steps []string
	step := func(name string) gin.HandlerFunc {
		return func(c *gin.Context) {
			steps = append(steps, name)
			c.Next()
			steps = append(steps, "/"+name)
		}
	}
	router := gin.New()
	router.Use(step("before"), adapters.Gin(httplimit.New(httplimit.Local(1, time.Hour))), step("after"))
	router.GET("/items/:id", func(*gin.Context) { steps = append(steps, "handler") })
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)

	assert.Equal(t, http.StatusOK, send(t, server, http.MethodGet).status)
	assert.Equal(t, []string{"before", "after", "handler", "/after", "/before"}, steps)
	steps = nil
	assert.Equal(t, http.StatusTooManyRequests, send(t, server, http.MethodGet).status)
	assert.Equal(t, []string{"before", "/before"}, steps)
}

// Handlers before the adapter find the request as it was.
func TestGinRequestIsRestored(t *testing.T) {
	t.Parallel()
	type note struct{}
	mw := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), note{}, "changed")))
		})
	}
	router := gin.New()
	router.Use(func(c *gin.Context) {
		before := c.Request
		c.Next()
		assert.Same(t, before, c.Request)
		assert.Empty(t, c.Request.Pattern)
	}, adapters.Gin(mw))
	router.GET("/items/:id", func(c *gin.Context) {
		assert.Equal(t, "changed", c.Request.Context().Value(note{}))
		assert.Equal(t, "/items/:id", c.Request.Pattern)
	})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	assert.Equal(t, http.StatusOK, send(t, server, http.MethodGet).status)
}

// Rates declared beside the methods of one path do not share keys, whatever a
// framework calls the route.
func TestDeclaredRatesInEachFramework(t *testing.T) {
	t.Parallel()
	ok := func(http.ResponseWriter, *http.Request) {}
	for name, build := range map[string]func(get, post middleware) http.Handler{
		"net/http": func(get, post middleware) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("GET /items/{id}", get(http.HandlerFunc(ok)))
			mux.Handle("POST /items/{id}", post(http.HandlerFunc(ok)))
			return mux
		},
		"chi": func(get, post middleware) http.Handler {
			router := chi.NewRouter()
			router.With(get).Get("/items/{id}", ok)
			router.With(post).Post("/items/{id}", ok)
			return router
		},
		"gin": func(get, post middleware) http.Handler {
			router := gin.New()
			router.GET("/items/:id", adapters.Gin(get), gin.WrapF(ok))
			router.POST("/items/:id", adapters.Gin(post), gin.WrapF(ok))
			return router
		},
		"echo": func(get, post middleware) http.Handler {
			router := echo.New()
			router.GET("/items/:id", echo.WrapHandler(http.HandlerFunc(ok)), echo.WrapMiddleware(get))
			router.POST("/items/:id", echo.WrapHandler(http.HandlerFunc(ok)), echo.WrapMiddleware(post))
			return router
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
					return slidinglog.New(rdb, slidinglog.Config{Limit: r.Threshold, Window: r.Period})
				})
				handler := build(rate(httplimit.Rate{Period: time.Hour, Threshold: 2}), rate(httplimit.Rate{Period: time.Second, Threshold: 100}))
				passed := 0
				for range 10 {
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/items/7", http.NoBody))
					if w.Code == http.StatusOK {
						passed++
					}
					time.Sleep(2 * time.Second)
					w = httptest.NewRecorder()
					handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/items/7", http.NoBody))
					assert.Equal(t, http.StatusOK, w.Code)
				}
				assert.Equal(t, 2, passed)
			})
		})
	}
}

// httplimit.Route knows the routes of chi, by With, and of gin.
func TestRoute(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"chi": "/items/{id}", "gin": "/items/:id"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var route string
			mw := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					route, _ = httplimit.Route()(r)
					next.ServeHTTP(w, r)
				})
			}
			server := httptest.NewServer(frameworks[name](mw, func(http.ResponseWriter, *http.Request) {}))
			t.Cleanup(server.Close)
			send(t, server, http.MethodGet)
			assert.Equal(t, want, route)
		})
	}
}
