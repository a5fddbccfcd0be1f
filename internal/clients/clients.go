// Package clients notes in Redis what Clients are called, and tells by the marks that
// members of permits bear who has a limiter's permits in use.
package clients

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Key is the sorted set of what Clients are called: a [Client] as JSON, by the time
// in epoch ms until which it is known. It lives as long as the last of them.
const Key = "rratelimiter:clients"

const (
	// life is how long a name is known from when it was noted.
	life = 48 * time.Hour

	// renewal is how often the name of a Client in use is noted.
	renewal = time.Hour

	// maxName is how many bytes a name has at most.
	maxName = 128

	// most is how many names are kept, as lua/note_client.lua says.
	most = 10_000
)

// Client is what is noted of one.
type Client struct {
	Name string `json:"name"`

	// Mark is what the ids of its members begin with, in hexadecimal digits; "" where
	// the layout that it writes has no room for one.
	Mark string `json:"mark,omitempty"`

	// ID ends the keys of its own in limiters of type PER_CLIENT.
	ID string `json:"id"`
}

// CheckName tells why a Client can't be called so: limit.ErrInvalidConfig.
func CheckName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "the name is empty"
	case len(name) > maxName:
		why = "the name has " + strconv.Itoa(len(name)) + " bytes, more than " + strconv.Itoa(maxName)
	case !utf8.ValidString(name):
		why = "the name is no UTF-8"
	default:
		for _, r := range name {
			if !unicode.IsPrint(r) { // the space is the only one of its kind that is
				why = fmt.Sprintf("the name holds %q, which is not printed", r)
			}
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w: WithClientName: %s", limit.ErrInvalidConfig, why)
}

// entry is the client as it is noted, always the same.
func (c Client) entry() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // three strings
	}
	return string(text)
}

// Names are the Clients that have one.
type Names struct {
	marks map[string]string // by mark
	ids   map[string]string // by id
	all   []Client
}

// newNames reads what was noted. What is none of ours is left out.
func newNames(entries []string) Names {
	n := Names{marks: make(map[string]string), ids: make(map[string]string)}
	seen := make(map[string]bool, len(entries))
	for _, entry := range entries {
		var c Client
		if seen[entry] || json.Unmarshal([]byte(entry), &c) != nil || CheckName(c.Name) != nil {
			continue
		}
		seen[entry] = true
		n.all = append(n.all, c)
		if mark, err := hex.DecodeString(c.Mark); err == nil && c.Mark != "" {
			n.marks[string(mark)] = c.Name
		}
		n.ids[c.ID] = c.Name
	}
	return n
}

// All returns the Clients, those noted last first.
func (n Names) All() []Client { return n.all }

// OfMark returns the name of the Client whose members' ids begin with mark, "" where it
// is not known.
func (n Names) OfMark(mark string) string {
	name, _ := n.find(mark)
	return name
}

// find is OfMark, with as much of the mark as the name is noted with. A member that
// Migrate rewrote has the whole id of the older one, whose mark was shorter.
func (n Names) find(mark string) (name, noted string) {
	if name := n.marks[mark]; name != "" || len(mark) < 4 {
		return name, mark
	}
	return n.marks[mark[:4]], mark[:4]
}

// OfID returns the name of the Client with that id, "" where it is not known.
func (n Names) OfID(id string) string { return n.ids[id] }

// Lister is what Read needs of a go-redis client.
type Lister interface {
	ZRevRangeByScore(ctx context.Context, key string, opt *redis.ZRangeBy) *redis.StringSliceCmd
}

// Read reads the names that are known at a time in epoch ms, by a plain command.
func Read(ctx context.Context, rdb Lister, nowMS int64) (Names, error) {
	entries, err := rdb.ZRevRangeByScore(ctx, Key, &redis.ZRangeBy{
		Min: "(" + strconv.FormatInt(nowMS, 10), Max: "+inf", Count: most,
	}).Result()
	if err != nil {
		return Names{}, err
	}
	return newNames(entries), nil
}
