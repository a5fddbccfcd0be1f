package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/limit"
)

// ErrLost marks the error of a call that may have run without an answer.
var ErrLost = errors.New("no answer")

// errUnread is ErrLost for a call that only reads: whether it has run makes no difference.
var errUnread = errors.New("no answer to a read")

// ErrUnwanted is the error of a call that was not sent because it was no longer wanted.
var ErrUnwanted = errors.New("the call is wanted no more")

// Left is the error of a caller who went away before the answer came. It is that of the caller's ctx, and says nothing
// about the server, though the end of a deadline is a net.Error.
type Left struct{ Err error } //nolint:errname // it says what the caller did

func (l *Left) Error() string { return l.Err.Error() }

func (l *Left) Unwrap() error { return l.Err }

// IsAnswer reports whether Redis answered, with an error.
func IsAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// NotRun reports whether an error shows that the script did not run. It may run if it is sent again, unless the
// server runs nothing for this program.
func NotRun(err error) bool { return meaningOf(err)&(notRun|barred) != 0 }

// meaning is what an error says of an attempt.
type meaning uint8

const (
	notRun    meaning = 1 << iota // the script did not run, and may if it is sent again
	moving                        // likewise, but not before servers have changed places
	maybeRun                      // the script may have run
	undecided                     // Redis did not decide
	barred                        // the server runs nothing for this program, or the client does not know its cluster

	refused   = notRun | undecided
	lockedOut = barred | undecided
	lost      = maybeRun | undecided
)

// codes are what answers mean by their codes. While a slot moves, a replica takes over or a server starts,
// a script is refused; go-redis follows a slot that moves, but not forever.
var codes = map[string]meaning{
	"LOADING": refused | moving, "READONLY": refused | moving, "CLUSTERDOWN": refused | moving, "TRYAGAIN": refused | moving,
	"MASTERDOWN": refused | moving, "MOVED": refused | moving, "ASK": refused | moving,
	"NOREPLICAS": refused, "BUSY": refused, "NOSCRIPT": notRun,
	"NOAUTH": lockedOut, "WRONGPASS": lockedOut, "DENIED": lockedOut,
	"MISCONF": undecided, "OOM": undecided,
	"NOTINIT": 0, "CORRUPT": 0, "LATE": 0, // our scripts' own
	"WRONGTYPE": 0, "CROSSSLOT": 0,
}

// texts are what other answers mean: the first that matches counts. If none does, a server or a proxy has said in words
// of its own that it does not decide, and the script may have run.
var texts = []struct {
	*regexp.Regexp
	meaning
}{
	{regexp.MustCompile(`Script killed by user`), refused}, // which Redis does not do once it has written
	// The server ended the script in the middle, since it had removed a key of a slot that moves.
	{regexp.MustCompile(`attempted to access a non local key`), lost},

	// What servers before Redis 6 say of passwords, and Redis to a long command without one.
	{regexp.MustCompile(`^ERR (?:invalid password|AUTH |Client sent AUTH|Protocol error: unauthenticated)`), lockedOut},

	// Mistakes: faults of a script, commands that a server does not have or take, and missing rights to a key, which
	// concern few limiters. "redis: " is go-redis itself.
	{regexp.MustCompile(`^ERR Error (?:running|compiling) script|user_script:|bad lua script|^redis: |^NOPERM .*\bkeys?\b`), 0},
	{regexp.MustCompile(`(?i)\b(?:unknown|unsupported) (?:redis |sub)?command|command '[^']*' (?:is )?not (?:allowed|support)` +
		`|^(?:ERR )?(?:wrong number of |value is not |number of keys |syntax error|.*\bsame slot|.*\bDB index|protocol error: )`), 0},

	{regexp.MustCompile(`^NOPERM`), lockedOut},
	{regexp.MustCompile(`(?i)\bread[- ]?only (?:replica|slave)`), refused | moving},
	{regexp.MustCompile(`(?i)^(?:ERR )?(?:max number of clients|connection refused|host is down|no route to host|` +
		`network is unreachable|no (?:upstream|backend|server))`), refused},
}

func meaningOf(err error) meaning {
	answer, answered := errors.AsType[redis.Error](err)
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, limit.ErrUnsupported): // of refuseMoved
		return barred
	case answered:
		if m, known := codes[Code(err)]; known {
			return m
		}
		for _, t := range texts {
			if t.MatchString(answer.Error()) {
				return t.meaning
			}
		}
		return lost
	case errors.Is(err, ErrNoMaster):
		return refused | moving
	case isDial(err), poolExhausted(err), noServer.MatchString(err.Error()):
		return refused
	case isNet, errors.Is(err, errUnread), errors.Is(err, io.EOF), errors.Is(err, errUnanswered), errors.Is(err, net.ErrClosed):
		return lost
	case errors.Is(err, redis.ErrClosed):
		return 0
	}
	return maybeRun
}

