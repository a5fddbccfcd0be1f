package adapters_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/examples/adapters"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// twoAMinute returns a limiter. The clock of its Redis stands still, so that the examples print the same figures each time.
func twoAMinute() (limiter limit.Limiter, stop func()) {
	rdb, stop := limittest.ConnectExample()
	return slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: 2, Window: time.Minute}), stop
}

// visit prints what the handler answers to each path.
func visit(handler http.Handler, paths ...string) {
	server := httptest.NewServer(handler)
	defer server.Close()
	for _, path := range paths {
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		fmt.Println(path, resp.StatusCode, resp.Header.Get("RateLimit"))
	}
}

func Example_chi() {
	limiter, stop := twoAMinute()
	defer stop()

	router := chi.NewRouter()
	router.Use(httplimit.New(limiter).Handler)
	router.Get("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })

	visit(router, "/hello", "/hello", "/hello")
	// Output:
	// /hello 200 "default";r=1;t=60
	// /hello 200 "default";r=0;t=60
	// /hello 429 "default";r=0;t=60
}

func ExampleGin() {
	limiter, stop := twoAMinute()
	defer stop()

	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.Use(adapters.Gin(httplimit.New(limiter).Handler))
	router.GET("/hello", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	visit(router, "/hello", "/hello", "/hello")
	// Output:
	// /hello 200 "default";r=1;t=60
	// /hello 200 "default";r=0;t=60
	// /hello 429 "default";r=0;t=60
}

func Example_echo() {
	limiter, stop := twoAMinute()
	defer stop()

	router := echo.New()
	router.Use(echo.WrapMiddleware(httplimit.New(limiter).Handler))
	router.GET("/hello", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })

	visit(router, "/hello", "/hello", "/hello")
	// Output:
	// /hello 200 "default";r=1;t=60
	// /hello 200 "default";r=0;t=60
	// /hello 429 "default";r=0;t=60
}

// Each route says what it allows.
func Example_declared() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	client := rratelimiter.New(rdb)
	limited := func(threshold int64, period time.Duration) func(http.Handler) http.Handler {
		log := slidinglog.New(client, slidinglog.Config{Limit: threshold, Window: period})
		return httplimit.New(log, httplimit.WithKey(httplimit.ClientIP(httplimit.ClientIPConfig{}), httplimit.Path())).Handler
	}

	hello := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }
	ofChi := chi.NewRouter()
	ofChi.With(limited(1, 30*time.Second)).Get("/chi", hello)

	gin.SetMode(gin.ReleaseMode)
	ofGin := gin.New()
	ofGin.GET("/gin", adapters.Gin(limited(1, 30*time.Second)), gin.WrapF(hello))

	ofEcho := echo.New()
	ofEcho.GET("/echo", echo.WrapHandler(http.HandlerFunc(hello)), echo.WrapMiddleware(limited(1, 30*time.Second)))

	visit(ofChi, "/chi", "/chi")
	visit(ofGin, "/gin", "/gin")
	visit(ofEcho, "/echo", "/echo")
	// Output:
	// /chi 200 "default";r=0;t=30
	// /chi 429 "default";r=0;t=30
	// /gin 200 "default";r=0;t=30
	// /gin 429 "default";r=0;t=30
	// /echo 200 "default";r=0;t=30
	// /echo 429 "default";r=0;t=30
}
