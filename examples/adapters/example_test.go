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
