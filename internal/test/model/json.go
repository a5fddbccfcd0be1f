package model

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
)

// shared stands for the pair that all clients share, in JSON.
const shared = "shared"

type stateJSON struct {
	Config    map[string]string `json:"config,omitempty"`
	ConfigEnd int64             `json:"ttl,omitempty"` // 0 if it has no end
	Pairs     map[string]*Pair  `json:"pairs,omitempty"`
}

type pairJSON struct {
	Value    *int64           `json:"value,omitempty"`
	ValueEnd int64            `json:"valueTTL,omitempty"`
	Permits  map[string]int64 `json:"permits,omitempty"` // how old a member is, in hex; below 0 if it is dated in the future
	RowsEnd  int64            `json:"permitsTTL,omitempty"`
}

// MarshalJSON tells all but who wrote which row. Times are as if it were 0 now.
func (s *State) MarshalJSON() ([]byte, error) {
	told := stateJSON{s.Config, s.ConfigEnd, make(map[string]*Pair)}
	for id, p := range s.Pairs {
		if p.there() {
			told.Pairs[cmp.Or(id, shared)] = p
		}
	}
	return json.Marshal(told)
}

// MarshalJSON is part of that.
func (p *Pair) MarshalJSON() ([]byte, error) {
	told := pairJSON{ValueEnd: p.ValueEnd, RowsEnd: p.RowsEnd, Permits: make(map[string]int64)}
	if p.HasValue {
		told.Value = &p.Value
	}
	for _, r := range p.Rows {
		told.Permits[hex.EncodeToString([]byte(r.Member))] = -r.At
	}
	return json.Marshal(told)
}

// UnmarshalJSON is the reverse of MarshalJSON.
func (s *State) UnmarshalJSON(text []byte) error {
	var told stateJSON
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	s.Config, s.ConfigEnd, s.Pairs = told.Config, told.ConfigEnd, map[string]*Pair{"": {}}
	for id, p := range told.Pairs {
		if id == shared {
			id = ""
		}
		s.Pairs[id] = p
	}
	return nil
}

// UnmarshalJSON is part of that.
func (p *Pair) UnmarshalJSON(text []byte) error {
	var told pairJSON
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	*p = Pair{ValueEnd: told.ValueEnd, RowsEnd: told.RowsEnd}
	if told.Value != nil {
		p.HasValue, p.Value = true, *told.Value
	}
	for member, age := range told.Permits {
		packed, err := hex.DecodeString(member)
		if err != nil {
			return err
		}
		r, err := RowOf(string(packed), -age)
		if err != nil {
			return err
		}
		p.Rows = append(p.Rows, r)
	}
	SortRows(p.Rows)
	return nil
}
