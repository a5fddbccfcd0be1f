package dashboard

import "strings"

// matches reports whether Redis' MATCH lets a name through. The empty pattern matches
// all names.
func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	after, from, starred := "", "", false // what follows the last *, and where it was tried
	for name != "" {
		if strings.HasPrefix(pattern, "*") {
			pattern = strings.TrimLeft(pattern, "*")
			after, from, starred = pattern, name, true
			continue
		}
		if rest, ok := matchByte(pattern, name[0]); ok {
			pattern, name = rest, name[1:]
			continue
		}
		if !starred {
			return false
		}
		from = from[1:]
		pattern, name = after, from
	}
	return strings.Trim(pattern, "*") == ""
}

// matchByte matches one byte, and returns the pattern for those that follow.
func matchByte(pattern string, b byte) (rest string, ok bool) {
	if pattern == "" {
		return "", false
	}
	switch pattern[0] {
	case '?':
		return pattern[1:], true
	case '[':
		return matchClass(pattern[1:], b)
	case '\\':
		if len(pattern) > 1 {
			pattern = pattern[1:]
		}
	}
	return pattern[1:], pattern[0] == b
}

// matchClass matches a byte with what stands between brackets. The last one may be
// missing.
func matchClass(class string, b byte) (rest string, ok bool) {
	class, not := strings.CutPrefix(class, "^")
	for class != "" && class[0] != ']' {
		switch {
		case class[0] == '\\' && len(class) > 1:
			ok = ok || class[1] == b
			class = class[2:]
		case len(class) > 2 && class[1] == '-':
			ok = ok || min(class[0], class[2]) <= b && b <= max(class[0], class[2])
			class = class[3:]
		default:
			ok = ok || class[0] == b
			class = class[1:]
		}
	}
	return strings.TrimPrefix(class, "]"), ok != not
}
