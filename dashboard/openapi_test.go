package dashboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// document is openapi.json.
type document struct{ root m }

var described = sync.OnceValue(func() (d document) {
	if err := json.Unmarshal(description, &d.root); err != nil {
		panic(err)
	}
	return d
})

// follow returns what a $ref stands for, and v itself if it is none.
func (d document) follow(v any) m {
	o := v.(m)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	at := d.root
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		next, ok := at[name].(m)
		if !ok {
			panic("openapi.json has no " + ref)
		}
		at = next
	}
	return at
}

// check returns what of v is against the schema. It knows the words that openapi.json
// uses, and panics at others.
func (d document) check(schema, v any) error {
	s := d.follow(schema)
	for word, want := range s {
		if err := d.checkWord(s, word, want, v); err != nil {
			return err
		}
	}
	return nil
}

func isOfType(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case m:
		return name == "object"
	case []any:
		return name == "array"
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	}
	return false
}

func (d document) checkWord(s m, word string, want, v any) error {
	number, isNumber := v.(float64)
	text, isText := v.(string)
	members, isObject := v.(m)
	items, _ := v.([]any)
	ok := true
	switch word {
	case "description", "default":
	case "type":
		kinds, several := want.([]any)
		if !several {
			kinds = []any{want}
		}
		ok = slices.ContainsFunc(kinds, func(kind any) bool { return isOfType(kind.(string), v) })
	case "enum":
		ok = slices.Contains(want.([]any), v)
	case "minimum":
		ok = !isNumber || number >= want.(float64)
	case "maximum":
		ok = !isNumber || number <= want.(float64)
	case "minLength":
		ok = !isText || float64(len(text)) >= want.(float64)
	case "required":
		for _, name := range want.([]any) {
			_, there := members[name.(string)]
			ok = ok && (there || !isObject)
		}
	case "additionalProperties":
		properties, _ := s["properties"].(m)
		for name := range members {
			_, known := properties[name]
			ok = ok && (known || want != false)
		}
	case "properties":
		for name, property := range want.(m) {
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
	case "oneOf", "anyOf":
		matches := 0
		for _, part := range want.([]any) {
			if d.check(part, v) == nil {
				matches++
			}
		}
		ok = matches == 1 || matches > 0 && word == "anyOf"
	default:
		panic("openapi.json uses " + word)
	}
	if !ok {
		return fmt.Errorf("%v is against %q: %v", v, word, want)
	}
	return nil
}

// item returns what is documented of a path, nil for nothing.
func (d document) item(path string) m {
	paths := d.root["paths"].(m)
	if _, isPreview := strings.CutPrefix(path, "/preview/"); isPreview && endpoints[path].run != nil {
		path = "/preview/{verb}"
	}
	item, _ := paths[path].(m)
	return item
}

// checkAnswer checks an answer of the API against what is documented for its status.
func (d document) checkAnswer(t *testing.T, method, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	item := d.item(path)
	if item == nil {
		return
	}
	operation, ok := item[strings.ToLower(strings.Replace(method, http.MethodHead, http.MethodGet, 1))].(m)
	if !ok {
		assert.GreaterOrEqual(t, w.Code, http.StatusBadRequest, "%s %s is not documented", method, path)
		return
	}
	responses := operation["responses"].(m)
	documented, ok := responses[fmt.Sprint(w.Code)]
	if !ok && w.Code >= http.StatusBadRequest {
		documented, ok = responses["default"]
	}
	require.True(t, ok, "%s %s answers %d", method, path, w.Code)
	kind := w.Header().Get("Content-Type")
	media, ok := d.follow(documented)["content"].(m)[kind].(m)
	require.True(t, ok, "%s %s answers with %s", method, path, kind)
	if kind == "text/event-stream" {
		return
	}
	var answer any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), "%s", w.Body)
	require.NoError(t, d.check(media["schema"], answer), "%s %s: %s", method, path, w.Body)
}

// checkBody returns how the body of a change violates the description.
func (d document) checkBody(t *testing.T, verb, body string) error {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	return d.check(d.schemaOf(verb), v)
}

// schemaOf returns the schema of a change's body.
func (d document) schemaOf(verb string) any {
	content := d.follow(d.item("/change/" + verb)["post"].(m)["requestBody"])["content"].(m)
	return content["application/json"].(m)["schema"]
}

func TestOpenAPI_NamesAllPathsMethodsAndParameters(t *testing.T) {
	t.Parallel()
	s, d := newSite(t), described()
	assert.Equal(t, "3.1.0", d.root["openapi"])
	assert.Equal(t, d.root, s.get("/api/openapi.json"))
	paths := slices.DeleteFunc(slices.Collect(maps.Keys(endpoints)), func(path string) bool { return strings.HasPrefix(path, "/preview/") })
	assert.ElementsMatch(t, append(paths, "/preview/{verb}"), slices.Collect(maps.Keys(d.root["paths"].(m))))
	verbs := []any{}
	for _, verb := range slices.Sorted(maps.Keys(kinds)) {
		verbs = append(verbs, verb)
		schema := d.follow(d.schemaOf(verb))
		assert.ElementsMatch(t, strings.Fields(kinds[verb].fields+" expect"), slices.Collect(maps.Keys(schema["properties"].(m))), verb)
		assert.Equal(t, false, schema["additionalProperties"], verb)
	}
	assert.Equal(t, verbs, d.root["paths"].(m)["/preview/{verb}"].(m)["parameters"].([]any)[0].(m)["schema"].(m)["enum"])
	for path, e := range endpoints {
		item := d.item(path)
		methods := slices.DeleteFunc(slices.Collect(maps.Keys(item)), func(word string) bool { return word == "parameters" })
		assert.Equal(t, []string{strings.ToLower(e.method)}, methods, path)
		var params []string
		for _, v := range toList(item["parameters"]) {
			p := d.follow(v)
			if p["in"] == "query" {
				params = append(params, p["name"].(string)+map[any]string{nil: "?"}[p["required"]])
			}
		}
		if !strings.HasPrefix(path, "/preview/") { // which takes those of the change
			assert.Equal(t, e.params, params, path)
		}
		w := s.do(httptest.NewRequestWithContext(t.Context(), "TEST", "/api"+path, http.NoBody))
		assert.Equal(t, http.StatusUnauthorized, w.Code, path)
		r := s.request("/api"+path, m{})
		r.Method = "TEST"
		w = s.do(r)
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, path)
		assert.Equal(t, e.allowed(), w.Header().Get("Allow"), path)
	}
}

func toList(v any) []any {
	list, _ := v.([]any)
	return list
}
