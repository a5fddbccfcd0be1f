package holders

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// most is how many names are kept, as lua/note_client.lua says.
const most = 10_000

// Names are the Clients that have one.
type Names struct {
	marks map[string]string // by mark
	ids   map[string]string // by id
	all   []clients.Client
}

// newNames reads the entries. Entries that are not ours are left out.
func newNames(entries []string) Names {
	n := Names{marks: make(map[string]string), ids: make(map[string]string)}
	seen := make(map[string]bool, len(entries))
	for _, entry := range entries {
		var c clients.Client
		if seen[entry] || json.Unmarshal([]byte(entry), &c) != nil || clients.CheckName(c.Name) != nil {
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
func (n Names) All() []clients.Client { return n.all }

// OfMark returns the name of the Client whose members' ids begin with mark, "" if it
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

// OfID returns the name of the Client with that id, "" if it is not known.
func (n Names) OfID(id string) string { return n.ids[id] }

// Lister is what Read needs of a go-redis client.
type Lister interface {
	ZRevRangeByScore(ctx context.Context, key string, opt *redis.ZRangeBy) *redis.StringSliceCmd
}

// Read reads the names that are known at a time in epoch ms, by a plain command.
func Read(ctx context.Context, rdb Lister, nowMS int64) (Names, error) {
	entries, err := rdb.ZRevRangeByScore(ctx, clients.Key, &redis.ZRangeBy{
		Min: "(" + strconv.FormatInt(nowMS, 10), Max: "+inf", Count: most,
	}).Result()
	if err != nil {
		return Names{}, err
	}
	return newNames(entries), nil
}

// known reads the names that are known now, from the master.
func known(ctx context.Context, e *engine.Engine) (Names, error) {
	const page = 512
	var entries []string
	keys, from := script.KeysOf(clients.Key), "("+strconv.FormatInt(time.Now().UnixMilli(), 10)
	for more := true; more && len(entries) < most; {
		reply, err := e.Read(ctx, &engine.Limiter{}, script.Call{
			Script: lua.Command, Keys: keys, Args: script.Constant{"ZRANGEBYSCORE", from, "+inf", "WITHSCORES", "LIMIT", 0, page},
		})
		if err != nil {
			return Names{}, err
		}
		rows, _ := reply.([]any)
		for i := 0; i+1 < len(rows); i += 2 {
			entries = append(entries, fmt.Sprint(rows[i]))
		}
		// A Client noted meanwhile moves up and comes twice; none is left out, except of those
		// that share a millisecond with as many others as a page has.
		if more = len(rows) == 2*page; more {
			last := fmt.Sprint(rows[len(rows)-1])
			if last == from {
				last = "(" + last
			}
			from = last
		}
	}
	slices.Reverse(entries)
	return newNames(entries), nil
}
