package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// program returns the path of a program that scripts/install-prometheus.sh installs.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, at := range []string{"../../.cache/bin/" + name, name} {
		if path, err := exec.LookPath(at); err == nil {
			path, err = filepath.Abs(path)
			require.NoError(t, err)
			return path
		}
	}
	redistest.SkipOrFail(t, "no "+name+": neither .cache/bin nor $PATH has one (scripts/install-prometheus.sh installs it)")
	return ""
}

// prometheusServer is the URL of one that runs for a test.
type prometheusServer string

// startPrometheus starts one that scrapes the targets several times a second and
// evaluates the rules as often.
func startPrometheus(t *testing.T, rules string, targets ...string) prometheusServer {
	t.Helper()
	binary, dir := program(t, "prometheus"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(rules), 0o600))
	config := fmt.Sprintf(`
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: gateway, static_configs: [{targets: ["%s"]}]}]
`, strings.Join(targets, `", "`))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	for range 5 {
		// Somebody may take the port between the look for a free one and the start.
		if p := tryPrometheus(t, binary, dir); p != "" {
			return p
		}
	}
	said, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Fail(t, "prometheus does not come up", "%s", said)
	return ""
}

// supervise runs "$@" until the shell's standard input ends: with the test's process,
// however that ends, the server does.
const supervise = `exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r word <&3; kill -9 $server 2>/dev/null; } &
wait $server`

// tryPrometheus returns "" if the server does not come up.
func tryPrometheus(t *testing.T, binary, dir string) prometheusServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	cmd := exec.Command("sh", "-c", supervise, "supervise", binary,
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		<-ended
	})
	p := prometheusServer("http://" + address)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			return ""
		default:
		}
		if _, err := p.get("/-/ready", nil); err == nil {
			return p
		}
	}
	return ""
}

func (p prometheusServer) get(path string, query url.Values) ([]byte, error) {
	client := http.Client{Timeout: 10 * time.Second}
	got, err := client.Get(string(p) + path + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if err == nil && got.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", got.Status, text)
	}
	return text, err
}

// vector is the answer to a query: values by that of one label.
type vector map[string]float64

// query asks for the value of an expression at a moment.
func (p prometheusServer) query(expr, label string, at time.Time) (vector, error) {
	text, err := p.get("/api/v1/query", url.Values{"query": {expr}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	all := vector{}
	for _, one := range answer.Data.Result {
		text, _ := one.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		if !math.IsNaN(value) {
			all[one.Metric[label]] = value
		}
	}
	return all, nil
}
