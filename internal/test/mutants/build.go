package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// What a package gets whose Go code, or whose scripts, have mutants.
var (
	//go:embed switch.go.txt
	switchText string
	//go:embed scripts.go.txt
	scriptsText string
)

// A listed package is what go list tells of it.
type listed struct {
	Dir, Name           string
	GoFiles, EmbedFiles []string
}

func list(path string) (p listed) {
	check(json.Unmarshal(goCommand("list", "-json=Dir,Name,GoFiles,EmbedFiles", path), &p))
	return p
}

func goCommand(args ...string) []byte {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	return must(cmd.Output())
}

func write(file string, text []byte) {
	check(os.MkdirAll(filepath.Dir(file), 0o755))
	check(os.WriteFile(file, text, 0o600))
}

// overlay is what the go command reads in place of files.
type overlay struct {
	dir     string            // where the texts are
	root    string            // of the repository
	Replace map[string]string // by paths
}

func (o *overlay) put(file, text string) {
	to := filepath.Join(o.dir, strings.TrimPrefix(file, o.root))
	o.Replace[file] = to
	write(to, []byte(text))
}

// change writes the packages with all their mutants below dir, where overlay.json tells the go command of them.
func (r *run) change(paths []string) {
	o := &overlay{dir: filepath.Join(r.dir, "source"), root: must(os.Getwd()), Replace: map[string]string{}}
	for _, path := range paths {
		r.changePackage(o, list(path))
	}
	write(filepath.Join(r.dir, "overlay.json"), must(json.Marshal(o)))
}

// changePackage adds the mutants of a package: of its scripts if it has some, else of its Go code.
func (r *run) changePackage(o *overlay, p listed) {
	added, scripts := switchText, false
	for _, file := range p.EmbedFiles {
		if filepath.Ext(file) != ".lua" {
			continue
		}
		added, scripts = scriptsText, true
		name, source := o.read(p.Dir, file)
		r.add(luaMutants(name, string(source), len(r.mutants)+1), source)
	}
	for _, file := range p.GoFiles {
		name, source := o.read(p.Dir, file)
		text := []byte(hasScripts(string(source)))
		if !scripts {
			var found []mutant
			text, found = rewrite(name, source, len(r.mutants)+1)
			r.add(found, text)
		}
		o.put(filepath.Join(p.Dir, file), string(text))
	}
	o.put(filepath.Join(p.Dir, "mutants.go"), strings.ReplaceAll(added, "PACKAGE", p.Name))
}

// read returns a file's name from the root and its text.
func (o *overlay) read(dir, file string) (name string, text []byte) {
	path := filepath.Join(dir, file)
	return strings.TrimPrefix(path, o.root+"/"), must(os.ReadFile(path))
}

func (r *run) add(found []mutant, text []byte) {
	r.mutants = append(r.mutants, found...)
	r.text.Write(text)
}

// build compiles a package's tests.
func (r *run) build(path string) *suite {
	name := strings.ReplaceAll(filepath.Clean(path), "/", "_") + ".test"
	s := &suite{path: path, dir: list(path).Dir, binary: filepath.Join(r.dir, "bin", name)}
	goCommand("test", "-c", "-vet=off", "-trimpath", "-ldflags=-w", "-overlay", filepath.Join(r.dir, "overlay.json"), "-o", s.binary, path)
	s.hash = fmt.Sprintf("%x", sha256.Sum256(must(os.ReadFile(s.binary))))[:12]
	return s
}

// records are what suites have said of mutants, a line each: the mutant's number, the suite, what killed it or nothing.
// A suite whose tests have changed is another.
type records struct {
	file *os.File
	by   map[string]string // by a mutant's number and a suite's hash
}

func (rs *records) open(path string) {
	rs.by = map[string]string{}
	rs.file = must(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600))
	for line := range strings.Lines(string(must(io.ReadAll(rs.file)))) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(fields) == 3 {
			rs.by[fields[0]+" "+fields[1]] = fields[2]
		}
	}
}

func (rs *records) add(m mutant, s *suite, by string) {
	if by != "" {
		by = s.path + " " + by
	}
	rs.by[fmt.Sprint(m.number, " ", s.hash)] = by
	fmt.Fprintf(rs.file, "%d\t%s\t%s\n", m.number, s.hash, by)
}

// of returns what a suite has said of a mutant: by is empty if it survived.
func (rs *records) of(m mutant, s *suite) (by string, asked bool) {
	by, asked = rs.by[fmt.Sprint(m.number, " ", s.hash)]
	return by, asked
}

// What has become of mutants.
const (
	killed    = "killed"
	survives  = "survives"
	unreached = "no test comes by"
	unasked   = "not asked for to the end"
)

// report prints what has survived, and writes how many have to a file for docs/reliability.md.
func (r *run) report(dir string) {
	all := map[string]map[string]int{}
	for _, m := range r.mutants {
		of, fate := m.folder(), r.fate(m)
		if all[of] == nil {
			all[of] = map[string]int{}
		}
		all[of][fate]++
		if r.mine(m) && (fate == survives || fate == unreached) {
			fmt.Printf("%s: %v\n", fate, m)
		}
	}
	var text strings.Builder
	for _, of := range slices.Sorted(maps.Keys(all)) {
		sum, line := 0, ""
		for _, fate := range []string{killed, survives, unreached, unasked} {
			sum += all[of][fate]
			line += fmt.Sprintf("\t%d", all[of][fate])
		}
		fmt.Fprintf(&text, "%s\t%d%s\n", of, sum, line)
		fmt.Printf("%s: %d mutants: %v\n", of, sum, all[of])
	}
	write(filepath.Join(dir, "statements.tsv"), []byte(text.String()))
}

// fate returns what has become of a mutant: if a suite is left that may kill it, it was not asked for to the end.
func (r *run) fate(m mutant) string {
	fate := unreached
	if r.partly {
		fate = unasked
	}
	for _, s := range r.suites {
		by, asked := r.records.of(m, s)
		switch {
		case by != "":
			return killed
		case len(s.testsOf(m)) == 0:
		case !asked:
			fate = unasked
		case fate == unreached:
			fate = survives
		}
	}
	return fate
}
