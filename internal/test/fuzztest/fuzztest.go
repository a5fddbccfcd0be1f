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
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Run has check try the inputs of a fuzz target: check is a function of a
// [testing.TB] and of text, bytes, bools and unsigned integers, and is safe for use by
// several goroutines. If it takes a *[testing.T] instead, as for bubbles of
// testing/synctest, the target must have inputs in testdata. With RRL_FUZZ_RANDOM in the
// environment, a duration or a number as in 1000000x, it tries mutations of all of them
// behind that. RRL_FUZZ_SEED draws the same again, 1 without it; RRL_FUZZ_WORKERS is how
// many goroutines do so, each with inputs of its own.
func Run(f *testing.F, check any) {
	f.Helper()
	r := &run{dir: filepath.Join("testdata", "fuzz", f.Name()), check: reflect.ValueOf(check)}
	in := []reflect.Type{reflect.TypeFor[*testing.T]()}
	for i := 1; i < r.check.Type().NumIn(); i++ {
		in = append(in, r.check.Type().In(i))
	}
	random := os.Getenv("RRL_FUZZ_RANDOM")
	last := "" // the subtest of the last input, behind which a *testing.T is to be had for the others
	if random != "" && r.check.Type().In(0) == in[0] {
		files, err := os.ReadDir(r.dir)
		if err != nil || len(files) == 0 {
			f.Fatalf("there is nothing in %s: %v", r.dir, err)
		}
		last = f.Name() + "/" + files[len(files)-1].Name()
	}
	f.Fuzz(reflect.MakeFunc(reflect.FuncOf(in, nil, false), func(args []reflect.Value) []reflect.Value {
		r.check.Call(args)
		if random != "" {
			r.corpus = append(r.corpus, args[1:])
		}
		if t, _ := reflect.TypeAssert[*testing.T](args[0]); last != "" && t.Name() == last && !t.Failed() {
			r.all(t, random)
		}
		return nil
	}).Interface())
	if random != "" && last == "" && !f.Failed() {
		r.all(f, random)
	}
}

// run is one target's mutations.
type run struct {
	dir    string // where go test keeps the inputs
	t      testing.TB
	check  reflect.Value
	corpus [][]reflect.Value
	seed   uint64
	most   int64     // executions of each worker; 0: until counts
	until  time.Time // when they end
	done   atomic.Int64
}

// all tries mutations for as long as random says.
func (r *run) all(t testing.TB, random string) {
	t.Helper()
	start := time.Now()
	seed, seedErr := strconv.ParseUint(cmp.Or(os.Getenv("RRL_FUZZ_SEED"), "1"), 10, 64)
	workers, err := strconv.ParseInt(cmp.Or(os.Getenv("RRL_FUZZ_WORKERS"), strconv.Itoa(runtime.GOMAXPROCS(0))), 10, 64)
	if err := errors.Join(seedErr, err); err != nil || workers < 1 || len(r.corpus) == 0 {
		t.Fatalf("want a seed, workers and a corpus: %v", err)
	}
	if count, ok := strings.CutSuffix(random, "x"); ok {
		r.most, err = strconv.ParseInt(count, 10, 64)
	} else {
		var d time.Duration
		d, err = time.ParseDuration(random)
		r.until = start.Add(d)
	}
	if err != nil {
		t.Fatalf("RRL_FUZZ_RANDOM=%s: want a duration or a number as in 1000x", random)
	}
	r.t, r.seed, r.most = t, seed, r.most/workers
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		wg.Go(func() { r.work(rand.New(rand.NewPCG(seed, w))) })
	}
	wg.Wait()
	// scripts/fuzz.sh reads this line.
	fmt.Printf("random: elapsed: %.1f s, execs: %d, seed: %d, workers: %d\n", time.Since(start).Seconds(), r.done.Load(), seed, workers)
}

// work tries mutations until it is time to end or one fails.
func (r *run) work(draw *rand.Rand) {
	args := make([]reflect.Value, 1+len(r.corpus[0]))
	args[0] = reflect.ValueOf(r.t)
	n, passed := int64(0), false
	defer func() {
		r.done.Add(n)
		if panicked := recover(); panicked != nil || !passed {
			r.t.Errorf("execution %d of seed %d fails; panic: %v; kept as %s", n, r.seed, panicked, r.keep(args[1:]))
		}
	}()
	for ; r.goesOn(n); n++ {
		r.mutate(draw, args[1:])
		if r.check.Call(args); r.t.Failed() {
			return
		}
	}
	passed = true
}

func (r *run) goesOn(n int64) bool {
	if r.until.IsZero() {
		return n < r.most
	}
	return n%64 != 0 || time.Now().Before(r.until)
}

