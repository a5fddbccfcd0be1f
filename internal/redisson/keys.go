package redisson

import "strings"

// Keys holds the five keys of a limiter, as one client sees it.
type Keys struct {
	Config        string // hash: rate, interval, type, keepAliveTime
	Value         string // string: free permits, shared by all clients
	ClientValue   string // the same for one client, if the type is PER_CLIENT
	Permits       string // sorted set: permits in use, shared by all clients
	ClientPermits string // the same for one client
}

const (
	valueSuffix   = ":value"
	permitsSuffix = ":permits"
	pauseSuffix   = ":pause"
)

// KeysOf returns the keys of the limiter called name, for the client called clientID. A name that has a brace
// anywhere is taken to bring its own hash tag, so it is not wrapped in one; that is Redisson's rule, and it puts the
// keys of names like "a{b" in different slots of a cluster.
func KeysOf(name, clientID string) Keys {
	value, permits := SharedKeys(name)
	return Keys{
		Config:        name,
		Value:         value,
		ClientValue:   value + ":" + clientID,
		Permits:       permits,
		ClientPermits: permits + ":" + clientID,
	}
}

// SharedKeys returns the keys of the limiter called name that are for all clients, beside its name. They are one text.
func SharedKeys(name string) (value, permits string) {
	opened, closed := braces(name)
	both := opened + name + closed + valueSuffix + opened + name + closed + permitsSuffix
	length := len(opened) + len(name) + len(closed) + len(valueSuffix)
	return both[:length], both[length:]
}

// braces returns what stands around a name in its keys, to make it their hash tag.
func braces(name string) (opened, closed string) {
	if strings.Contains(name, "{") {
		return "", ""
	}
	return "{", "}"
}

func tag(name string) string {
	opened, closed := braces(name)
	return opened + name + closed
}

// PauseKey returns the key that says for how long an upstream pauses the calls that ask the limiter called name. Redisson
// knows nothing of it.
func PauseKey(name string) string { return tag(name) + pauseSuffix }

// Other returns the name of another limiter because of which there can be none called name: both would share a key,
// whatever the ids of clients are. It looks at names that are longer than prefix and begin with it, and returns "" if
// name may be had: of two that share a key, one may. So no two that may be had share a key. A mapper may have left
// only the beginning of prefix before name; then that is the prefix.
func Other(prefix, name string) string {
	if !strings.Contains(name, "{") && !strings.Contains(name, valueSuffix+":") && !strings.Contains(name, permitsSuffix+":") {
		return "" // as most are
	}
	for !strings.HasPrefix(name, prefix) {
		prefix = prefix[:len(prefix)-1]
	}
	tagged := tag(name)
	own := tagged == name // nothing stands before the name in its keys
	possible := func(name string) bool { return len(name) > len(prefix) && strings.HasPrefix(name, prefix) }
	first, second, closing := strings.IndexByte(tagged, '{'), strings.IndexByte(tagged[1:], '{')+1, strings.IndexByte(tagged, '}')
	if own && prefix == "" && first == 0 && second == 0 && closing < 0 {
		return name[1:] + valueSuffix + ":..." // whose keys begin with "{"+name+":value:"
	}
	for i := first + 1; i <= len(tagged); i++ {
		// Is it another's tag that ends here, and are its suffixes what follows?
		tail := tagged[i:]
		wraps := first == 0 && i > 1 && tagged[i-1] == '}' && (second == 0 || second >= i)
		switch {
		case tail == "" && !own, tail != "" && !suffixed(tail, own):
		case wraps && possible(tagged[1:i-1]):
			return tagged[1 : i-1]
		case tail != "" && possible(tagged[:i]) && (own || closing < i && closing >= 0):
			return tagged[:i]
		}
	}
	return ""
}

// suffixed reports whether text is what follows the tag in keys of a limiter, or, if it need not be all, begins so.
func suffixed(text string, all bool) bool {
	rest, ok := strings.CutPrefix(text, valueSuffix)
	if !ok {
		rest, ok = strings.CutPrefix(text, permitsSuffix)
	}
	return ok && (strings.HasPrefix(rest, ":") || all && rest == "")
}

// List returns the keys in the order in which scripts take them.
func (k Keys) List() []string {
	return []string{k.Config, k.Value, k.ClientValue, k.Permits, k.ClientPermits}
}
