package dashboard

import (
	_ "embed"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
)

// endpoint is what a path offers: GET and HEAD to look, POST to change.
type endpoint struct {
	method string
	params []string // of the query; a name before "?" may be left out
	verb   string   // of a change
	file   bool     // of the page
	run    func(*call) error
}

var endpoints = allEndpoints()

func allEndpoints() map[string]endpoint {
	look := func(run func(*call) error, params ...string) endpoint {
		return endpoint{method: http.MethodGet, params: params, run: run}
	}
	list := []string{"search?", "sort?", "reverse?", "offset?", "limit?"}
	all := map[string]endpoint{
		"/openapi.json":    look((*call).describe),
		"/about":           look((*call).about),
		"/limiters":        look((*call).once, list...),
		"/limiters/stream": look((*call).stream, list...),
		"/limiter":         look((*call).once, "name"),
		"/limiter/stream":  look((*call).stream, "name"),
		"/clients":         look((*call).listClients, "name"),
		"/others":          look((*call).once, "search?", "offset?", "limit?"),
		"/others/stream":   look((*call).stream, "search?", "offset?", "limit?"),
		"/key":             look((*call).showKey, "key"),
		"/thresholds":      look((*call).listThresholds, "hash", "cursor?"),
		"/audit":           look((*call).listAudit),
	}
	for verb, k := range kinds {
		params := strings.Fields(k.names)
		all["/preview/"+verb] = endpoint{method: http.MethodPost, params: params, verb: verb, run: (*call).preview}
		all["/change/"+verb] = endpoint{method: http.MethodPost, params: params, verb: verb, run: (*call).change}
	}
	return all
}

// endpoint returns what the request's path offers. It has no run if that is nothing.
func (c *call) endpoint() endpoint {
	c.path = c.r.URL.Path
	if c.page {
		var isAPI bool
		if c.path, isAPI = strings.CutPrefix(c.path, "/api/"); !isAPI {
			return endpoint{method: http.MethodGet, file: true, run: (*call).asset}
		}
		c.path = "/" + c.path
	}
	if e, found := endpoints[c.path]; found {
		return e
	}
	return endpoint{method: http.MethodGet}
}

func (e *endpoint) allows(method string) bool {
	return method == e.method || method == http.MethodHead && e.method == http.MethodGet
}

func (e *endpoint) allowed() string {
	if e.method == http.MethodGet {
		return "GET, HEAD"
	}
	return e.method
}

// accessOf returns what a request is about to do, whether or not it is well-formed.
func (c *call) accessOf(e endpoint, query url.Values) Access {
	single := func(name string) string {
		if values := query[name]; len(values) == 1 {
			return values[0]
		}
		return ""
	}
	asked := Access{Action: Look, Verb: e.verb}
	if e.method != http.MethodGet || !e.allows(c.r.Method) {
		asked.Action = Change // whatever it asks for
	}
	if !e.file {
		asked.Limiter, asked.Hash, asked.Key = single("name"), single("hash"), single("key")
	}
	if e.verb == "undo" {
		number, _ := strconv.ParseInt(single("entry"), 10, 64)
		asked.Limiter, _, _ = c.audit.undoable(number)
	}
	return asked
}

// check refuses a query in which a parameter is missing, unknown or given twice.
func (e *endpoint) check(query url.Values) error {
	if e.file {
		return nil
	}
	for _, param := range e.params {
		name, optional := strings.CutSuffix(param, "?")
		if values := query[name]; len(values) > 1 || !optional && (len(values) == 0 || values[0] == "") {
			return httpjson.BadRequest("the query must have one %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(e.params, name) && !slices.Contains(e.params, name+"?") {
			return httpjson.BadRequest("the query has %q, which means nothing here", name)
		}
	}
	for _, name := range []string{"name", "hash", "key", "client"} {
		if len(query.Get(name)) > maxName {
			return httpjson.BadRequest("the %s has more than %d bytes", name, maxName)
		}
	}
	return nil
}

//go:embed openapi.json
var description []byte

func (c *call) describe() error {
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(description)
	return nil
}

// clientCommands is how many commands listClients sends, about.
const clientCommands = 20

// listClients says who has a limiter's permits in use.
func (c *call) listClients() error {
	name := c.query.Get("name")
	if err := c.within(name); err != nil {
		return err
	}
	ctx, cancel := c.cfg.bounded(c.r.Context())
	defer cancel()
	if err := c.turn(ctx, clientCommands); err != nil {
		return err
	}
	var found holders.Holders
	err := c.with(ctx, name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) (err error) {
		found, err = holders.Of(ctx, l)
		return err
	})
	if err != nil {
		return err
	}
	var inUse int64
	for i := range found.Shares {
		inUse += found.Shares[i].Permits
		found.Shares[i].Name = cut(found.Shares[i].Name, maxTold)
	}
	return c.ok(struct {
		InUse    int64           `json:"in_use"`
		Complete bool            `json:"complete"` // no client was left out
		Clients  []holders.Share `json:"clients"`
	}{inUse, found.Whole, found.Shares})
}
