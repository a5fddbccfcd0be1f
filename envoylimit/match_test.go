package envoylimit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
- {key: plain, value: foo, rate_limit: {unit: minute, requests_per_unit: 2}}
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
- key: service
  value: svc/*
  share_threshold: true
  descriptors: [{key: endpoint, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 4}}]
- key: path
  value: path/*
  share_threshold: true
  descriptors: [{key: file, value: file/*, descriptors: [{key: type, rate_limit: {unit: minute, requests_per_unit: 5}}]}]
- {key: file, value: test1, rate_limit: {unit: minute, requests_per_unit: 6}}
- {key: file, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 7}}
- {key: mid, value: /api*v1, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 8}}
- key: route
  value_to_metric: true
  descriptors:
  - key: http_method
    value_to_metric: true
    descriptors: [{key: subject_id, rate_limit: {unit: minute, requests_per_unit: 60}}]
- key: user
  value_to_metric: true
  descriptors:
  - key: action
    value: read*
    value_to_metric: true
    descriptors: [{key: resource, rate_limit: {unit: minute, requests_per_unit: 100}}]
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
		{"key1=value1, sub=v, more=x", -1, "", ""},
		{"KEY2=x", -1, "", ""},
		{"key2=x", 20, "d.key2", "x"},
		{"key2=", 20, "d.key2", ""},
		{"key2=value2", 30, "d.key2_value2", "value2"},
		{"key2=value3", -1, "", ""},
		{"key5=value5", 15, "d.key5_value5", "value5"},
		{"key5=value5, sub5=v5", 25, "d.key5_value5.sub5_v5", "value5,v5"},
		{"key5=value5, sub5=other", -1, "", ""},
		{"key7=any", 70, "d.key7_any", "any"},
		{"wild=foo", 1, "d.wild_foo*", "foo"},
		{"wild=foobar", 1, "d.wild_foo*", "foobar"},
		{"wild=fo", -1, "", ""},
		{"plain=foobar", -1, "", ""},
		{"mid=barb", 3, "d.mid_bar*b", "barb"},
		{"mid=bar-x-b", 3, "d.mid_bar*b", "bar-x-b"},
		{"mid=bar", -1, "", ""},
		{"mid=barc", -1, "", ""},
		{"multi=foobarbaz", 4, "d.multi_foo*bar*baz", "foobarbaz"},
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
		{"service=svc/a, endpoint=get", 4, "d.service_svc/*.endpoint_get", "svc/*,get"},
		{"path=path/a, file=file/b, type=pdf", 5, "d.path_path/*.file_file/*.type", "path/*,file/b,pdf"},
		{"file=test1", 6, "d.file_test1", "test1"},
		{"file=test2", 7, "d.file_test*", "test*"},
		{"mid=/api/x/v1", 8, "d.mid_/api*v1", "/api*v1"},
		{"route=api, http_method=GET, subject_id=123", 60, "d.route_api.http_method_GET.subject_id", "api,GET,123"},
		{"user=alice, action=readfile, resource=doc", 100, "d.user_alice.action_readfile.resource", "alice,readfile,doc"},
		{"user=alice, action=write, resource=doc", -1, "", ""},
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
