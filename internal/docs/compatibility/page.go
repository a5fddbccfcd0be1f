package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// operations are the columns of the table of releases: what each is called here,
// and the recorded operations that it stands for.
var operations = []struct {
	name     string
	recorded []string
}{
	{"acquire", []string{"tryAcquire", "tryAcquireTimeout", "take", "takeUpTo", "withDefault", "acquireAll"}},
	{"release", []string{"release"}},
	{"available", []string{"availablePermits"}},
	{"trySetRate", []string{"trySetRate"}},
	{"setRate", []string{"setRate"}},
	{"keepState, updateRate", []string{"setRateArgs", "updateRate"}},
	{"config", []string{"getConfig"}},
	{"expiry", []string{"expire", "expireAt", "clearExpire", "ttl"}},
	{"exists, delete, rename", []string{"exists", "delete", "unlink", "rename"}},
	{"settle", []string{"settle"}},
	{"peek, reset", []string{"peek", "reset"}},
}

const head = `# Compatibility

Which versions of Redisson and which servers were tested, and the results. ` + "`make test-matrix`" + ` writes this page; only "The next Redisson" is
written by hand. Each section names the test that repeats it.

`

// unreleasedText is of what model.Unreleased holds.
//
//go:embed next.txt
var unreleasedText string

// page returns docs/compatibility.md.
func (r *results) page() string {
	var b strings.Builder
	b.WriteString(head)
	section := func(title, text string, there bool) {
		if there {
			fmt.Fprintf(&b, "## %s\n\n%s\n", title, text)
		}
	}
	section("Versions", r.releases(), len(r.turns)+len(r.hammers) > 0)
	section("The next Redisson", unreleasedText, true)
	section("Two versions and Go", r.fleetText(), len(r.fleetTurns)+len(r.fleets) > 0)
	section("Versions that exclude each other", r.breakText(), len(r.breaks) > 0)
	section("Members counted instead of permits", r.rowText(), len(r.rows) > 0)
	section("A clock that is read too early", r.behindText(), len(r.behind) > 0)
	section("Servers by features", r.serverTable(), len(r.servers) > 0)
	section("Failover", r.failoverText(), len(r.failovers) > 0)
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// table returns a table of text.
func table(columns []string, rows [][]string) string { return page.Table(columns, rows, false) }

// cellOf returns how many operations of each side were compared; "-" if the
// side has none.
func cellOf(turns map[string]count, recorded []string) string {
	text := func(side string) string {
		all, there := count{}, false
		for _, name := range recorded {
			c, ok := turns[side+" "+name]
			all, there = all.add(c), there || ok
		}
		switch {
		case !there:
			return "-"
		case all.wrong > 0:
			return fmt.Sprintf("**%d of %d wrong**", all.wrong, all.compared)
		}
		return fmt.Sprint(all.compared)
	}
	return text("Go") + "/" + text("Java")
}

func total(turns map[string]count) count {
	var all count
	for _, c := range turns {
		all = all.add(c)
	}
	return all
}

func (r *results) releases() string {
	var all count
	for _, these := range []map[string]map[string]count{r.turns, r.fleetTurns} {
		for _, turns := range these {
			all = all.add(total(turns))
		}
	}
	over := 0
	for _, h := range r.hammers {
		over += h.over
	}
	return fmt.Sprintf("By turns, `TestTurns`"+`: Go, with `+"`WithRedissonVersion`"+` before 3.35.0, and one version of Redisson use the same limiters at random, in both modes, while
permits run out, keys get lost and clocks are off. Each answer, and all that Redis holds, is compared with a model of both.
[operations.csv](compatibility/operations.csv) has the operations compared, by Go/by Java; - if that version has none;
[topologies.csv](compatibility/topologies.csv) by topology.
Before 3.13.3, Go's `+"`Release`"+` and `+"`KeepState`"+` must return ErrUnsupported. %d operations, with those of two versions, %d came out wrong.

All at once, `+"`TestHammer`"+`: two Go clients and two Redissons ask one limiter for more than it has, for four seconds.
[versions.csv](compatibility/versions.csv) has who got how many. %d permits over the limit were in use at any moment. Grants of
the last instant may count beyond the four seconds, so the share can exceed 100 %%.

    go test ./compat_test -run 'TestTurns|TestHammer$' -releases all
`, all.compared, all.wrong, over)
}

func hammerRows(all []hammer) [][]string {
	slices.SortStableFunc(all, func(a, b hammer) int { return byRelease(a.releases, b.releases) })
	var rows [][]string
	for _, h := range all {
		problem := fmt.Sprint(h.errors)
		if h.problem != "" {
			problem += ": " + h.problem
		}
		rows = append(rows, []string{h.releases, fmt.Sprint(h.goes), fmt.Sprint(h.java), h.percent + " %", fmt.Sprint(h.over), problem})
	}
	return rows
}

var hammerColumns = []string{"Redisson", "to Go", "to Java", "of what the limit allows", "over the limit", "errors in Java"}

func (r *results) fleetText() string {
	pairs, wrong, over := 0, 0, 0
	for _, row := range r.fleetRows()[1:] {
		pairs++
		wrong += total(r.fleetTurns[row[0]]).wrong
	}
	for _, h := range r.fleets {
		over += h.over
	}
	return fmt.Sprintf(`%d pairs that work together, beside Go configured for the older one, by turns and all at once, from 3.35.0 on with leases ([fleets.csv](compatibility/fleets.csv)):
%d operations came out wrong, and %d permits over the limit were in use.

    go test ./compat_test -run 'TestFleetTurns|TestFleetHammer' -releases all
`, pairs, wrong, over)
}

func (r *results) breakText() string {
	return `Versions of different [groups](java.md#versions) can't share a limiter: both take permits, and an interval later the one that asks first may fail ("data string too short").
[breaks.csv](compatibility/breaks.csv) has how often each answer came in ten runs. Go causes no failure that does not happen without it. ` + "`rrl show`" + ` reports such a limiter, and ` + "`rrl migrate`" + ` repairs it once versions before 3.17 are gone.

    go test ./compat_test -run TestFleetsThatBreak -releases all
`
}

func (r *results) rowText() string {
	return `Redisson 3.16.2 to 3.34 counts members when it lowers a value that is above the rate. Nine permits of ten are in use, so one more is right. If
the value gets lost, or the rate is set again and lower, it grants nine if one request had taken the nine, and one if nine had. Versions before
grant eleven, versions after one. With Go's members each grants no more than with its own ([rows.csv](compatibility/rows.csv)).

    go test ./compat_test -run TestRowsTakenForPermits -releases all
`
}

func (r *results) behindText() string {
	return `Redisson 3.13.3 to 3.15.2 fails ("bad argument to 'unpack'") when it is refused while all members are dated after the moment at
which it read its clock. This can happen to a limiter of one permit every 20 ms that is asked without a pause, with or without
Go ([behind.csv](compatibility/behind.csv)).

    go test ./compat_test -run TestHammerOfAClockBehind -releases all
`
}

func (r *results) serverTable() string {
	var servers, topologies []string
	cells := map[[2]string]cell{}
	passed := 0
	for _, c := range r.servers {
		if !slices.Contains(servers, c.server) {
			servers = append(servers, c.server)
		}
		if !slices.Contains(topologies, c.topology) {
			topologies = append(topologies, c.topology)
		}
		cells[[2]string{c.server, c.topology}] = c
		passed += c.passed
	}
	var rows [][]string
	var notes []string
	for _, topology := range topologies {
		row := []string{topology}
		for _, server := range servers {
			c, there := cells[[2]string{server, topology}]
			switch {
			case !there:
				row = append(row, "not run")
			case c.why != "":
				row = append(row, "n/a")
				notes = append(notes, fmt.Sprintf("- %s, %s: %s\n", server, topology, c.why))
			case c.failed > 0:
				row = append(row, fmt.Sprintf("**%d failed**", c.failed))
			default:
				row = append(row, fmt.Sprint(c.passed))
			}
		}
		rows = append(rows, row)
	}
	text := fmt.Sprintf(`The limiter's tests on each server, through each kind of client: how many passed, subtests counted; %d in all. Tests
that a topology can't run, such as those that move a clock, are left out there. miniredis runs in each of them besides.

    scripts/cell.sh SERVER TOPOLOGY

`, passed) + table(append([]string{""}, servers...), rows)
	if len(notes) > 0 {
		text += "\n" + strings.Join(notes, "")
	}
	return text
}

func (r *results) failoverText() string {
	return `Grants beyond the rate in one interval, with asynchronous replication: [failovers.csv](compatibility/failovers.csv).
[servers](servers.md#what-a-failover-can-over-grant) explains each scenario.

    go test -v -run 'WhileInUse|ThatLosesWrites|MinReplicas' ./tests/servers
`
}
