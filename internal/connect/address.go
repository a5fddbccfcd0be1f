package connect

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// address is one server's. The name is that of a ring's shard.
type address struct{ name, network, addr string }

// errURL does not quote the URL: what can't be read may be a password.
var errURL = errors.New("it can't be read; in user and password escape all but letters and digits: %2F for /, %40 for @")

// parseAddresses reads addresses and URLs with commas between them. The options
// are those of the first URL that says more than an address does; a second one
// must say the same.
func parseAddresses(text string, ring bool) ([]address, *redis.Options, error) {
	var addrs []address
	var shared *redis.Options
	for i, piece := range split(text) {
		name, piece := shardName(piece, ring, i)
		if piece == "" {
			return nil, nil, errors.New("the server's URL: an address is empty")
		}
		opts, err := ParseURL(piece)
		if err != nil {
			return nil, nil, err
		}
		addrs = append(addrs, address{name, opts.Network, opts.Addr})
		switch {
		case shared == nil:
			shared = opts
		case !saysMore(opts):
		case !saysMore(shared):
			shared = merged(opts, shared)
		case opts.Username != shared.Username || opts.Password != shared.Password || opts.DB != shared.DB ||
			(opts.TLSConfig == nil) != (shared.TLSConfig == nil):
			return nil, nil, errors.New("the servers' URLs differ in scheme, login or database; write these once, in the first URL, and give only addresses after it")
		}
	}
	seen := map[string]bool{}
	for _, a := range addrs {
		if a.name != "" && seen[a.name] {
			return nil, nil, fmt.Errorf("two shards are called %q", a.name)
		}
		seen[a.name] = true
	}
	return addrs, shared, nil
}

// saysMore reports whether a URL has more in it than where the server is.
func saysMore(o *redis.Options) bool {
	return o.Username != "" || o.Password != "" || o.DB != 0 || o.TLSConfig != nil
}

// merged returns opts for the address of first.
func merged(opts, first *redis.Options) *redis.Options {
	opts.Network, opts.Addr = first.Network, first.Addr
	return opts
}

// split cuts text at its commas, except at those within a password: what follows
// one of these has an @, and the URL before it has none.
func split(text string) []string {
	var all []string
	start := -1 // the URL that has no @ so far
	for piece := range strings.SplitSeq(text, ",") {
		switch {
		case strings.Contains(piece, "://"):
			start = len(all)
			if strings.Contains(piece, "@") {
				start = -1
			}
		case strings.Contains(piece, "@") && start >= 0:
			piece = strings.Join(append(all[start:], piece), ",")
			all, start = all[:start], -1
		}
		all = append(all, strings.TrimSpace(piece))
	}
	return all
}

// shardName cuts the name off that a shard may have.
func shardName(piece string, ring bool, i int) (name, rest string) {
	if !ring {
		return "", piece
	}
	name, rest, found := strings.Cut(piece, "=")
	if !found || name == "" || strings.ContainsAny(name, ":/?@") {
		return "shard" + strconv.Itoa(i+1), piece
	}
	return name, rest
}

// ParseURL reads the URL of one server, or an address without a scheme.
func ParseURL(text string) (*redis.Options, error) {
	address := withScheme(text)
	opts, err := redis.ParseURL(address)
	if err != nil {
		at, urlErr := url.Parse(address)
		if urlErr != nil || strings.Contains(at.EscapedPath()+at.RawQuery+at.EscapedFragment(), "@") {
			err = errURL
		} else if !slices.Contains([]string{"redis", "rediss", "unix"}, at.Scheme) {
			err = fmt.Errorf("the scheme %q is none of redis, rediss (TLS) and unix", at.Scheme)
		}
		return nil, fmt.Errorf("the server's URL: %w", trimmed{err})
	}
	if opts.TLSConfig != nil && opts.TLSConfig.InsecureSkipVerify {
		return nil, errors.New("the server's URL: skip_verify has no effect in a URL; --tls-skip-verify does it")
	}
	return opts, nil
}

// trimmed is an error without the name of go-redis in front.
type trimmed struct{ error }

func (t trimmed) Error() string { return strings.TrimPrefix(t.error.Error(), "redis: ") }
func (t trimmed) Unwrap() error { return t.error }

// withScheme returns the URL of an address that may be without a scheme.
func withScheme(text string) string {
	switch {
	case strings.Contains(text, "://"):
		return text
	case strings.HasPrefix(text, "/"), strings.HasPrefix(text, "./"), strings.HasPrefix(text, "../"):
		return "unix://" + text
	case strings.Count(text, ":") > 1 && net.ParseIP(text) != nil:
		return "redis://[" + text + "]"
	}
	return "redis://" + text
}
