package envoylimit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func parsed(t testing.TB, text string) *Config {
	t.Helper()
	return limitertest.Must(Parse([]File{{"web.yaml", []byte(text)}}))(t)
}

// limits returns a file with one limit of domain web, with these lines in its rate_limit.
func limits(lines ...string) string {
	return "domain: web\ndescriptors:\n- key: user\n  rate_limit:\n    " + strings.Join(lines, "\n    ") + "\n"
}

func TestParse_SaysWhatIsWrongWithFileAndLine(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]mistake{
		// What envoyproxy/ratelimit refuses too.
		"BadYAML":          {"'''", "web.yaml:1: found unexpected end of stream"},
		"NoDomain":         {"descriptors:\n", "web.yaml:1: the domain is empty or missing"},
		"NoMap":            {"- domain: web", "web.yaml:1: the file is no map of keys and values"},
		"NoKey":            {"domain: web\ndescriptors:\n  - value: v", "web.yaml:3: the descriptor has no key"},
		"KeyTwice":         {"domain: web\ndescriptors:\n- key: k\n  value: v\n\n- key: k\n  value: v", `web.yaml:6: the descriptor "web.k_v" is there twice`},
		"KeyTwiceInText":   {"domain: web\ndescriptors:\n- key: a_b\n- key: a\n  value: b", `web.yaml:4: the descriptor "web.a_b" is there twice`},
		"MisspelledKey":    {"domain: web\ndescriptors:\n- key: k\n  ratelimit: {unit: day}", `web.yaml:4: unknown key "ratelimit"`},
		"KeyIsMap":         {"domain: web\n? {a: b}\n: x", "web.yaml:2: the key a map is no text"},
		"ListOfText":       {"domain: web\ndescriptors:\n- a\n- b", `web.yaml:3: descriptors has "a", which is no map`},
		"NoList":           {"domain: web\ndescriptors: {key: k}", "web.yaml:2: descriptors is no list"},
		"LimitIsText":      {"domain: web\ndescriptors:\n- key: k\n  rate_limit: day", "web.yaml:4: rate_limit is no map"},
		"UnknownUnit":      {limits("unit: foo"), `web.yaml:5: unknown unit "foo"`},
		"UnitUnknown":      {limits("unit: unknown"), `web.yaml:5: unknown unit "unknown"`},
		"NoUnit":           {limits("requests_per_unit: 5"), "web.yaml:5: rate_limit has no unit"},
		"NegativeNumber":   {limits("unit: day", "requests_per_unit: -1"), "\nweb.yaml:6: requests_per_unit is \"-1\", not a whole number from 0 to 4294967295\n"}, // and no more
		"UnlimitedAndUnit": {limits("unlimited: true", "unit: day"), "web.yaml:6: an unlimited limit has no unit"},
		"ReplacesNothing":  {limits("name: self", "replaces:", "- name:", "unit: day"), "web.yaml:7: replaces has an entry without a name"},
		"ReplacesItself":   {limits("name: self", "replaces: [{name: self}]", "unit: day"), `web.yaml:6: the limit "self" replaces itself`},
		"ShareWithoutStar": {"domain: web\ndescriptors:\n- key: k\n  value: v\n  share_threshold: true", "web.yaml:5: share_threshold is for values with a *"},
		"NoBool":           {"domain: web\ndescriptors:\n- key: k\n  shadow_mode: perhaps\n  rate_limit: {unit: day}", `web.yaml:4: shadow_mode is "perhaps", not true or false`},
		"MetadataAlone":    {"domain: web\ndescriptors:\n- key: k\n  metadata: x", "web.yaml:4: metadata is no map"},
		"MetadataOfLists":  {"domain: web\ndescriptors:\n- key: k\n  metadata:\n    l: &a [*a]\n  rate_limit: {unit: day}", "web.yaml:5: metadata is nested more than 100 deep"},
		"MetadataNoNumber": {"domain: web\ndescriptors:\n- key: k\n  metadata: {n: !!int x}\n  rate_limit: {unit: day}", `web.yaml:4: metadata has "x", which is no int`},
		"ValueIsList":      {"domain: web\ndescriptors:\n- key: k\n  value: [a]", "web.yaml:4: value is no text"},
		"SeveralAtOnce":    {limits("unit: foo", "requests_per_unit: x"), "\nweb.yaml:"},
		"NamesItself":      {"a: &a\n  <<: *a", "web.yaml:"},

		// What is this package's own.
		"UnitAndWindow":      {limits("unit: day", "window: 90s"), "web.yaml:5: unit and window are given: choose one"},
		"NoDuration":         {limits("window: 90"), `web.yaml:5: window is "90", not a duration`},
		"UnknownAlgorithm":   {limits("unit: day", "algorithm: gcra"), `web.yaml:6: algorithm is "gcra"`},
		"CalendarOfHours":    {limits("unit: hour", "calendar: UTC"), "web.yaml:6: calendar is for unit: day, week or month"},
		"CalendarOfLog":      {limits("unit: day", "algorithm: sliding_log", "calendar: UTC"), "web.yaml:7: calendar is for"},
		"UnknownZone":        {limits("unit: day", "calendar: Mars"), `web.yaml:6: calendar is "Mars", not a time zone`},
		"BurstOfLog":         {limits("unit: hour", "burst: 5"), "web.yaml:6: burst is for algorithm: token_bucket"},
		"BurstOfNothing":     {limits("unit: hour", "algorithm: token_bucket", "burst: 0"), `web.yaml:7: burst is "0", not a whole number from 1`},
		"EndlessBurst":       {limits("unit: year", "requests_per_unit: 2", "algorithm: token_bucket", "burst: 585"), "web.yaml:8: a bucket with that burst takes"},
		"BucketOfHalves":     {limits("window: 1500ms", "algorithm: token_bucket"), "web.yaml:5: the window of a token_bucket is"},
		"LargeEstimate":      {limits("unit: hour", "requests_per_unit: 4", "estimate: 5"), "web.yaml:7: estimate is above requests_per_unit"},
		"EstimateOfBucket":   {limits("unit: hour", "algorithm: token_bucket", "estimate: 5"), "web.yaml:7: estimate is for algorithm: sliding_log"},
		"HoldOfNothing":      {limits("unit: hour", "hold: 60s"), "web.yaml:6: hold is for limits with an estimate"},
		"UnknownCharge":      {limits("unit: hour", "charge: often"), `web.yaml:6: charge is "often"`},
		"WindowOfDescriptor": {"domain: web\ndescriptors:\n- key: k\n  window: 90s", `web.yaml:4: the key "window" does not belong here`},
		"UnknownFailure":     {"domain: web\nfailure: maybe", `web.yaml:2: failure is "maybe"`},
		"ShareOfOpen":        {"domain: web\nfailure: open\nshare: 0.5", "web.yaml:3: share is for failure: local"},
		"LargeShare":         {"domain: web\nfailure: local\nshare: 2", "web.yaml:3: share is not above 0"},
		"UnknownHash":        {"domain: web\nhash: key", `web.yaml:2: hash is "key"`},
	}, func(t *testing.T, m mistake) {
		_, err := Parse([]File{{"web.yaml", []byte(m.text)}})
		require.Error(t, err)
		assert.Contains(t, "\n"+err.Error()+"\n", m.want)
		for line := range strings.Lines(err.Error()) {
			assert.Regexp(t, `^web\.yaml:\d+: `, line)
		}
	})
}

