package limitertest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/lua"
)

// A Mutant is a fault put into scripts, for tests of tests: in Script, or in all that
// have it where that is nil, the text Old becomes New.
type Mutant struct {
	Script   *lua.Script
	Old, New string
}

// Mutation returns what has a client run the mutant wherever it means the script.
func (m Mutant) Mutation(t testing.TB) Mutation {
	t.Helper()
	changed := Mutation{}
	for _, s := range lua.All() {
		if m.Script != nil && m.Script != s || m.Script == nil && !strings.Contains(s.Source, m.Old) {
			continue
		}
		require.Equal(t, 1, strings.Count(s.Source, m.Old), "how often script %s has the text: %s", s.Name, m.Old)
		source := strings.Replace(s.Source, m.Old, m.New, 1)
		sum := sha1.Sum([]byte(source))
		changed[s.Source], changed[s.SHA] = source, hex.EncodeToString(sum[:])
	}
	require.NotEmpty(t, changed, "no script has the text: %s", m.Old)
	return changed
}

// Mutation is a hook that sends other scripts than it is given, by source and by SHA.
type Mutation map[string]string

func (m Mutation) change(cmd redis.Cmder) {
	if args := cmd.Args(); len(args) > 1 && (cmd.Name() == "evalsha" || cmd.Name() == "eval") {
		if other, ok := m[args[1].(string)]; ok {
			args[1] = other
		}
	}
}

// DialHook changes nothing.
func (m Mutation) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook changes the script of a command.
func (m Mutation) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.change(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook changes those of a pipeline.
func (m Mutation) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			m.change(cmd)
		}
		return next(ctx, cmds)
	}
}
