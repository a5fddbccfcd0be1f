package peer

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// idBytes is the length of the random id that Redisson gives each grant.
const idBytes = 16

// RedissonScript returns calls of the script by which Redisson takes a permit of the first limiter that
// theirs has made, seen on its way. They ask by rdb, as a Go program would.
func RedissonScript(ctx context.Context, rdb *redis.Client, theirs Peer) (load.Take, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	text, call, err := seen(ctx, rdb, theirs)
	if err != nil {
		return nil, fmt.Errorf("the script of %s: %w", Redisson, err)
	}
	sha, err := rdb.ScriptLoad(ctx, text).Result()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(call[0])
	if err != nil || len(call) != 1+n+3 || len(call[1+n+2]) != idBytes {
		return nil, fmt.Errorf("%s sends other arguments than a number of permits, the time and an id: %q", Redisson, call)
	}
	keys, permits := call[1:1+n], call[1+n]
	return func(ctx context.Context, _ int) (bool, error) {
		var id [idBytes]byte
		_, _ = rand.Read(id[:]) // never fails
		err := rdb.EvalSha(ctx, sha, keys, permits, time.Now().UnixMilli(), id[:]).Err()
		if errors.Is(err, redis.Nil) {
			return true, nil
		}
		return false, err
	}, nil
}

// seen returns the text of the script that theirs runs for one permit, and what follows the script in
// the call.
func seen(ctx context.Context, rdb *redis.Client, theirs Peer) (text string, call []string, err error) {
	conn, err := net.Dial("tcp", rdb.Options().Addr)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = conn.Close() }()
	end, _ := ctx.Deadline()
	lines := bufio.NewReader(conn)
	if err := conn.SetDeadline(end); err != nil {
		return "", nil, err
	}
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		return "", nil, err
	}
	if _, err := lines.ReadString('\n'); err != nil { // +OK
		return "", nil, err
	}
	// The server does not know the script any more, so its text is sent.
	if err := rdb.ScriptFlush(ctx).Err(); err != nil {
		return "", nil, err
	}
	if _, err := theirs.Each(ctx); err != nil {
		return "", nil, err
	}
	for text == "" || call == nil {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		ran, err := redistest.ParseMonitor(line)
		if err != nil {
			return "", nil, err
		}
		switch words := ran.Args; {
		case len(words) < 3:
		case words[0] == "eval":
			text, call = words[1], words[2:]
		case words[0] == "evalsha":
			call = words[2:]
		case words[0] == "script" && strings.EqualFold(words[1], "load"):
			text = words[2]
		}
	}
	return text, call, nil
}