type mistake struct{ text, want string }

func TestParse_SeveralFiles(t *testing.T) {
	t.Parallel()
	first := File{"a.yaml", []byte("domain: web\nfailure: open\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 10}}")}
	second := File{"b.yaml", []byte("domain: web\ndescriptors:\n- {key: l, value: w, rate_limit: {unit: minute, requests_per_unit: 20}}")}
	other := File{"c.yaml", []byte("domain: shop")}
	_, err := Parse([]File{first, second})
	require.ErrorContains(t, err, `b.yaml:1: another file has the domain "web" too`)
	c := limitertest.Must(Parse([]File{first, other, second}, MergeDomains()))(t)
	assert.Equal(t, []string{"shop", "web"}, c.Domains())
	assert.Len(t, c.domains["web"].entries, 2)
	assert.NotNil(t, c.domains["web"].failure)
	_, err = Parse([]File{first, first}, MergeDomains())
	require.ErrorContains(t, err, `a.yaml:4: the descriptor "web.k_v" is there twice`)
	require.ErrorContains(t, err, "a.yaml:2: failure of a domain belongs in the first of its files")
}

func TestLoad_ReadsTheFilesOfADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := Load(dir)
	require.ErrorContains(t, err, "has no file *.yaml")
	_, err = Load(filepath.Join(dir, "gone"))
	require.ErrorIs(t, err, os.ErrNotExist)
	for name, text := range map[string]string{
		"web.yaml": "domain: web", "shop.yml": "domain: shop", "notes.txt": "'", ".hidden.yaml": "'", "..data/x.yaml": "'",
		"team/a/mail.yaml": "domain: mail", "team/.git/x.yaml": "'", "old.yaml/notes": "'",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, at := range []string{dir, link} {
		assert.Equal(t, []string{"mail", "shop", "web"}, limitertest.Must(Load(at))(t).Domains())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte("domain: web\nx: y"), 0o600))
	_, err = Load(dir)
	require.EqualError(t, err, filepath.Join(dir, "web.yaml")+`:2: unknown key "x"`)
}

