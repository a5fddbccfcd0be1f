package grpclimit_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// begun are the prefixes under which budgets were told that they are asked.
var begun sync.Map

func init() {
	observe.Begins = func(limiter limit.Limiter, prefix string) {
		if b, ok := limiter.(*budget); ok {
			begun.Store(b, prefix)
		}
	}
}

// A limiter learns how its keys begin, so that a Client can tell of limiters whose keys
// meet.
func TestLimiterLearnsOfThePrefix(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string][]grpclimit.Option{
		"grpc:": nil, "api:": {grpclimit.WithPrefix("api:")}, "api:{": {grpclimit.WithPrefix("api:"), grpclimit.WithHashTag()},
	} {
		for _, made := range []func(b *budget){
			func(b *budget) { grpclimit.UnaryServerInterceptor(b, opts...) },
			func(b *budget) { grpclimit.StreamServerInterceptor(b, opts...) },
			func(b *budget) { grpclimit.UnaryClientInterceptor(b, opts...) },
		} {
			b := &budget{}
			made(b)
			prefix, _ := begun.Load(b)
			assert.Equal(t, want, prefix)
		}
	}
}
