// Package clients keeps the names of Clients in Redis.
package clients

import (
	"fmt"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Key is the sorted set of Clients' names: a [Client] as JSON, by the time
// in epoch ms until which it is known. It lives as long as the last of them.
const Key = "rratelimiter:clients"

const (
	// life is how long a name is known from when it was noted.
	life = 48 * time.Hour

	// renewal is how often the name of a Client in use is noted.
	renewal = time.Hour

	// maxName is how many bytes a name has at most.
	maxName = 128
)

// Client is the entry of one Client.
type Client struct {
	Name string `json:"name"`

	// Mark is how the ids of its members begin, in hexadecimal digits; "" if
	// the layout that it writes has no room for one.
	Mark string `json:"mark,omitempty"`

	// ID ends the keys of its own in limiters of type PER_CLIENT.
	ID string `json:"id"`
}

// CheckName returns limit.ErrInvalidConfig if a Client can't have that name.
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