// keep writes the input to where go test looks for those of the target, and returns its
// path, or else what would have been written.
func (r *run) keep(args []reflect.Value) string {
	lines := []string{"go test fuzz v1"}
	for _, arg := range args {
		format := "%s(%v)"
		if kind := arg.Kind(); kind == reflect.String || kind == reflect.Slice {
			format = "%s(%q)"
		}
		lines = append(lines, fmt.Sprintf(format, strings.Replace(arg.Type().String(), "[]uint8", "[]byte", 1), arg.Interface()))
	}
	text := strings.Join(lines, "\n") + "\n"
	path := filepath.Join(r.dir, "random-"+strconv.FormatUint(rand.Uint64(), 36))
	if errors.Join(os.MkdirAll(r.dir, 0o755), os.WriteFile(path, []byte(text), 0o600)) != nil {
		return text
	}
	return path
}

// maxLength is where text no longer grows.
const maxLength = 4096

// words are what parsers tend to have rules for.
var words = []string{
	"0", "-1", "1e3", "9007199254740992", "9223372036854775808", "18446744073709551616", "nan", "inf", "0x10", "\x00", "\xff", "é", "\u202e",
	":", ":::", "/", "//", "@", "%", "%2f", "?", "#", "[", "]", "{", "}", "{}", "\"", "\\", "=", ";", ",", " ", "\t", "\r\n",
	"for=", "::1", "::ffff:", "127.0.0.1", "%eth0", "ms", "h", "again", "taken", "keys", "CORRUPT 1 ", "WRONGTYPE ",
}

// edges are numbers at which counting goes wrong.
var edges = []uint64{0, 1, 2, 3, 7, 8, 16, 20, 127, 128, 255, 256, 1<<16 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<53 - 1, 1 << 53, 1 << 63, 1<<64 - 1}

// one returns one of the choices.
func one[T any](draw *rand.Rand, choices []T) T { return choices[draw.IntN(len(choices))] }

// mutate draws an input of the corpus into args, and changes a few things about it.
func (r *run) mutate(draw *rand.Rand, args []reflect.Value) {
	copy(args, one(draw, r.corpus))
	for range 1 + draw.IntN(4) {
		i := draw.IntN(len(args))
		other := one(draw, r.corpus)[i]
		switch arg := args[i]; arg.Kind() {
		case reflect.String:
			args[i] = reflect.ValueOf(string(mutated(draw, []byte(arg.String()), []byte(other.String()))))
		case reflect.Slice:
			args[i] = reflect.ValueOf(mutated(draw, bytes.Clone(arg.Bytes()), other.Bytes()))
		case reflect.Bool:
			args[i] = reflect.ValueOf(draw.IntN(2) == 0)
		default:
			n := one(draw, edges)
			if draw.IntN(2) == 0 {
				n = draw.Uint64() >> draw.IntN(64)
			}
			args[i] = reflect.ValueOf(n).Convert(arg.Type())
		}
	}
}

// mutated changes text in one place. other is text of another input.
func mutated(draw *rand.Rand, text, other []byte) []byte {
	at := draw.IntN(len(text) + 1)
	end := min(len(text), at+1+draw.IntN(8))
	var more []byte
	switch draw.IntN(8) {
	case 0:
		return text[:at]
	case 1:
		return slices.Delete(text, at, end)
	case 2:
		more = []byte(one(draw, words))
	case 3:
		more = bytes.Clone(text[at:end])
	case 4:
		more = []byte{byte(draw.Uint32())}
	case 5:
		return append(text[:at], other[draw.IntN(len(other)+1):]...)
	default:
		if at == len(text) {
			return text
		}
		if text[at] ^= 1 << draw.IntN(8); draw.IntN(2) == 0 {
			text[at] = byte(draw.Uint32())
		}
		return text
	}
	if len(text)+len(more) > maxLength {
		return text
	}
	return slices.Insert(text, at, more...)
}

// Draw makes choices of a fuzz target's bytes, so that each of them means something
// and the engine can change them one by one. Behind the end all choices are 0.
type Draw struct{ rest []byte }

// NewDraw returns the choices that data stands for.
func NewDraw(data []byte) *Draw { return &Draw{data} }

// N returns a number from 0 to n-1; n is at most 256.
func (d *Draw) N(n int) int {
	if len(d.rest) == 0 {
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return int(b) % n
}

// Int returns any number, small ones and those at edges more often.
func (d *Draw) Int() int64 {
	n := uint64(0)
	switch kind := d.N(4); kind {
	case 0:
		n = uint64(d.N(16))
	case 1:
		n = edges[d.N(len(edges))]
	default:
		for range d.N(9) {
			n = n<<8 | uint64(d.N(256))
		}
	}
	if d.N(4) == 3 {
		n = -n
	}
	return int64(n)
}

// Text returns up to most bytes.
func (d *Draw) Text(most int) string {
	n := min(d.N(most+1), len(d.rest))
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text
}

// One returns one of the choices.
func One[T any](d *Draw, choices ...T) T { return choices[d.N(len(choices))] }
