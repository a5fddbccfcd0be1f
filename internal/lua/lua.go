// Package lua makes scripts of the files of the package of that name at the top.
package lua

import (
	"crypto/sha1" // Redis names scripts by their SHA-1.
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	top "github.com/rratelimiter/rratelimiter/lua"
)

// Script is a script ready to be sent.
type Script struct {
	Name   string // the file's name without its ending
	Source string // with all includes in their places
	SHA    string // lower-case, as EVALSHA takes it
	Word   any    // the SHA, boxed once rather than for each call
}

// The scripts, in the order of their names. The head of each file says what the script takes and returns.
var (
	Acquire             = mustLoad("acquire")
	AcquireAll          = mustLoad("acquire_all")
	AcquireMany         = mustLoad("acquire_many")
	Available           = mustLoad("available")
	Command             = mustLoad("command")
	Config              = mustLoad("config")
	Delete              = mustLoad("delete")
	Expire              = mustLoad("expire")
	FixedWindow         = mustLoad("fixed_window")
	FixedWindowSettle   = mustLoad("fixed_window_settle")
	GiveBack            = mustLoad("give_back")
	InUse               = mustLoad("in_use")
	Merge               = mustLoad("merge")
	Migrate             = mustLoad("migrate")
	NoteClient          = mustLoad("note_client")
	Pause               = mustLoad("pause")
	Peek                = mustLoad("peek")
	Probe               = mustLoad("probe")
	Release             = mustLoad("release")
	Rename              = mustLoad("rename")
	RenewReservation    = mustLoad("renew_reservation")
	Reset               = mustLoad("reset")
	SetRate             = mustLoad("set_rate")
	SettleReservation   = mustLoad("settle_reservation")
	SlidingLog          = mustLoad("sliding_log")
	SlidingLogGiveBack  = mustLoad("sliding_log_give_back")
	TokenBucket         = mustLoad("token_bucket")
	TokenBucketGiveBack = mustLoad("token_bucket_give_back")
	UseDefault          = mustLoad("use_default")
)

// all are the scripts that mustLoad has loaded, which Go does in the order above.
var all []*Script

// All returns every script, in the order of their names.
func All() []*Script { return slices.Clone(all) }

func mustLoad(name string) *Script {
	script, err := load(top.Files, name)
	if err != nil {
		panic(err) // a fault of the build: the files are part of it
	}
	all = append(all, script)
	return script
}

func load(fsys fs.FS, name string) (*Script, error) {
	source, err := compose(fsys, name+".lua", map[string]bool{})
	if err != nil {
		return nil, fmt.Errorf("lua: script %s: %w", name, err)
	}
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	return &Script{Name: name, Source: source, SHA: sha, Word: sha}, nil
}

// compose returns the text of a file, with the includes that are not in seen put in place of their lines.
func compose(fsys fs.FS, file string, seen map[string]bool) (string, error) {
	text, err := fs.ReadFile(fsys, file)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for number, line := range strings.SplitAfter(string(text), "\n") {
		rest, isInclude := strings.CutPrefix(line, "--- @include ")
		if !isInclude {
			out.WriteString(line)
			continue
		}
		names := strings.Fields(rest)
		if len(names) == 0 {
			return "", fmt.Errorf("%s:%d: an include has no name", file, number+1)
		}
		for _, quoted := range names {
			name := strings.Trim(quoted, `"`)
			if name == "" || quoted != `"`+name+`"` {
				return "", fmt.Errorf("%s:%d: an include is written --- @include \"name\"", file, number+1)
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			included, err := compose(fsys, path.Join("include", name+".lua"), seen)
			if err != nil {
				return "", fmt.Errorf("%s:%d: %w", file, number+1, err)
			}
			out.WriteString(included)
		}
	}
	return out.String(), nil
}
