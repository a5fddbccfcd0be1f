package admin

import (
	"maps"
	"slices"
)

// Paths are those that the handler serves.
func Paths() []string { return slices.Sorted(maps.Keys(endpoints)) }
