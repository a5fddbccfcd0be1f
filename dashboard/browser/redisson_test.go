package browser_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// java is a Redisson in a JVM of its own, of the newest release that compat_test has.
type java struct {
	t   testing.TB
	jvm *javadriver.Process
}

func startJava(t testing.TB, url string) java {
	t.Helper()
	jvm, err := javadriver.StartRedisson("../../compat_test/java", "4.7.0")
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	require.NoError(t, err)
	t.Cleanup(jvm.Close)
	j := java{t, jvm}
	_, err = javadriver.Call[string](t.Context(), jvm, "open", "shop", url)
	require.NoError(t, err)
	return j
}

// call has Redisson call a method of the limiter.
func (j java) call(method, limiter string, args ...any) string {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Minute)
	defer cancel()
	answer, err := javadriver.Call[any](ctx, j.jvm, method, append([]any{"shop", limiter}, args...)...)
	require.NoError(j.t, err, method)
	return fmt.Sprint(answer)
}

// TestBesideRedisson: the page shows what a Redisson does, and it goes by what is
// changed on the page.
func TestBesideRedisson(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	j := startJava(t, s.server.URL())
	require.Equal(t, "true", j.call("trySetRate", "orders", "OVERALL", 100, 60_000, 0))
	require.Equal(t, "true", j.call("tryAcquire", "orders", 30))

	p := openLive(t, s.url, look{})
	p.unlock(token)
	p.until(one(cell("orders", "free")) + `?.innerText === '70'`)
	p.goTo("#/limiter/" + id("orders"))
	p.until(seen("#holders tbody tr"))
	assert.Contains(t, p.text("#holders"), "Redisson")

	p.change("rate")
	p.fill(field("rate"), "40")
	p.review()
	p.confirm()
	assert.Equal(t, "10", j.call("availablePermits", "orders"))
	assert.Equal(t, "false", j.call("tryAcquire", "orders", 11))
	assert.Equal(t, "true", j.call("tryAcquire", "orders", 10))
	p.until(one(`[data-fact="free"]`) + `.innerText === '0 of 40'`)

	p.change("release")
	p.fill(field("permits"), "25")
	p.review()
	p.confirm()
	free, err := strconv.Atoi(j.call("availablePermits", "orders"))
	require.NoError(t, err)
	assert.Equal(t, 25, free)

	p.changeRate("orders", "55")
	assert.Equal(t, "40", j.call("availablePermits", "orders"))
	j.call("setRate", "orders", "OVERALL", 12, 60_000, 0)
	p.until(one(`[data-fact="rate"]`) + `.innerText.includes('12')`)

	p.change("delete")
	p.review()
	p.confirm()
	assert.Equal(t, "false", j.call("isExists", "orders"))
}
