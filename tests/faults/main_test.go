package faults_test

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// Most tests here wait for answers that do not come, so more of them run at a time
// than the machine has processors.
const atATime = 6

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if n, _ := strconv.Atoi(parallel.Value.String()); n < atATime {
		_ = parallel.Value.Set(strconv.Itoa(atATime))
	}
	os.Exit(m.Run())
}
