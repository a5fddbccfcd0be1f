package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// unknown is cobra's error for a command that there is not.
var unknown = regexp.MustCompile(`^unknown command ("(?:[^"\\]|\\.)*") for "rrl"`)

// suggest adds to the error of an unknown command those that may be meant.
func suggest(root *cobra.Command, err error) error {
	found := unknown.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	typed, unquoteErr := strconv.Unquote(found[1])
	if unquoteErr != nil {
		return err
	}
	near := nearTo(root, typed)
	if len(near) == 0 {
		return fmt.Errorf("unknown command %q; rrl help lists all", typed)
	}
	return fmt.Errorf("unknown command %q; did you mean %s?", typed, strings.Join(near, " or "))
}

// nearTo returns the commands whose names are near to what was typed or have it as a word, and those
// that other tools call so.
func nearTo(root *cobra.Command, typed string) []string {
	const short = 5
	root.SuggestionsMinimumDistance = 2
	if len(typed) < short {
		root.SuggestionsMinimumDistance = 1 // with two other letters of three it is another word
	}
	near := root.SuggestionsFor(typed)
	for _, name := range commandNames(root) {
		if strings.Contains("-"+name, "-"+strings.ToLower(typed)) && !slices.Contains(near, name) {
			near = append(near, name)
		}
	}
	return near
}
