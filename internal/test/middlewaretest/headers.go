package middlewaretest

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// A Member is one of a header's list, such as "burst";q=10;w=1.
type Member struct {
	Name   string
	Params map[string]int64
}

var (
	memberText = regexp.MustCompile(`^"((?:[ !\x23-\x5b\x5d-\x7e]|\\["\\])+)"((?:;[a-z]+=\d{1,15})+)$`)
	paramText  = regexp.MustCompile(`;([a-z]+)=(\d+)`)
)

// Members reads a header that is a list of strings with integer parameters. It is
// written from the grammar of RFC 9651, without the library that writes them; no name
// may hold ", ".
func Members(h http.Header, name string) (list []Member, err error) {
	for _, line := range h.Values(name) {
		for text := range strings.SplitSeq(line, ", ") {
			match := memberText.FindStringSubmatch(text)
			if match == nil {
				return nil, fmt.Errorf("%s: %q", name, text)
			}
			m := Member{strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(match[1]), map[string]int64{}}
			for _, p := range paramText.FindAllStringSubmatch(match[2], -1) {
				if m.Params[p[1]], err = strconv.ParseInt(p[2], 10, 64); err != nil {
					return nil, err
				}
			}
			list = append(list, m)
		}
	}
	return list, nil
}
