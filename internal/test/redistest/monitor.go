package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Ran is a command that a server ran, as MONITOR shows it.
type Ran struct {
	At       time.Time // the server's, to the microsecond
	InScript bool      // a script called it
	Args     []string  // the name in lower case, then its arguments
}

// Monitor calls each for every command that the server at addr runs, one at a time and
// in order. The function it returns ends that, once each has seen all that came before.
func Monitor(t testing.TB, addr string, each func(Ran)) (stop func()) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	said, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", said)

	end := Name(t) + " ends"
	ended := make(chan error, 1)
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				ended <- err
				return
			}
			ran, err := parseMonitor(line)
			switch {
			case err != nil:
				ended <- err
				return
			case len(ran.Args) == 2 && ran.Args[1] == end:
				ended <- nil
				return
			}
			each(ran)
		}
	}()
	return func() {
		t.Helper()
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = rdb.Close() }()
		require.NoError(t, rdb.Echo(t.Context(), end).Err())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		require.NoError(t, <-ended)
	}
}

// ScriptCalls watches the scripts of the server at addr. The function it returns ends
// that and returns the commands of each script call, as [Ran.Args].
func ScriptCalls(t testing.TB, addr string) (stop func() [][][]string) {
	t.Helper()
	calls := [][][]string{nil}
	end := Monitor(t, addr, func(ran Ran) {
		if last := len(calls) - 1; ran.InScript {
			calls[last] = append(calls[last], ran.Args)
		} else if calls[last] != nil {
			calls = append(calls, nil)
		}
	})
	return func() [][][]string {
		t.Helper()
		end()
		return calls
	}
}

// A line of MONITOR begins with the time, and the database and the client, or "lua", in
// brackets. The quoted arguments follow.
var monitored = regexp.MustCompile(`^\+(\d+)\.(\d+) \[\d+ (.*?)\] `)

func parseMonitor(line string) (Ran, error) {
	parts := monitored.FindStringSubmatch(line)
	if parts == nil {
		return Ran{}, fmt.Errorf("no line of MONITOR: %q", line)
	}
	s, secondsErr := strconv.ParseInt(parts[1], 10, 64)
	us, microsErr := strconv.ParseInt(parts[2], 10, 64)
	err := errors.Join(secondsErr, microsErr)
	ran := Ran{At: time.Unix(s, us*1000), InScript: parts[3] == "lua"}
	for rest := strings.TrimSpace(line[len(parts[0]):]); rest != "" && err == nil; {
		var quoted, arg string
		if quoted, err = strconv.QuotedPrefix(rest); err == nil {
			arg, err = strconv.Unquote(quoted)
		}
		ran.Args = append(ran.Args, arg)
		rest = strings.TrimSpace(rest[len(quoted):])
	}
	if len(ran.Args) > 0 {
		ran.Args[0] = strings.ToLower(ran.Args[0])
	}
	return ran, err
}
