package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/lua"
)

// maxJoint is how many calls are made as one, so that no script runs for long.
const maxJoint = 64

// Joint is how a call of a script can be made together with such calls for other
// keys, as one call of another script. That takes the keys of all, how many of
// the calls are Early, and the Args of each, the Early ones first. It answers
// each with an integer: what the call itself would have answered, or 0 where it
// did nothing and the call must be made.
type Joint struct {
	Script *lua.Script
	Args   [2]any
	Early  bool
}

// errUndecided is for a call that was not made, and is to be made by itself.
var errUndecided = errors.New("not decided jointly")

// group is calls that are made as one.
type group []*passenger

// join sorts out which calls are made as one.
func join(all []*passenger) (apart []*passenger, groups []group) {
	var joint group
	for _, p := range all {
		if p.joint != nil {
			joint = append(joint, p)
		} else {
			apart = append(apart, p)
		}
	}
	if len(joint) < 2 {
		return all, nil
	}
	slices.SortStableFunc(joint, func(a, b *passenger) int { return cmp.Compare(a.place(), b.place()) })
	for g := range slices.Chunk(joint, maxJoint) {
		groups = append(groups, g)
	}
	return apart, groups
}

func (p *passenger) place() int {
	if p.joint.Early {
		return 0
	}
	return 1
}

// command makes the one call.
func (g group) command(ctx context.Context) command {
	early, count := 0, 0
	for _, p := range g {
		early += 1 - p.place()
		count += len(p.keys.names)
	}
	words := make([]any, 0, 4+count+2*len(g))
	words = append(words, "evalsha", shaOf(g[0].joint.Script), count)
	for _, p := range g {
		words = append(words, p.keys.args[1:]...)
	}
	words = append(words, early)
	for _, p := range g {
		words = append(words, p.joint.Args[:]...)
	}
	return newCommand(ctx, words, 3)
}

// tell gives each call its part of the answer. What befell the one call must not
// pass for an answer to any: it is in doubt then whether each has run.
func (s *Sender) tell(ctx context.Context, g group, cmd command) {
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		words := slices.Clone(cmd.Args())
		words[0], words[1] = "eval", g[0].joint.Script.Source
		cmd = newCommand(ctx, words, 3)
		_ = s.rdb.Process(ctx, cmd)
	}
	err := cmd.Err()
	answers, _ := cmd.Val().([]any)
	switch {
	case err == nil && len(answers) != len(g):
		err = fmt.Errorf("unexpected answer of a script: %v", cmd.Val())
	case err == nil:
	case notRun(err):
		err = errUndecided
	case isAnswer(err):
		s.apart.Store(true)
		err = fmt.Errorf("several limiters in one call: %v", err) //nolint:errorlint // see above
		switch Code(cmd.Err()) {
		case "CROSSSLOT", "MOVED", "ASK", "NOPERM":
			err = errUndecided
		}
	}
	for i, p := range g {
		switch {
		case err != nil:
			p.cmd.SetErr(err)
		case answers[i] == int64(0):
			p.cmd.SetErr(errUndecided)
		default:
			p.cmd.SetVal(answers[i])
		}
	}
}