func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// noServer finds what go-redis says if it knows no server for a command: it exports no errors for that.
var noServer = regexp.MustCompile(`redis: (?:all sentinels specified in configuration are unreachable|all ring shards are down|cluster has no nodes)`)

func poolExhausted(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// ErrSilent is for an attempt that was given up because no answer came in time.
var ErrSilent = fmt.Errorf("the server is silent: %w", os.ErrDeadlineExceeded)

// errUnsent is for a call for which no attempt could be made in time.
var errUnsent = fmt.Errorf("the call could not be sent: %w", context.DeadlineExceeded)

// Silent reports whether an error says that the server gave no answer in time.
func Silent(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return !IsAnswer(err) && (ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded))
}

// AllSilent reports whether none of the commands shows that the server answers.
func AllSilent(cmds []Command) bool {
	return !slices.ContainsFunc(cmds, func(cmd Command) bool {
		err := cmd.Err()
		return err == nil || !Silent(err) && !poolExhausted(err)
	})
}

// Decides reports whether an answer to one of the commands shows that the server decides.
func Decides(cmds []Command) bool {
	return slices.ContainsFunc(cmds, func(cmd Command) bool {
		err := cmd.Err()
		return err == nil || meaningOf(err)&undecided == 0
	})
}

// Outage adds to an error whether Redis decided, limit.ErrUnavailable, and whether it may have done
// what it was asked, limit.ErrUnknownOutcome. It returns other errors unchanged.
func Outage(err error) error {
	_, left := errors.AsType[*Left](err)
	switch {
	case err == nil, left, errors.Is(err, limit.ErrUnsupported):
		return err
	case errors.Is(err, ErrLost):
		return fmt.Errorf("%w: %w: %w", limit.ErrUnknownOutcome, limit.ErrUnavailable, err)
	case meaningOf(err)&undecided != 0:
		return fmt.Errorf("%w: %w", limit.ErrUnavailable, err)
	}
	return err
}

// NameAdvice is what to do about the name of a limiter whose keys are in several slots, for Explain.
const NameAdvice = `name the limiter without braces or with one hash tag, as in "{shop}orders"`

// Explain turns an error of a script or of go-redis into one that callers can test for and act on. keys are the
// script's; kind says what they should hold, and advice how to name keys that must be together.
func Explain(err error, keys []string, kind, advice string) error {
	if key, field, why, ok := Corrupt(err, keys); ok {
		return fmt.Errorf("%w: key %q: %s %s; set it right or remove the key", limit.ErrCorrupt, key, field, why)
	}
	switch Code(err) {
	case "WRONGTYPE":
		return fmt.Errorf("%w: key %s is not %s; name it otherwise or remove it: %w", limit.ErrCorrupt, quoted(keys), kind, err)
	case "CROSSSLOT":
		return fmt.Errorf("%w: the keys %q fall in different slots of the cluster: %s: %w", limit.ErrUnsupported, keys, advice, err)
	}
	if ScriptChecked(err) {
		return fmt.Errorf("%w: a proxy refuses scripts whose keys are not literal: %s: %w", limit.ErrUnsupported, AllowScripts, err)
	}
	return Outage(err)
}

// AllowScripts is what helps if ScriptChecked.
const AllowScripts = "set the server's parameter script_check_enable to 0"

// ScriptChecked reports whether an error is that of Alibaba Cloud's proxy in front of a cluster, which reads
// scripts and refuses those that name a key or a command otherwise than literally.
func ScriptChecked(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && strings.Contains(answer.Error(), "bad lua script for redis cluster")
}

func quoted(keys []string) string {
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = strconv.Quote(key)
	}
	return strings.Join(all, " or ")
}

// Corrupt parses the error of a script that found a key's state corrupt: "CORRUPT place field why",
// where place is the key's number.
func Corrupt(err error, keys []string) (key, field, why string, ok bool) {
	if Code(err) != "CORRUPT" {
		return "", "", "", false
	}
	_, text, _ := strings.Cut(err.Error(), "CORRUPT ")
	place, rest, _ := strings.Cut(text, " ")
	field, why, _ = strings.Cut(rest, " ")
	n, _ := strconv.Atoi(place)
	if n < 1 || n > len(keys) {
		return "", "", "", false
	}
	return keys[n-1], field, why, true
}

// Code returns the code of an error that Redis answered: its first word, or that behind an "ERR" of a proxy's. If a
// command inside a script failed, some servers put it in the middle of the text. It returns "" for other errors.
func Code(err error) string {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	if inside := codeInside.FindStringSubmatch(answer.Error()); inside != nil {
		return inside[1]
	}
	code, _, _ := strings.Cut(answer.Error(), " ")
	return code
}

// codeInside finds the code that proxies and Kvrocks put behind an "ERR", Redis 6 (": -CODE text" or ": CODE text"
// after the line's number) and miniredis behind words of their own.
var codeInside = regexp.MustCompile(`^ERR (?:Error (?:running|compiling) script.*?: ?-?)?([A-Z]{3,}) `)
