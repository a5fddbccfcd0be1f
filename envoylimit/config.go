package envoylimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Config is the limits of all domains. Make one with [Load] or [Parse]; it does not change.
type Config struct {
	domains  map[string]*domain
	warnings []string
}

// File is a configuration file: its name, for errors, and what is in it.
type File struct {
	Name string
	Data []byte
}

// ConfigOption configures [Load] and [Parse].
type ConfigOption func(*parser)

// MergeDomains lets several files have limits of one domain, as MERGE_DOMAIN_CONFIG does in envoyproxy/ratelimit.
// Without it, a second file of a domain is an error.
func MergeDomains() ConfigOption { return func(p *parser) { p.merge = true } }

// Load reads the files of a directory, as [ReadFiles] and [Parse] do.
func Load(dir string, opts ...ConfigOption) (*Config, error) {
	files, err := ReadFiles(dir)
	if err != nil {
		return nil, err
	}
	return Parse(files, opts...)
}

// ReadFiles returns the files *.yaml and *.yml of a directory and those in it, in the order of their names, as
// envoyproxy/ratelimit does. Files and directories whose names begin with a dot are left out. A directory without such files
// is an error.
func ReadFiles(dir string) ([]File, error) {
	var files []File
	of := os.DirFS(dir)
	err := fs.WalkDir(of, ".", func(name string, e fs.DirEntry, err error) error {
		ext := path.Ext(name)
		switch hidden := len(name) > 1 && strings.HasPrefix(e.Name(), "."); {
		case err != nil:
			return err
		case hidden && e.IsDir():
			return fs.SkipDir
		case hidden || e.IsDir() || ext != ".yaml" && ext != ".yml":
			return nil
		}
		data, err := fs.ReadFile(of, name)
		files = append(files, File{filepath.Join(dir, name), data})
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("envoylimit: %s: %w", dir, err)
	case len(files) == 0:
		return nil, fmt.Errorf("envoylimit: %s has no file *.yaml", dir)
	}
	return files, nil
}

// Parse reads configuration files as envoyproxy/ratelimit has them, with this package's own keys: docs/envoy.md has
// them. The error joins all that is wrong, each with file and line.
func Parse(files []File, opts ...ConfigOption) (*Config, error) {
	p := &parser{config: &Config{domains: map[string]*domain{}}}
	for _, opt := range opts {
		opt(p)
	}
	for _, f := range files {
		p.parse(f)
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	return p.config, nil
}

// Warnings returns the parts of the files that have no effect, such as misplaced keys, with file and line.
func (c *Config) Warnings() []string { return slices.Clone(c.warnings) }

// Domains returns the names of the domains, in order.
func (c *Config) Domains() []string {
	var all []string
	for name := range c.domains {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// domain is the limits of one domain.
type domain struct {
	level

	name    string
	failure *limit.Failure // nil: calls fail, and Envoy's failure_mode_deny decides
	closed  bool           // calls are refused
	spread  bool           // counters are spread by descriptor, and not kept together by domain
}

// level is descriptors beside each other.
type level struct {
	entries   map[string]*node // by key, or by key_value
	wildcards []*node          // in the order of the file
}

// node is a descriptor of the configuration.
type node struct {
	level

	name          string   // key, or key_value
	parts         []string // of a wildcard: the text between its stars
	rule          *rule    // nil: requests pass
	valueToMetric bool
	share         bool // all values of the wildcard have one counter
}

// algorithm is how a limit counts.
type algorithm string

const (
	slidingLog  algorithm = "sliding_log"
	fixedWindow algorithm = "fixed_window"
	tokenBucket algorithm = "token_bucket"
)

// rule is a rate limit, with what its descriptor says beside it.
type rule struct {
	per

	limit     int64
	unlimited bool
	name      string
	replaces  []string
	shadow    bool
	quota     bool
	detailed  bool
	metric    string         // how metrics call it, if no values are part of that
	metadata  map[string]any // nil: none

	estimate int64         // 0: nothing is reserved
	hold     time.Duration // 0: an interval
	charge   string        // "", "granted" or "always"
}

// per is how a counter counts, apart from how much: counters with another are others.
type per struct {
	name      string // how the names of counters end that count by it
	unit      unit
	multiple  int64 // of the unit; 0: the window is no multiple of a unit that the protocol can say
	window    time.Duration
	algorithm algorithm
	burst     int64          // of a token bucket; 0: the limit
	calendar  *time.Location // of a fixed window of a day, a week or a month; nil: aligned to 1970
}
