package rratelimiter

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/meet"
)

// Redisson releases that a limiter can be shared with.
const (
	oldestRedisson = "3.12.0"
	newestRedisson = "4.7.0"
)

// WithRedissonVersion names the oldest Redisson, from 3.12.0 to 4.7.0, that
// shares the Client's limiters. It decides what the Client writes, so that this
// release reads it right; what others have written is read whatever it is.
// Without the option that is 3.35.0: whoever still runs an older one must name
// it.
//
//	releases         what stands for a grant
//	3.12.0-3.13.2    nothing: the value counts a fixed window, so that an interval
//	                 around its edge can see twice the rate. Release and
//	                 KeepState are ErrUnsupported, and a request whose answer was
//	                 lost is not repeated: ErrUnknownOutcome
//	3.13.3-3.16.3    a member of 8 bytes
//	3.16.4-3.16.8    a member of 20 bytes
//	3.17.0-3.20.1    a member of 13 bytes
//	from 3.21.0      a member of 21 bytes
//	from 3.35.0      one member for all requests that go together
//
// Not all releases can share a limiter with each other: see the table in
// docs/compatibility.md.
func WithRedissonVersion(version string) Option {
	return func(c *Client) error {
		r, err := rulesFor(version)
		if err != nil {
			return err
		}
		c.rules = r
		return nil
	}
}

// rules are what the oldest Redisson that shares a limiter asks of whoever
// writes beside it.
type rules struct {
	// version is the release, for messages.
	version string

	// layout is how members are packed; 0 where none are kept, and the value
	// alone counts a fixed window.
	layout codec.Layout

	// merge allows one member for several requests. Redisson counts members
	// instead of permits in 3.16.2 to 3.34.
	merge bool
}

// newestRules are those of every release from 3.35 on.
var newestRules = rules{version: "3.35.0", layout: codec.LayoutD2, merge: true}

// windowed tells whether no members are kept.
func (r rules) windowed() bool { return r.layout == 0 }

// letters tell a script what the rules are.
func (r rules) letters() string {
	switch {
	case r.windowed():
		return "w"
	case !r.merge:
		return "s"
	}
	return ""
}

// maxRequests is how many requests one script call may decide.
func (r rules) maxRequests() int {
	if r.merge || r.windowed() {
		return meet.MaxRequests
	}
	return maxMembers
}

// unsupported is the error for what the release's layout can't do.
func (r rules) unsupported(what string) error {
	return fmt.Errorf("%w: %s needs a record of each grant, which Redisson %s does not keep: upgrade to 3.13.3 or newer, and name that in WithRedissonVersion",
		ErrUnsupported, what, r.version)
}

// release is the number of a Redisson release.
type release struct{ major, minor, patch int }

func (r release) before(other release) bool {
	return cmp.Or(cmp.Compare(r.major, other.major), cmp.Compare(r.minor, other.minor), cmp.Compare(r.patch, other.patch)) < 0
}

// lastPatches holds the newest patch release of each minor one, from 3.12 and
// from 4.0 on.
var lastPatches = map[int][]int{
	3: {
		12: 5, 13: 6, 14: 1, 15: 6, 16: 8, 17: 7, 18: 1, 19: 3, 20: 1, 21: 3, 22: 1, 23: 5, 24: 3, 25: 2, 26: 1,
		27: 2, 28: 0, 29: 0, 30: 0, 31: 0, 32: 0, 33: 0, 34: 1, 35: 0, 36: 0, 37: 0, 38: 1, 39: 0, 40: 2, 41: 0,
		42: 0, 43: 0, 44: 0, 45: 1, 46: 0, 47: 0, 48: 0, 49: 0, 50: 0, 51: 0, 52: 0,
	},
	4: {0: 0, 1: 0, 2: 0, 3: 1, 4: 0, 5: 0, 6: 1, 7: 0},
}

func rulesFor(version string) (rules, error) {
	r, ok := parseRelease(version)
	if !ok {
		return rules{}, fmt.Errorf("%w: %w: WithRedissonVersion: %q is no release of Redisson from %s to %s; name the oldest that shares the limiters, as in \"3.15.5\"",
			ErrInvalidConfig, ErrUnsupported, version, oldestRedisson, newestRedisson)
	}
	layout := codec.LayoutD2
	switch {
	case r.before(release{3, 13, 3}):
		layout = 0
	case r.before(release{3, 16, 4}):
		layout = codec.LayoutB
	case r.before(release{3, 17, 0}):
		layout = codec.LayoutC
	case r.before(release{3, 21, 0}):
		layout = codec.LayoutD1
	}
	return rules{version: version, layout: layout, merge: !r.before(release{3, 35, 0})}, nil
}

// parseRelease reads a version; ok tells whether it is one of the releases
// known.
func parseRelease(version string) (r release, ok bool) {
	parts := strings.Split(version, ".")
	if len(parts) != 3 {
		return release{}, false
	}
	for i, number := range []*int{&r.major, &r.minor, &r.patch} {
		n, err := strconv.ParseUint(parts[i], 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != parts[i] {
			return release{}, false
		}
		*number = int(n)
	}
	minors := lastPatches[r.major]
	known := r.minor < len(minors) && r.patch <= minors[r.minor] && !r.before(release{3, 12, 0})
	return r, known
}
