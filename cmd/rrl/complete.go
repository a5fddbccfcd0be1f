package main

import (
	"context"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

const (
	// completeTime is how long the shell waits for names, at most.
	completeTime = 700 * time.Millisecond
	// completeNames is how many of them it gets.
	completeNames = 200
)

// limiterNames completes the first argument by the names of limiters. With many keys, or no
// server, the shell gets the names found in time.
func (a *app) limiterNames(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), a.completeTime)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- a.findNames(ctx, toComplete) }()
	select {
	case names := <-found:
		return names, cobra.ShellCompDirectiveNoFileComp
	case <-ctx.Done():
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// findNames returns the names that begin with prefix, sorted.
func (a *app) findNames(ctx context.Context, prefix string) []string {
	a.connect.Timeout = min(a.connect.Timeout, a.completeTime)
	conn, err := a.connect.Open(ctx)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	w := newWalk(conn, look.EscapeGlob(prefix)+"*")
	// The walk ends early, so that what it found by then is still in time.
	soon, cancel := context.WithTimeout(ctx, a.completeTime*2/3)
	defer cancel()
	limiters, _ := w.run(soon)
	names := make([]string, 0, len(limiters))
	for _, l := range limiters[:min(len(limiters), completeNames)] {
		// A name with a line break would become several, and shells print control characters as
		// they are.
		if !strings.ContainsFunc(l.Name, unicode.IsControl) {
			names = append(names, l.Name)
		}
	}
	return names
}

// noFiles keeps commands from offering file names if they take something else.
func noFiles(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		noFiles(c)
	}
}

// completed completes a command's first argument with limiters' names.
func (a *app) completed(cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction = a.limiterNames
	return cmd
}
