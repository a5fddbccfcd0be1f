package admin_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit/admin"
)

type object = map[string]any

// document is openapi.json.
type document struct{ root object }

var readDocument = sync.OnceValues(func() (d document, err error) {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d.root)
})

func described(t *testing.T) document {
	t.Helper()
	d, err := readDocument()
	require.NoError(t, err)
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

// checkAnswer checks an answer against what is documented for its status, if the request
// is.
func (d document) checkAnswer(t *testing.T, method, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	item, ok := d.root["paths"].(object)[path].(object)
	if !ok {
		return
	}
	if method == http.MethodHead {
		method = http.MethodGet
	}
	operation, ok := item[strings.ToLower(method)].(object)
	if !ok || method != strings.ToUpper(method) {
		assert.GreaterOrEqual(t, w.Code, http.StatusBadRequest, "%s %s is not documented", method, path)
		return
	}
	responses := operation["responses"].(object)
	documented, ok := responses[fmt.Sprint(w.Code)]
	if !ok && w.Code >= http.StatusBadRequest {
		documented, ok = responses["default"]
	}
	require.True(t, ok, "%s %s answers %d", method, path, w.Code)
	content, ok := d.follow(documented)["content"].(object)
	if !ok {
		assert.Empty(t, w.Body.String())
		return
	}
	media, ok := content[w.Header().Get("Content-Type")].(object)
	require.True(t, ok, "%s %s answers with %s", method, path, w.Header().Get("Content-Type"))
	var answer any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.NoError(t, d.check(media["schema"], answer), "%s %s: %s", method, path, w.Body)
}

// checkBody returns what is against the description in the body of a request.
func (d document) checkBody(t *testing.T, what, body string) error {
	t.Helper()
	method, target, _ := strings.Cut(what, " ")
	path, _, _ := strings.Cut(target, "?")
	operation := d.root["paths"].(object)[path].(object)[strings.ToLower(method)].(object)
	var v any
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	return d.check(operation["requestBody"].(object)["content"].(object)["application/json"].(object)["schema"], v)
}

func TestDescriptionNamesEachPathAndMethod(t *testing.T) {
	t.Parallel()
	r, d := miniRig(t), described(t)
	assert.Equal(t, "3.1.0", d.root["openapi"])
	text, err := json.Marshal(d.root)
	require.NoError(t, err)
	r.ask("GET /openapi.json", "", http.StatusOK, string(text))
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
		w := r.ask("TEST "+path, "", http.StatusMethodNotAllowed, "")
		assert.Equal(t, strings.Join(methods, ", "), w.Header().Get("Allow"), path)

		all := "?"
		for i, name := range query {
			r.ask("GET "+path+all, "", http.StatusBadRequest, "one "+name)
			all += strings.Repeat("&", min(i, 1)) + name + "=x"
		}
		w = serve(t, r, request("GET "+path+all, ""))
		assert.NotEqual(t, http.StatusBadRequest, w.Code, w.Body)
	}
}
