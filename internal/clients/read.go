package clients

import (
	"context"
	"slices"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Known reads the names that are known now, from the master.
func Known(ctx context.Context, from script.Runner) (Names, error) {
	entries, _, err := list(lua.Clients, most, func(c script.Call) (any, error) {
		c.Keys = script.KeysOf(Key)
		return from.Run(ctx, &c)
	})
	slices.Reverse(entries)
	return newNames(entries), err
}

// maxMembers is how many members are looked at.
const maxMembers = 20_000

// InUse adds up the members in use of a limiter's pair, the newest maxMembers of them,
// and tells whether these are all. read makes a call on the limiter's keys.
func InUse(names Names, read func(script.Call) (any, error)) (shares []Share, whole bool, err error) {
	members, whole, err := list(lua.InUse, maxMembers, read)
	if err != nil {
		return nil, false, err
	}
	tally, seen := NewTally(names), make(map[string]bool, len(members))
	for _, packed := range members {
		m, err := codec.Parse(packed)
		if err != nil {
			whole = false
			continue
		}
		if !seen[packed] {
			tally.Add(m)
		}
		seen[packed] = true
	}
	return tally.Shares(), whole, nil
}

// list makes a call that lists texts, until it has them all or as many as are wanted.
func list(s *lua.Script, most int, run func(script.Call) (any, error)) (texts []string, whole bool, err error) {
	whole = true
	add := func(all []any) {
		for _, one := range all {
			if text, ok := one.(string); ok {
				texts = append(texts, text)
			}
		}
	}
	reply, err := run(script.Call{
		Script: s, Args: script.Paged{}, Repeat: true, Reads: true,
		Continued: func(rest []any) error {
			add(rest)
			return nil
		},
		Stop: func(string) bool {
			whole = len(texts) < most
			return !whole
		},
	})
	if last, ok := reply.([]any); ok && err == nil && whole && len(last) > 2 {
		add(last[2:])
	}
	return texts, whole, err
}
