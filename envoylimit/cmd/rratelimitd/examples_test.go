package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/rratelimiter/rratelimiter/envoylimit"
)

// examples is the folder of what users run.
var examples = filepath.Join("..", "..", "..", "examples", "envoy")

// documents returns the documents of a YAML file.
func documents(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, file))
	require.NoError(t, err)
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var one map[string]any
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, file)
		all = append(all, one)
	}
}

// at returns what is at a path of keys and, for lists, first elements.
func at(v any, path ...string) any {
	for _, key := range path {
		if list, is := v.([]any); is {
			v = list[0]
		}
		of, _ := v.(map[string]any)
		v = of[key]
	}
	return v
}

// checkCommand checks that rratelimitd knows the arguments that a file gives it.
func checkCommand(t *testing.T, args any) {
	t.Helper()
	var words []string
	for _, word := range args.([]any) {
		words = append(words, word.(string))
	}
	require.Equal(t, "serve", words[0])
	s := &settings{}
	require.NoError(t, newFlags(s).Parse(words[1:]))
	assert.Equal(t, "/limits", s.config)
}

func TestExamples_LimitsAreRight(t *testing.T) {
	t.Parallel()
	config, err := envoylimit.Load(filepath.Join(examples, "limits"))
	require.NoError(t, err)
	assert.Equal(t, []string{"llm", "web"}, config.Domains())
	assert.Empty(t, config.Warnings())
}

func TestExamples_ComposeNamesWhatExists(t *testing.T) {
	t.Parallel()
	services := documents(t, "compose.yaml")[0]["services"]
	for name, service := range services.(map[string]any) {
		volumes, _ := at(service, "volumes").([]any)
		for _, volume := range volumes {
			from, _, _ := strings.Cut(volume.(string), ":")
			_, err := os.Stat(filepath.Join(examples, from))
			require.NoError(t, err, name)
		}
	}
	checkCommand(t, at(services, "rratelimitd", "command"))
	_, err := os.Stat(filepath.Join(examples, at(services, "rratelimitd", "build", "context").(string), at(services, "rratelimitd", "build", "dockerfile").(string)))
	require.NoError(t, err)
	for _, file := range []string{"prometheus.yaml", "grafana/datasource.yaml", "grafana/dashboards.yaml"} {
		assert.Len(t, documents(t, file), 1)
	}
}

func TestExamples_KubernetesRunsWhatServes(t *testing.T) {
	t.Parallel()
	all := documents(t, "kubernetes.yaml")
	require.Len(t, all, 2)
	deployment, service := all[0], all[1]
	assert.Equal(t, at(deployment, "spec", "selector", "matchLabels"), at(deployment, "spec", "template", "metadata", "labels"))
	assert.Equal(t, at(deployment, "spec", "selector", "matchLabels"), at(service, "spec", "selector"))
	container := at(deployment, "spec", "template", "spec", "containers")
	checkCommand(t, at(container, "args"))
	assert.Equal(t, "ratelimit", at(container, "readinessProbe", "grpc", "service"))
	assert.Equal(t, 8081, at(container, "ports", "containerPort"))
	assert.Equal(t, at(container, "volumeMounts", "name"), at(deployment, "spec", "template", "spec", "volumes", "name"))
}
