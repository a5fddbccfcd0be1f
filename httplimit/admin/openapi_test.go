package admin_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit/admin"
)

type object = map[string]any

// document is openapi.json.
type document struct{ root object }

func readDocument(t *testing.T, r *rig) document {
	t.Helper()
	w := r.do(http.MethodGet, "/openapi.json", "")
	require.Equal(t, http.StatusOK, w.Code)
	var d document
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &d.root))
	assert.Equal(t, "3.1.0", d.root["openapi"])
	return d
}

// follow returns what a $ref stands for, and v itself where it is none.
func (d document) follow(v any) object {
	o := v.(object)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	at := d.root
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		next, ok := at[name].(object)
		if !ok {
			panic("openapi.json has no " + ref)
		}
		at = next
	}
	return at
}

// check returns what of v is against the schema. It knows the words that
// openapi.json uses, and panics at others.
func (d document) check(schema, v any) error {
	s := d.follow(schema)
	for word, want := range s {
		if err := d.checkWord(s, word, want, v); err != nil {
			return err
		}
	}
	return nil
}

func (d document) checkWord(s object, word string, want, v any) error {
	number, isNumber := v.(float64)
	text, isText := v.(string)
	members, isObject := v.(object)
	items, _ := v.([]any)
	ok := true
	switch word {
	case "description", "default":
	case "type":
		_, isArray := v.([]any)
		_, isBool := v.(bool)
		ok = map[string]bool{
			"object": isObject, "array": isArray, "string": isText, "boolean": isBool,
			"integer": isNumber && number == math.Trunc(number),
		}[want.(string)]
	case "enum":
		ok = slices.Contains(want.([]any), v)
	case "minimum":
		ok = !isNumber || number >= want.(float64)
	case "maximum":
		ok = !isNumber || number <= want.(float64)
	case "minLength":
		ok = !isText || float64(len(text)) >= want.(float64)
	case "pattern":
		ok = !isText || regexp.MustCompile(want.(string)).MatchString(text)
	case "required":
		for _, name := range want.([]any) {
			_, there := members[name.(string)]
			ok = ok && (there || !isObject)
		}
	case "additionalProperties":
		properties, _ := s["properties"].(object)
		for name := range members {
			_, known := properties[name]
			ok = ok && (known || want != false)
		}
	case "properties":
		for name, property := range want.(object) {
			if member, there := members[name]; there {
				if err := d.check(property, member); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	case "items":
		for _, item := range items {
			if err := d.check(want, item); err != nil {
				return err
			}
		}
	case "oneOf", "allOf", "anyOf":
		all := want.([]any)
		matches := 0
		for _, part := range all {
			if d.check(part, v) == nil {
				matches++
			}
		}
		ok = matches == 1 && word == "oneOf" || matches > 0 && word == "anyOf" || matches == len(all)
	default:
		panic("openapi.json uses " + word)
	}
	if !ok {
		return fmt.Errorf("%v is against %q: %v", v, word, want)
	}
	return nil
}

// operation is a method of a path.
func (d document) operation(t *testing.T, path, method string) object {
	t.Helper()
	operation, ok := d.root["paths"].(object)[path].(object)[strings.ToLower(method)].(object)
	require.True(t, ok, "%s %s is not documented", method, path)
	return operation
}

// checkAnswer checks an answer against what is documented for its status.
func (d document) checkAnswer(t *testing.T, r *rig, method, target, body string) {
	t.Helper()
	path, _, _ := strings.Cut(target, "?")
	w := r.do(method, target, body)
	responses := d.operation(t, path, method)["responses"].(object)
	documented, ok := responses[fmt.Sprint(w.Code)]
	if !ok && w.Code >= http.StatusBadRequest {
		documented, ok = responses["default"]
	}
	require.True(t, ok, "%s %s answers %d", method, target, w.Code)
	content, ok := d.follow(documented)["content"].(object)
	if !ok {
		assert.Empty(t, w.Body.String())
		return
	}
	media, ok := content[w.Header().Get("Content-Type")].(object)
	require.True(t, ok, "%s %s answers with %s", method, target, w.Header().Get("Content-Type"))
	var answer any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.NoError(t, d.check(media["schema"], answer), "%s %s: %s", method, target, w.Body)
}

func TestDescriptionNamesEachPathAndMethod(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	d := readDocument(t, r)
	paths := d.root["paths"].(object)
	assert.Equal(t, admin.Paths(), slices.Sorted(maps.Keys(paths)))
	for path, item := range paths {
		methods := []string{http.MethodHead}
		var query []string
		for word, v := range item.(object) {
			if word != "parameters" {
				methods = append(methods, strings.ToUpper(word))
				continue
			}
			for _, p := range v.([]any) {
				assert.Equal(t, "query", d.follow(p)["in"])
				query = append(query, d.follow(p)["name"].(string))
			}
		}
		slices.Sort(methods)
		w := r.do("TEST", path, "")
		assert.Equal(t, strings.Join(methods, ", "), w.Header().Get("Allow"), path)

		all := ""
		for i, name := range query {
			w = r.do(http.MethodGet, path+"?"+all, "")
			assert.Equal(t, http.StatusBadRequest, w.Code)
			assert.Contains(t, w.Body.String(), "one "+name)
			all += strings.Repeat("&", min(i, 1)) + name + "=x"
		}
		w = r.do(http.MethodGet, path+"?"+all, "")
		assert.NotEqual(t, http.StatusBadRequest, w.Code, w.Body)
	}
}

func TestAnswersAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	d := readDocument(t, r)
	check := func(method, target, body string) { d.checkAnswer(t, r, method, target, body) }
	check(http.MethodGet, "/openapi.json", "")
	check(http.MethodGet, "/limiters", "")
	check(http.MethodGet, "/rate?name=orders", "")
	check(http.MethodPatch, "/rate?name=orders", `{"rate":1}`)
	check(http.MethodPut, "/rate?name=orders", rateBody(1, "1s"))
	check(http.MethodPut, "/rate?name=orders", `{"type":"PER_CLIENT","rate":9007199254740991,"interval":1,"keepAlive":"1h"}`)
	check(http.MethodGet, "/rate?name=orders", "")
	check(http.MethodPatch, "/rate?name=orders", `{"rate":1}`)
	check(http.MethodPatch, "/rate?name=orders", `{}`)
	check(http.MethodPut, "/rate?name=unknown", `{"rate":1}`)
	check(http.MethodGet, "/limiters", "")
	check(http.MethodPut, target("k"), `{"threshold":0}`)
	check(http.MethodGet, target("k"), "")
	check(http.MethodGet, "/thresholds?limiter=web", "")
	require.NoError(t, r.rdb.HSet(t.Context(), configKey, "bad", "many").Err())
	check(http.MethodGet, "/thresholds?limiter=web", "")
	check(http.MethodGet, target("bad"), "")
	check(http.MethodDelete, target("k"), "")
	check(http.MethodGet, target("k"), "")
	check(http.MethodGet, "/thresholds?limiter=web", "")
	check(http.MethodPut, target("k"), "")
	require.NoError(t, r.rdb.HSet(t.Context(), "orders", "rate", "x").Err())
	check(http.MethodGet, "/rate?name=orders", "")
	check(http.MethodGet, "/limiters", "")
}

// TestBodiesAreAsDescribed finds that the handler takes a body if and only if
// the description does.
func TestBodiesAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	d := readDocument(t, r)
	for _, c := range []struct{ method, target, body string }{
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":1000,"keepAlive":0,"type":"OVERALL","keepState":true}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":1000,"keepAlive":"0s","type":"PER_CLIENT","keepState":false}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":0,"interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1.5,"interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":"1","interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":9007199254740993,"interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":-5}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":""}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":0}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":1}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":1.5}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":9223372036854}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":9223372036855}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"0s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"0"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"+1h2.5m.5s250ms"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"2000us"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1 s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"-1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1d12h"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1d0"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":".5d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"0d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1dd"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1h1d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"+1d"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1s","keepAlive":"0"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":true}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1}`},
		{http.MethodPut, "/rate?name=orders", `{"interval":"1s"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1s","type":"overall"}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1s","burst":1}`},
		{http.MethodPut, "/rate?name=orders", `{"rate":1,"interval":"1s","keepState":"yes"}`},
		{http.MethodPatch, "/rate?name=orders", `{"rate":1}`},
		{http.MethodPatch, "/rate?name=orders", `{"keepAlive":"1h"}`},
		{http.MethodPatch, "/rate?name=orders", `{}`},
		{http.MethodPatch, "/rate?name=orders", `[]`},
		{http.MethodPatch, "/rate?name=orders", `{"keepState":true}`},
		{http.MethodPatch, "/rate?name=orders", `{"type":"OVERALL","keepState":true}`},
		{http.MethodPatch, "/rate?name=orders", `{"keepAlive":-1}`},
		{http.MethodPut, target("k"), `{"threshold":0}`},
		{http.MethodPut, target("k"), `{"threshold":9007199254740991}`},
		{http.MethodPut, target("k"), `{"threshold":-1}`},
		{http.MethodPut, target("k"), `{"threshold":null}`},
		{http.MethodPut, target("k"), `{"threshold":1,"x":1}`},
		{http.MethodPut, target("k"), `{}`},
		{http.MethodPut, target("k"), `3`},
	} {
		path, _, _ := strings.Cut(c.target, "?")
		body := d.operation(t, path, c.method)["requestBody"].(object)["content"].(object)["application/json"].(object)
		var v any
		require.NoError(t, json.Unmarshal([]byte(c.body), &v))
		described := d.check(body["schema"], v)
		w := r.do(c.method, c.target, c.body)
		if described == nil {
			assert.Equal(t, http.StatusOK, w.Code, "%s %s: %s", c.method, c.body, w.Body)
		} else {
			assert.Equal(t, http.StatusBadRequest, w.Code, "%s %s is against the description: %v", c.method, c.body, described)
		}
	}
}