// What envoyproxy/ratelimit accepts without effect is accepted, too.
func TestParse_AcceptsWhatHasNoEffectAndSaysSo(t *testing.T) {
	t.Parallel()
	c := parsed(t, limits("unit: HOUR", "requests_per_unit: 5", "shadow_mode: true", "requests_per_unit: 6"))
	assert.Equal(t, []string{
		`web.yaml:6: the key "requests_per_unit" has no effect here: line 8 has it again`,
		`web.yaml:7: the key "shadow_mode" has no effect here`,
	}, c.Warnings())
	r := c.domains["web"].entries["user"].rule
	assert.False(t, r.shadow)
	assert.EqualValues(t, 6, r.limit, "of a key given twice the last counts")
	c = parsed(t, "domain: 12\ndescriptors:\n- key: on\n  value: 0x10\n  rate_limit: &r {unit: day, requests_per_unit: 0x10}\n- key: b\n  shadow_mode: yes\n  rate_limit: {<<: *r, unit: second}")
	assert.EqualValues(t, 16, c.domains["12"].entries["on_0x10"].rule.limit)
	b := c.domains["12"].entries["b"].rule
	assert.EqualValues(t, 16, b.limit)
	assert.Equal(t, time.Second, b.window)
	assert.True(t, b.shadow)
	assert.Empty(t, c.Warnings(), "of what was merged some may be replaced")
	c = parsed(t, "domain: web\n---\n\ndomain: shop")
	assert.Equal(t, []string{"web"}, c.Domains())
	assert.Equal(t, []string{"web.yaml:4: the file has a second document, which has no effect"}, c.Warnings())
	assert.Empty(t, parsed(t, "---\ndomain: web\n---\n").Warnings())
	assert.Equal(t, []string{"web.yaml:8: charge: always beside estimate charges the estimate, and then the cost: nothing is reserved"},
		parsed(t, limits("unit: hour", "requests_per_unit: 5", "estimate: 1", "charge: always")).Warnings())
}

func TestParse_HowALimitCounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		lines  string
		name   string // how counters end
		window time.Duration
		unit   string
		times  int64
	}{
		{"unit: Minute", "minute", time.Minute, "MINUTE", 1},
		{"unit: hour", "hour", time.Hour, "HOUR", 1},
		{"unit: day", "day", day, "DAY", 1},
		{"unit: week", "week", 7 * day, "WEEK", 1},
		{"window: 90s", "1m30s", 90 * time.Second, "SECOND", 90},
		{"window: 60s", "minute", time.Minute, "MINUTE", 1},
		{"window: 500ms", "500ms", 500 * time.Millisecond, "UNKNOWN", 0},
		{"unit: day\n    requests_per_unit: 5\n    estimate: 5", "day.sliding_log", day, "DAY", 1},
		{"unit: hour\n    algorithm: fixed_window", "hour.fixed_window", time.Hour, "HOUR", 1},
		{"unit: hour\n    algorithm: token_bucket\n    burst: 7", "hour.token_bucket", time.Hour, "HOUR", 1},
	} {
		r := parsed(t, limits(strings.Split(tc.lines, "\n    ")...)).domains["web"].entries["user"].rule
		assert.Equal(t, tc.name, r.per.name)
		assert.Equal(t, tc.window, r.window)
		assert.Equal(t, tc.unit, r.unit.String())
		assert.Equal(t, tc.times, r.multiple)
	}
	berlin := parsed(t, limits("unit: month", "calendar: Europe/Berlin")).domains["web"].entries["user"].rule
	assert.Equal(t, "Europe/Berlin", berlin.calendar.String())
	held := parsed(t, limits("unit: hour", "requests_per_unit: 100", "estimate: 100", "hold: 1m", "charge: granted")).domains["web"].entries["user"].rule
	assert.Equal(t, []any{int64(100), time.Minute, "granted"}, []any{held.estimate, held.hold, held.charge})
}

// entries returns the entries of a descriptor written "key=value, key=value".
func entries(text string) (all []*entry) {
	for pair := range strings.SplitSeq(text, ", ") {
		key, value, _ := strings.Cut(pair, "=")
		all = append(all, &entry{Key: key, Value: value})
	}
	return all
}

// matched is what a descriptor matches: a limit, its metric, and the values by which it is counted.
type matched struct {
	descriptor string
	limit      int64 // -1: none
	metric     string
	counter    string
}

