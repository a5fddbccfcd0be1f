// Package redistest gives tests the servers they need, each by one call: [Mini] a miniredis that follows the fake clock of
// testing/synctest, [Redis] a client of the real server that all tests of a binary share, [StartRedis] a real server of one's
// own, [StartServer] one of a certain release, and [StartProxy], [MiniProxy] and [ProxyTo] a proxy that loses, delays and
// repeats what goes through it. [StartCluster], [StartSentinel], [StartRing] and [StartTLS] start more than a plain server, and
// [CurrentClient] is a client of whichever of these the environment names, for the tests that must pass on all of them.
//
// [Engines] runs a test on miniredis and on the real server, [Everywhere] on miniredis and on what the environment names: take
// it for what a cluster can do too. [Virtual] runs one in a bubble, [VirtualServer] in one with a real server, and [Stepping]
// in one whose server's clock can go back.
//
// Whatever a call starts is gone when its test ends; what is shared goes with the test binary, however that ends.
package redistest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// SkipOrFail skips the test for lack of something on this machine, such as a server or a compiler: why says what. With
// RRL_NO_SKIP=1 in the environment it fails the test, so that a full run can't pass by testing nothing. Else why is added to
// the file that RRL_SKIP_LOG names, if any: go test itself is silent about skips.
func SkipOrFail(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("RRL_NO_SKIP") == "1" {
		t.Fatalf("%s (RRL_NO_SKIP=1 forbids to skip)", why)
	}
	if path := os.Getenv("RRL_SKIP_LOG"); path != "" {
		if err := appendLine(path, why); err != nil {
			t.Fatalf("noting a skip: %v", err)
		}
	}
	t.Skip(why)
}

// SkipShort skips the test under -short, which is for a quick look; why says what the test takes, such as "a real redis-server".
func SkipShort(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes " + why + ", and -short is for a quick look")
	}
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// Record adds a line of these columns to a table of results: the file table.tsv
// in the directory that RRL_RESULTS names. Without one nothing is kept.
func Record(t testing.TB, table string, columns ...any) {
	t.Helper()
	dir := os.Getenv("RRL_RESULTS")
	if dir == "" {
		return
	}
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = fmt.Sprint(column)
	}
	must(t, os.MkdirAll(dir, 0o755))
	must(t, appendLine(filepath.Join(dir, table+".tsv"), strings.Join(texts, "\t")))
}

// What RRL_ENGINE leaves out of a run, because another one has tested it.
const (
	everyEngine   = ""
	realServers   = "server" // what runs on miniredis
	sharedServers = "shared" // that, and what starts servers of its own or does not go through Client
)

const (
	onMiniredis = "runs on miniredis"
	notShared   = "does not run on the shared servers"
)

func engine() string {
	switch name := os.Getenv("RRL_ENGINE"); name {
	case everyEngine, realServers, sharedServers:
		return name
	default:
		panic(fmt.Sprintf("RRL_ENGINE is %q and should be %q or %q", name, realServers, sharedServers))
	}
}

var names atomic.Int64

// Name returns a name that no other call in this process returns. It starts with the test's name and holds neither braces nor
// spaces, so it can name a limiter or be the prefix of keys.
func Name(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("%s:%d", namePrefix(t), names.Add(1))
}

// namePrefix is what the names of a test start with, and of no other test: else the one that ends first would remove the other's keys.
func namePrefix(t testing.TB) string {
	t.Helper()
	prefix := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-./", r):
			return r
		}
		return '_'
	}, t.Name())
	if prefix != t.Name() {
		prefix += fmt.Sprintf("-%08x", crc32.ChecksumIEEE([]byte(t.Name())))
	}
	return prefix
}

// Engines runs test twice, as subtests: on a miniredis of its own ("miniredis"; not if RRL_ENGINE leaves that out) and on the
// shared real server ("redis"), on which it must keep to names that start with [Name]'s.
func Engines(t *testing.T, test func(t *testing.T, rdb Client)) {
	t.Helper()
	onBoth(t, "redis", Redis, test)
}

// onBoth runs test on a miniredis of its own, unless RRL_ENGINE leaves that out, and with another client.
func onBoth(t *testing.T, other string, client func(t testing.TB) Client, test func(t *testing.T, rdb Client)) {
	t.Helper()
	if engine() == everyEngine {
		t.Run("miniredis", func(t *testing.T) {
			t.Parallel()
			rdb, _ := Mini(t)
			test(t, rdb)
		})
	}
	t.Run(other, func(t *testing.T) {
		t.Parallel()
		test(t, client(t))
	})
}

// A List is what goroutines add to beside the test that reads it.
type List[T any] struct {
	mu  sync.Mutex
	all []T
}

// Add adds a value.
func (l *List[T]) Add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, v)
}

// All returns the values added since the last Take.
func (l *List[T]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Take returns what All does and empties the list.
func (l *List[T]) Take() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// A Buffer is written to while it is read.
type Buffer struct{ written List[string] }

// Write adds p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.written.Add(string(p))
	return len(p), nil
}

// String returns all that was written.
func (b *Buffer) String() string { return strings.Join(b.written.All(), "") }
