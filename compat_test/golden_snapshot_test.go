package compat_test

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"

	"github.com/rratelimiter/rratelimiter/codec"
)

// snapshot is what Redis holds of one limiter, told so that nothing shows of
// when it was recorded and by whom: times are milliseconds from now, clients
// have names, and the ids of members are numbers in the order in which they
// were written.
type snapshot struct {
	Config map[string]string       `json:"config,omitempty"`
	TTL    int64                   `json:"ttl,omitempty"` // of the configuration; 0 where it has no end
	Pairs  map[string]snapshotPair `json:"pairs,omitempty"`
}

// sharedPair stands for the pair that all clients share; the others are called
// as their clients are.
const sharedPair = "shared"

type snapshotPair struct {
	Value      *int64           `json:"value,omitempty"`
	ValueTTL   int64            `json:"valueTTL,omitempty"`
	Permits    map[string]int64 `json:"permits,omitempty"` // how old a member is, in hex; below 0 where it is dated in the future
	PermitsTTL int64            `json:"permitsTTL,omitempty"`
}

// errOffBeat: a time is not a whole number of seconds away, so that the machine
// was too slow.
var errOffBeat = errors.New("not a whole number of seconds")

// beat is a clock on which all that traces tell happens at whole seconds.
type beat struct {
	base int64 // now, in epoch milliseconds
	// slack is how far off a time may be because the clock goes on while things
	// are done.
	slack int64
}

const second = 1000

// duration rounds a number of milliseconds.
func (b beat) duration(ms int64) (int64, error) {
	half := int64(second / 2)
	if ms < 0 {
		half = -half
	}
	rounded := (ms + half) / second * second
	if off := ms - rounded; off < -b.slack || off > b.slack {
		return ms, fmt.Errorf("%w: %d ms", errOffBeat, ms)
	}
	return rounded, nil
}

// left returns how long it is until a moment; 0 for never.
func (b beat) left(end span) (int64, error) {
	if end == never {
		return 0, nil
	}
	return b.duration(end.from - b.base)
}

// snapshot tells a state, the members of which are normal.
func (b beat) snapshot(s *state) (snapshot, error) {
	var errs []error
	left := func(end span) int64 {
		ms, err := b.left(end)
		errs = append(errs, err)
		return ms
	}
	told := snapshot{Config: s.config, TTL: left(s.configEnd), Pairs: make(map[string]snapshotPair)}
	for id, p := range s.pairs {
		if !p.hasValue && len(p.rows) == 0 {
			continue
		}
		pair := snapshotPair{ValueTTL: left(p.valueEnd), PermitsTTL: left(p.rowsEnd)}
		if p.hasValue {
			pair.Value = &p.value
		}
		if len(p.rows) > 0 {
			pair.Permits = make(map[string]int64)
		}
		for _, r := range p.rows {
			pair.Permits[hex.EncodeToString([]byte(r.member))] = -left(r.at)
		}
		told.Pairs[cmp.Or(id, sharedPair)] = pair
	}
	return told, errors.Join(errs...)
}

// state is the reverse of snapshot.
func (b beat) state(told snapshot, c *cast) (*state, error) {
	end := func(left int64) span {
		if left == 0 {
			return never
		}
		return span{b.base + left, b.base + left}
	}
	s := &state{config: maps.Clone(told.Config), configEnd: end(told.TTL), pairs: make(map[string]*pair)}
	for _, id := range c.clients() {
		pair := &pair{}
		s.pairs[id] = pair
		from, ok := told.Pairs[cmp.Or(id, sharedPair)]
		if !ok {
			continue
		}
		if from.Value != nil {
			pair.hasValue, pair.value = true, *from.Value
		}
		pair.valueEnd, pair.rowsEnd = end(from.ValueTTL), end(from.PermitsTTL)
		for text, age := range from.Permits {
			packed, err := hex.DecodeString(text)
			if err != nil {
				return nil, err
			}
			member, err := codec.Parse(string(packed))
			if err != nil {
				return nil, err
			}
			at := b.base - age
			pair.rows = append(pair.rows, row{
				member: string(packed), layout: member.Layout, permits: int64(member.Permits),
				at: span{at, at}, owner: c.owner(member),
			})
		}
		sortRows(pair.rows)
	}
	return s, nil
}

// ids returns those of all members.
func (told snapshot) ids() (ids []string) {
	for _, pair := range told.Pairs {
		for text := range pair.Permits {
			ids = append(ids, idOfText(text))
		}
	}
	return ids
}

func idOfText(member string) string {
	packed, _ := hex.DecodeString(member)
	return idPart(string(packed))
}

// idPart returns what of a member stays when permits are taken off it.
func idPart(member string) string {
	if twice(member) {
		return member[:9] + member[13:16]
	}
	return member[:len(member)-4]
}

// twice tells whether a member holds its permits twice, as this module writes
// layout C.
func twice(member string) bool { return len(member) == 20 && member[9:13] == member[16:] }

// numberOf returns the number that a normal id ends in.
func numberOf(id string) uint64 {
	n := len(id)
	return uint64(id[n-3])<<16 | uint64(id[n-2])<<8 | uint64(id[n-1])
}

// normalMember returns a member of a numbered id that is as long as the layout's
// are. Members that tell who wrote them begin with that one's tag.
func normalMember(layout codec.Layout, tag string, double bool, number uint64, permits int64) string {
	length := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	id := make([]byte, length)
	copy(id, tag)
	id[length-3], id[length-2], id[length-1] = byte(number>>16), byte(number>>8), byte(number)
	if double {
		binary.LittleEndian.PutUint32(id[1:], uint32(permits))
	}
	member, err := codec.Append(nil, layout, id, uint32(permits))
	if err != nil {
		panic(err) // the layouts are those above
	}
	return string(member)
}
