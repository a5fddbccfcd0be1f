package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

func list(path string) (p listed, err error) {
	out, err := goCommand("list", "-json=Dir,Name,GoFiles,EmbedFiles", path)
	if err == nil {
		err = json.Unmarshal(out, &p)
	}
	return p, err
}

func goCommand(args ...string) ([]byte, error) {
	var problem bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("go %s: %w\n%s", args[0], err, problem.String())
	}
	return out, err
}

func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// overlay is what the go command reads in place of files.
type overlay struct {
	dir     string            // where the texts are
	root    string            // of the repository
	Replace map[string]string // by paths
}

func (o *overlay) put(file, text string) error {
	to := filepath.Join(o.dir, strings.TrimPrefix(file, o.root))
	o.Replace[file] = to
	return write(to, []byte(text))
}

// change writes the packages with all their mutants below dir, where overlay.json tells the go command of them.
func (r *run) change(paths []string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	o := &overlay{dir: filepath.Join(r.dir, "source"), root: root, Replace: map[string]string{}}
	for _, path := range paths {
		p, err := list(path)
		if err == nil {
			err = r.changePackage(o, p)
		}
		if err != nil {
			return err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return write(filepath.Join(r.dir, "overlay.json"), text)
}

// changePackage adds the mutants of a package: of its scripts if it has some, else of its Go code.
func (r *run) changePackage(o *overlay, p listed) error {
	added, scripts := switchText, false
	for _, file := range p.EmbedFiles {
		if filepath.Ext(file) != ".lua" {
			continue
		}
		added, scripts = scriptsText, true
		name := filepath.Join(p.Dir, file)
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		r.add(luaMutants(strings.TrimPrefix(name, o.root+"/"), string(source), len(r.mutants)+1), source)
	}
	for _, file := range p.GoFiles {
		name := filepath.Join(p.Dir, file)
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text := []byte(hasScripts(string(source)))
		if !scripts {
			var found []mutant
			text, found, err = rewrite(strings.TrimPrefix(name, o.root+"/"), source, len(r.mutants)+1)
			r.add(found, text)
		}
		if err == nil {
			err = o.put(name, string(text))
		}
		if err != nil {
			return err
		}
	}
	return o.put(filepath.Join(p.Dir, "mutants.go"), strings.ReplaceAll(added, "PACKAGE", p.Name))
}

func (r *run) add(found []mutant, text []byte) {
	r.mutants = append(r.mutants, found...)
	r.text.Write(text)
}

// build compiles a package's tests.
func (r *run) build(path string) (*suite, error) {
	p, err := list(path)
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(filepath.Clean(path), "/", "_") + ".test"
	s := &suite{path: path, dir: p.Dir, binary: filepath.Join(r.dir, "bin", name)}
	if _, err := goCommand("test", "-c", "-vet=off", "-trimpath", "-ldflags=-w",
		"-overlay", filepath.Join(r.dir, "overlay.json"), "-o", s.binary, path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(s.binary)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has no tests", path)
	}
	s.hash = fmt.Sprintf("%x", sha256.Sum256(text))[:12]
	return s, err
}