// matching is what the cases below ask, those of envoyproxy/ratelimit's test/config and README.
const matching = `
domain: d
descriptors:
- key: key1
  value: value1
  descriptors:
  - {key: sub, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: sub, value: v, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: key2, value: value2, rate_limit: {unit: minute, requests_per_unit: 30}}
- {key: key2, value: value3}
- {key: key5, value: value5, rate_limit: {unit: day, requests_per_unit: 15}, descriptors: [{key: sub5, value: v5, rate_limit: {unit: day, requests_per_unit: 25}}]}
- {key: key7, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 70}}
- {key: wild, value: foo*, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: mid, value: bar*b, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: multi, value: foo*bar*baz, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: nested, value: v, descriptors: [{key: wild, value: goo*, rate_limit: {unit: minute, requests_per_unit: 5}}]}
- {key: order, value: a*, rate_limit: {unit: minute, requests_per_unit: 6}}
- {key: order, value: ab*, rate_limit: {unit: minute, requests_per_unit: 7}}
- {key: order, rate_limit: {unit: minute, requests_per_unit: 8}}
- {key: star, value: "*", rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: files, value: files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- key: files
  value: top/*
  share_threshold: true
  descriptors: [{key: files, value: nested/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}]
- key: route
  value: api/*
  share_threshold: true
  value_to_metric: true
  descriptors: [{key: method, rate_limit: {unit: minute, requests_per_unit: 3}}]
- key: path
  value: path/*
  share_threshold: true
  descriptors: [{key: file, value: file/*, descriptors: [{key: type, rate_limit: {unit: minute, requests_per_unit: 5}}]}]
- {key: file, value: test1, rate_limit: {unit: minute, requests_per_unit: 6}}
- {key: file, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 7}}
- key: route
  value_to_metric: true
  descriptors:
  - key: http_method
    value_to_metric: true
    descriptors: [{key: subject_id, rate_limit: {unit: minute, requests_per_unit: 60}}]
`

func TestMatch_AsThere(t *testing.T) {
	t.Parallel()
	d := parsed(t, matching).domains["d"]
	require.NotNil(t, d)
	for _, want := range []matched{
		{"nothing=x", -1, "", ""},
		{"key1=value1", -1, "", ""},
		{"key1=value2, sub=x", -1, "", ""},
		{"key1=value1, sub=x", 5, "d.key1_value1.sub", "value1,x"},
		{"key1=value1, sub=v", 10, "d.key1_value1.sub_v", "value1,v"},
		{"KEY2=x", -1, "", ""},
		{"key2=x", 20, "d.key2", "x"},
		{"key2=value2", 30, "d.key2_value2", "value2"},
		{"key2=value3", -1, "", ""},
		{"key5=value5", 15, "d.key5_value5", "value5"},
		{"key5=value5, sub5=v5", 25, "d.key5_value5.sub5_v5", "value5,v5"},
		{"key5=value5, sub5=other", -1, "", ""},
		{"key7=any", 70, "d.key7_any", "any"},
		{"wild=foo", 1, "d.wild_foo*", "foo"},
		{"wild=foobar", 1, "d.wild_foo*", "foobar"},
		{"wild=fo", -1, "", ""},
		{"mid=bar-x-b", 3, "d.mid_bar*b", "bar-x-b"},
		{"mid=bar", -1, "", ""},
		{"multi=foo1bar2baz", 4, "d.multi_foo*bar*baz", "foo1bar2baz"},
		{"multi=foobaz", -1, "", ""},
		{"multi=foobarba", -1, "", ""},
		{"nested=v, wild=goober", 5, "d.nested_v.wild_goo*", "v,goober"},
		{"order=abc", 6, "d.order_a*", "abc"},
		{"order=x", 8, "d.order", "x"},
		{"star=", 9, "d.star_*", ""},
		{"files=files/a.pdf", 1, "d.files_files/*", "files/*"},
		{"files=top/x, files=nested/y", 2, "d.files_top/*.files_nested/*", "top/*,nested/*"},
		{"route=api/v1, method=GET", 3, "d.route_api/*.method", "api/*,GET"},
		{"path=path/a, file=file/b, type=pdf", 5, "d.path_path/*.file_file/*.type", "path/*,file/b,pdf"},
		{"file=test1", 6, "d.file_test1", "test1"},
		{"file=test2", 7, "d.file_test*", "test*"},
		{"route=api, http_method=GET, subject_id=123", 60, "d.route_api.http_method_GET.subject_id", "api,GET,123"},
	} {
		r, values, metric := d.match(entries(want.descriptor))
		got := matched{descriptor: want.descriptor, limit: -1}
		if r != nil {
			for i, e := range entries(want.descriptor) {
				if values == nil || i > 0 {
					got.counter += ","
				}
				got.counter += valueOf(e, values, i)
			}
			got.limit, got.metric, got.counter = r.limit, metric, strings.TrimPrefix(got.counter, ",")
		}
		assert.Equal(t, want, got)
	}
}
