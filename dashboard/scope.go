package dashboard

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// The page's viewers may know the name of any key. What they may read of it is bounded
// here: limiters within Config.Pattern, the keys and thresholds of Config.Others, and of
// other keys within the pattern no more than type and size. Nothing outside of these is
// looked at, so that answers don't even say whether it is there.

// errOutside answers requests about names that the page does not show.
var errOutside = httpjson.Refuse(http.StatusForbidden, "this page shows no such name: it is outside of the pattern that the dashboard was started with")

// within refuses names of limiters that Config.Pattern leaves out.
func (h *handler) within(name string) error {
	if !matches(h.cfg.Pattern, name) {
		return errOutside
	}
	return nil
}

// other returns which of Config.Others has a key, -1 for none.
func (h *handler) other(key string) int {
	return slices.IndexFunc(h.cfg.Others, func(o Other) bool { return strings.HasPrefix(key, o.Prefix) && key != o.Thresholds })
}

// isThresholds reports whether a hash is one of thresholds.
func (h *handler) isThresholds(hash string) bool {
	return slices.ContainsFunc(h.cfg.Others, func(o Other) bool { return o.Thresholds != "" && o.Thresholds == hash })
}

// ownField reports whether a field of a hash of thresholds is a key that its limiters
// have.
func (h *handler) ownField(hash, field string) bool {
	return slices.ContainsFunc(h.cfg.Others, func(o Other) bool { return o.Thresholds == hash && strings.HasPrefix(field, o.Prefix) })
}

// hasThresholds refuses hashes that are none of thresholds.
func (h *handler) hasThresholds(hash string) error {
	if !h.isThresholds(hash) {
		return httpjson.Refuse(http.StatusForbidden,
			"this page shows no such hash: it is none of the thresholds that rrl dashboard --keys or Config.Others names")
	}
	return nil
}

// scope refuses changes of what the page does not show.
func (h *handler) scope(r *request) error {
	switch {
	case r.verb == "undo": // of the changes here
		return nil
	case r.verb == many: // within the pattern
		if len(r.search) > maxSearch {
			return httpjson.BadRequest("search has 1 to %d bytes", maxSearch)
		}
		return nil
	case r.hash != "":
		return h.hasThresholds(r.hash)
	}
	return h.within(r.name)
}

// errDamaged stands for errors that quote what keys hold.
var errDamaged = errors.New("the limiter's keys hold something other than its state: rrl doctor says what")

// unquoted returns an error without what keys hold.
func unquoted(err error) error {
	if errors.Is(err, limit.ErrCorrupt) {
		return errDamaged
	}
	return err
}
