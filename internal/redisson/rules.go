// Package redisson holds what its versions require of programs that share limiters with them: the names of the keys,
// the members of the permits set, and what may be written.
package redisson

import (
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Versions of Redisson that a limiter can be shared with. Newer ones count as the newest.
var oldest, newest = version{3, 12, 0}, version{4, 7, 0}

// Rules are what the oldest Redisson that shares a limiter requires of a program that writes beside it.
type Rules struct {
	Version string       // Redisson's, for messages
	Layout  codec.Layout // of members; 0 if none are kept, and the value alone counts a fixed window

	// Merge allows one member for several requests. Redisson counts members instead of permits in 3.16.2 to 3.34.
	Merge bool
}

// NewestRules are the rules of every version from 3.35 on.
var NewestRules = Rules{Version: "3.35.0", Layout: codec.LayoutD2, Merge: true}

// KeepsNoMembers reports whether the value alone counts a fixed window.
func (r Rules) KeepsNoMembers() bool { return r.Layout == 0 }

// Flags returns the rules as a script reads them.
func (r Rules) Flags() string {
	switch {
	case r.KeepsNoMembers():
		return "w"
	case !r.Merge:
		return "s"
	}
	return ""
}

// Keep is the word that makes a script that sets a rate keep permits in use.
func (r Rules) Keep() string {
	if r.KeepsNoMembers() {
		return "w"
	}
	return "1"
}

// Unsupported is the error for what the version's layout can't do.
func (r Rules) Unsupported(what string) error {
	return fmt.Errorf("%w: %s needs a record of each grant, which Redisson %s does not keep: upgrade to 3.13.3 or newer, and name that in WithRedissonVersion",
		limit.ErrUnsupported, what, r.Version)
}

// Untested returns what to say of a version newer than the newest known, and nil for those known.
func (r Rules) Untested() error {
	if v, _ := parseVersion(r.Version); !newest.before(v) {
		return nil
	}
	return fmt.Errorf("version %s of Redisson is newer than %s, the newest that was tested, and counts as that", r.Version, newest)
}

// version is a Redisson's version: major, minor, patch.
type version [3]uint16

func (v version) before(other version) bool { return slices.Compare(v[:], other[:]) < 0 }

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// parseVersion reads a version; ok reports whether it looks like one.
func parseVersion(name string) (v version, ok bool) {
	_, err := fmt.Sscanf(name, "%d.%d.%d", &v[0], &v[1], &v[2])
	return v, err == nil && name == v.String()
}

// lastPatches holds the newest patch of each minor version, from 3.12 and from 4.0 on.
var lastPatches = map[uint16][]uint16{
	3: {
		12: 5, 13: 6, 14: 1, 15: 6, 16: 8, 17: 7, 18: 1, 19: 3, 20: 1, 21: 3, 22: 1, 23: 5, 24: 3, 25: 2, 26: 1,
		27: 2, 28: 0, 29: 0, 30: 0, 31: 0, 32: 0, 33: 0, 34: 1, 35: 0, 36: 0, 37: 0, 38: 1, 39: 0, 40: 2, 41: 0,
		42: 0, 43: 0, 44: 0, 45: 1, 46: 0, 47: 0, 48: 0, 49: 0, 50: 0, 51: 0, 52: 0,
	},
	4: {0: 0, 1: 0, 2: 0, 3: 1, 4: 0, 5: 0, 6: 1, 7: 0},
}

// RulesFor returns the rules of a version. A version newer than any known has the rules of
// the newest. Other unknown versions are limit.ErrInvalidConfig.
func RulesFor(name string) (Rules, error) {
	v, ok := parseVersion(name)
	minors, untested := lastPatches[v[0]], newest.before(v)
	known := int(v[1]) < len(minors) && v[2] <= minors[v[1]] && !v.before(oldest)
	if !ok || !untested && !known {
		return Rules{}, fmt.Errorf("%w: %w: WithRedissonVersion: %q is no version of Redisson from %s to %s; name the oldest that shares the limiters, as in \"3.15.5\"",
			limit.ErrInvalidConfig, limit.ErrUnsupported, name, oldest, newest)
	}
	layout := codec.LayoutD2
	switch {
	case v.before(version{3, 13, 3}):
		layout = 0
	case v.before(version{3, 16, 4}):
		layout = codec.LayoutB
	case v.before(version{3, 17, 0}):
		layout = codec.LayoutC
	case v.before(version{3, 21, 0}):
		layout = codec.LayoutD1
	}
	return Rules{Version: name, Layout: layout, Merge: !v.before(version{3, 35, 0})}, nil
}
