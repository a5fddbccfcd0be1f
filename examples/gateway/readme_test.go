package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// curl does what that command does with the few flags that README.md uses, and
// returns what it would print.
func (s *site) curl(words []string) (string, error) {
	header, flags := http.Header{}, flag.NewFlagSet("curl", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	method, body := flags.String("X", "", ""), flags.String("d", "", "")
	shown := flags.Bool("i", false, "")
	flags.Func("H", "", func(text string) error {
		name, value, _ := strings.Cut(text, ": ")
		header.Add(name, value)
		return nil
	})
	if err := flags.Parse(words); err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(flags.Arg(0), "http://127.0.0.1:8080")
	if !ok || flags.NArg() != 1 {
		return "", fmt.Errorf("curl %q", words)
	}
	if *body != "" {
		*method = cmp.Or(*method, http.MethodPost)
	}
	got, err := s.try(cmp.Or(*method, http.MethodGet)+" "+path, *body, header)
	if err != nil || !*shown {
		return got.body, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", got.Proto, got.Status)
	if err := got.Header.Write(&b); err != nil {
		return "", err
	}
	return b.String() + "\n" + got.body, nil
}

var (
	consoles = regexp.MustCompile("(?s)```console\n(.*?)```")
	commands = regexp.MustCompile(`(?m)^\$ `)
	quoted   = regexp.MustCompile(`'[^']*'|\S+`)
	waits    = regexp.MustCompile(`t=\d+|Retry-After: \d+|in \d+ s`)
)

// TestReadmeShowsWhatHappens runs the commands in README.md, in their order, and
// looks for each line that they are said to print. How long to wait may differ.
func TestReadmeShowsWhatHappens(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	t.Run("in the process", func(t *testing.T) {
		t.Parallel()
		tryReadme(t, string(text), func() *site { return serve(t, 600) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartRedis(t)
		tryReadme(t, string(text), func() *site {
			require.NoError(t, server.Client(t, nil).FlushAll(t.Context()).Err())
			return serve(t, 600, "--redis", redisURL(server.Addr()))
		})
	})
}

// tryReadme does so until it has taken less than a window: what it sees is otherwise once
// that is over, and a busy machine must not decide a test.
func tryReadme(t *testing.T, text string, start func() *site) {
	t.Helper()
	for {
		began, s := time.Now(), start()
		err := s.runConsoles(text)
		if time.Since(began) > 30*time.Second {
			t.Logf("it took %v, again: %v", time.Since(began), err)
			continue
		}
		require.NoError(t, err)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "level=") {
				assert.Contains(t, s.logged.String(), strings.TrimSpace(line))
			}
		}
		return
	}
}

// runConsoles runs all commands of the text, and returns what is wrong with the first
// that prints something else.
func (s *site) runConsoles(text string) error {
	run := 0
	for _, console := range consoles.FindAllStringSubmatch(text, -1) {
		for _, command := range commands.Split(console[1], -1)[1:] {
			line, said, _ := strings.Cut(command, "\n")
			words := quoted.FindAllString(line, -1)
			for i, word := range words {
				words[i] = strings.Trim(word, "'")
			}
			if words[0] != "curl" {
				return fmt.Errorf("%s is no curl", line)
			}
			got, err := s.curl(words[1:])
			if err != nil {
				return err
			}
			got = strings.ReplaceAll(waits.ReplaceAllString(got, "N"), "\r", "")
			for want := range strings.Lines(said) {
				if !strings.Contains("\n"+got+"\n", "\n"+strings.TrimSuffix(waits.ReplaceAllString(want, "N"), "\n")+"\n") {
					return fmt.Errorf("%s prints %s and not %s", line, got, want)
				}
			}
			run++
		}
	}
	if run < 10 {
		return fmt.Errorf("only %d commands", run)
	}
	return nil
}
