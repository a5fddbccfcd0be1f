// Package fuzztest runs fuzz targets beyond what go test -fuzz does in the same
// time: [Run] has a target also try mutations of its corpus one after another, in
// the test's own process and without looking at coverage, ten to a hundred times as
// many a second. What go test -fuzz finds and is kept in testdata is where they
// begin.
//
//	RRL_FUZZ_RANDOM=30s RRL_FUZZ_SEED=7 go test -run 'FuzzParse$' -v ./codec
//
// scripts/fuzz.sh runs all targets both ways and keeps count.
package fuzztest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Run has check try the inputs of a fuzz target: check is a function of a
// [testing.TB] and of arguments that f.Fuzz can have, and is safe for use by several
// goroutines. Where it takes a *[testing.T] instead, as for bubbles of testing/synctest,
// the target must have inputs in testdata. With RRL_FUZZ_RANDOM in the environment, a duration or a number as in
// 1000000x, it tries mutations of all of them behind that. RRL_FUZZ_SEED draws the
// same again, 1 without it; RRL_FUZZ_WORKERS is how many goroutines do so, each with
// inputs of its own.
func Run(f *testing.F, check any) {
	f.Helper()
	fn := reflect.ValueOf(check)
	in := []reflect.Type{reflect.TypeFor[*testing.T]()}
	for i := 1; i < fn.Type().NumIn(); i++ {
		in = append(in, fn.Type().In(i))
	}
	typ, random := reflect.FuncOf(in, nil, false), os.Getenv("RRL_FUZZ_RANDOM")
	if random == "" {
		f.Fuzz(reflect.MakeFunc(typ, fn.Call).Interface())
		return
	}
	r := &run{name: f.Name(), check: fn}
	last := "" // the subtest of the last input, behind which a *testing.T is to be had for the others
	if fn.Type().In(0) == in[0] {
		if last = lastInput(f.Name()); last == "" {
			f.Fatalf("there is nothing in %s", dirOf(f.Name()))
		}
	}
	f.Fuzz(reflect.MakeFunc(typ, func(args []reflect.Value) []reflect.Value {
		r.corpus = append(r.corpus, args[1:])
		fn.Call(args)
		if t, _ := reflect.TypeAssert[*testing.T](args[0]); last != "" && t.Name() == last && !t.Failed() {
			r.all(t, random)
		}
		return nil
	}).Interface())
	if last == "" && !f.Failed() {
		r.all(f, random)
	}
}

// dirOf is where go test keeps the inputs of a target.
func dirOf(target string) string { return filepath.Join("testdata", "fuzz", target) }

// lastInput returns the name of the subtest that go test runs last for a target.
func lastInput(target string) string {
	files, _ := os.ReadDir(dirOf(target))
	if len(files) == 0 {
		return ""
	}
	return target + "/" + files[len(files)-1].Name()
}

func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// run is one target's mutations.
type run struct {
	name   string
	t      testing.TB
	check  reflect.Value
	corpus [][]reflect.Value
	seed   uint64
	most   int64     // executions; 0: until counts
	until  time.Time // when they end

	done atomic.Int64
}

// all tries mutations for as long as random says.
func (r *run) all(t testing.TB, random string) {
	t.Helper()
	r.t, r.seed = t, number(t, "RRL_FUZZ_SEED", 1)
	if count, ok := strings.CutSuffix(random, "x"); ok {
		r.most, _ = strconv.ParseInt(count, 10, 64)
	} else if d, err := time.ParseDuration(random); err == nil {
		r.until = time.Now().Add(d)
	}
	if r.most < 1 && r.until.IsZero() || len(r.corpus) == 0 {
		t.Fatalf("RRL_FUZZ_RANDOM=%s: want a duration or a number as in 1000x, and a corpus", random)
	}
	workers := number(t, "RRL_FUZZ_WORKERS", uint64(runtime.GOMAXPROCS(0)))
	start := time.Now()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { r.work(rand.New(rand.NewPCG(r.seed, w)), r.most/int64(workers)) })
	}
	wg.Wait()
	// scripts/fuzz.sh reads this line.
	fmt.Printf("random: elapsed: %.1f s, execs: %d, seed: %d, workers: %d\n", time.Since(start).Seconds(), r.done.Load(), r.seed, workers)
}

// work tries mutations until it is time to end or one fails.
func (r *run) work(draw *rand.Rand, most int64) {
	args := make([]reflect.Value, 1+len(r.corpus[0]))
	args[0] = reflect.ValueOf(r.t)
	n := int64(0)
	passed := false
	defer func() {
		r.done.Add(n)
		if panicked := recover(); panicked != nil || !passed {
			r.t.Errorf("execution %d of seed %d fails; panic: %v; kept as %s", n, r.seed, panicked, r.keep(args[1:]))
		}
	}()
	for ; r.goesOn(n, most); n++ {
		r.mutate(draw, args[1:])
		if r.check.Call(args); r.t.Failed() {
			return
		}
	}
	passed = true
}

func (r *run) goesOn(n, most int64) bool {
	if r.most > 0 {
		return n < most
	}
	return n%64 != 0 || time.Now().Before(r.until)
}

// keep writes the input where go test looks for those of the target.
func (r *run) keep(args []reflect.Value) string {
	text := "go test fuzz v1\n"
	for _, arg := range args {
		switch arg.Kind() {
		case reflect.String, reflect.Slice:
			text += fmt.Sprintf("%s(%q)\n", arg.Type(), arg.Interface())
		default:
			text += fmt.Sprintf("%s(%v)\n", arg.Type(), arg.Interface())
		}
	}
	text = strings.ReplaceAll(text, "[]uint8(", "[]byte(")
	dir := dirOf(r.name)
	path := filepath.Join(dir, "random-"+strconv.FormatUint(rand.Uint64(), 36))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return text
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return text
	}
	return path
}
