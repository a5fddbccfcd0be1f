#!/usr/bin/env bash
# test.sh: all checks, and the tests that one Redis and the newest Redisson do for.
# test.sh all: also those on other servers and topologies, of each layout of Redisson,
# in a Chromium and by promtool, chaos and failovers.
# Each step with its time and how long it computed, and a last line that says what
# ran, what failed, what was skipped and what was left out. Goes on after a failure.
# With RRL_NO_SKIP=1 whatever would be skipped fails: that is for all.
set -euo pipefail
cd "$(dirname "$0")/.."
all=${1:-}
[ -z "$all" ] || [ "$all" = all ] || { echo "usage: test.sh [all]" >&2 && exit 2; }
export PATH=$PWD/.cache/bin:$PATH

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT # Go keeps modules from writers
skips=$work/skips
touch "$skips"
export RRL_SKIP_LOG=$skips # see redistest.SkipOrFail
export GOGC=${GOGC:-400}   # a tenth of the time goes into garbage otherwise

# Many tests wait more than they compute, so more tests at a time than there are processors. A
# few packages in each of the steps that go on beside each other keep these busy: with more, each
# test waits for its turn so long that what it proves within seconds takes minutes.
at_once=(-p 2 -parallel 6)
beside=("${at_once[@]}")
[ "$all" != all ] || beside=(-p 1 -parallel 8)

ran=()
failed=()

# timed runs a command and notes for how long processors were busy with it.
timed() {
	local status=0
	"${@:2}" || status=1
	times >"$work/$1.times" # of the subshell that it runs in, and of that one's children
	return $status
}

# step NAME COMMAND, or step NAME end WHAT for what has begun before.
step() {
	local name=$1 start=$SECONDS what=now status=0
	shift
	echo "== $name"
	if [ "$1" = end ]; then
		what=$2
		end "$what" || status=1
	else
		(timed now "$@") || status=1
	fi
	if [ $status = 0 ]; then ran+=("$name"); else failed+=("$name"); fi
	awk -F '[ms ]' -v "step=== $name: $((SECONDS - start)) s" '
		{ busy += 60 * ($1 + $4) + $2 + $5 }
		END { printf "%s, %d s of computing\n", step, busy }' "$work/$what.times"
}

# In these one call follows another, whatever test runs beside it, or they look at what
# is tested elsewhere: at its heap, its pages, its figures in a terminal. The race
# detector sees the same calls in all others.
in_turn=(./tests/{bounded,damage,hostile,redisson,soak} ./codec
	./cmd/rrl ./cmd/rrl/internal/{doctor,output} ./internal/{clientip,connect,httpjson,keypart,lua,redisson,words}
	./internal/test/{articles,distribution,linear,redistest} ./internal/docs/{choosing,compatibility,page,reliability})

# Failovers, chaos and long use, which make test leaves to make test-all.
only_in_all=(./tests/servers ./tests/chaos ./tests/soak)

# Where most goroutines meet. In make test the race detector looks at these alone, since
# it costs four times the time; in make test-all at all but those above.
meeting=(./tests/{concurrency,faults,memory,waiting} ./internal/{engine,lane,outage,script} ./httplimit ./rratelimitertest)

# raced lists the packages that the race detector looks at, the longest, which are among
# the last by name, first.
raced() {
	if [ "$all" = all ]; then
		go list ./... ./cmd/rrl/... | grep -vxF "$(go list ./compat_test/... "${in_turn[@]}")"
	else
		go list "${meeting[@]}"
	fi | sort -r
}

# The tests of raced packages that go without: one call follows another, with each fault
# for each layout or as drawn; the faults are in scripts and models; or the time goes into
# the search for an order of calls, of which the race detector sees those with several flights.
calm='HappensOnce|AsAlone$|KeysAreApart$|FaultsAndAreMerged$|^Test(Mutants|Set_StaysSmall|Bytes|Permits_.*|Merged_BesideRedisson)$|^TestConcurrentHistories$/^(calm|a_limiter|beside|late|lost_answers|lost_give)'

with_race() {
	raced | xargs scripts/race.sh -vet=off -shuffle=on -skip "$calm" "${at_once[@]}" -timeout 30m
}

# Most tests use so little of a limiter that none of its members are merged. In these all are;
# a package in which none was fails.
all_merged() {
	RRL_MERGE=all go test -vet=off -ldflags=-w -shuffle=on "${beside[@]}" -timeout 30m ./tests/{concurrency,waiting}
}

# All others.
without_race() {
	local status=0
	raced | grep -E '/(tests/(faults|linearizability|merging|chaos|defaults)|httplimit)$' |
		xargs go test -vet=off -ldflags=-w -shuffle=on -run "$calm" "${beside[@]}" -timeout 30m || status=1
	local apart=(./compat_test ./internal/test/distribution)
	[ "$all" = all ] || apart+=("${only_in_all[@]}")
	go list ./... ./cmd/rrl/... | grep -vxF "$(go list "${apart[@]}" && raced)" |
		xargs go test -vet=off -ldflags=-w -shuffle=on "${beside[@]}" -timeout 30m || status=1
	[ "$all" != all ] || all_merged || status=1
	return $status
}

# In make test-all the race detector looks at all but tools and examples; in make test go vet
# has to do for these. cmd/rrl takes so long that it goes with the root's.
other_modules() {
	local -x short=-short vet=
	[ "$all" != all ] || short='' vet=-vet=off
	# shellcheck disable=SC2016 # of the shell in each module
	scripts/modules.sh -p 2 bash -c '
		case ${PWD#"$0"/} in
		"$0" | cmd/rrl) ;;
		dashboard/browser) [ "$1" != all ] || go test -vet=off -ldflags=-w -shuffle=on -timeout 30m ./... ;;
		benchmarks) go test $short $vet -ldflags=-w -shuffle=on -timeout 30m ./... ;;
		examples/*) go test $vet -ldflags=-w -shuffle=on -timeout 30m ./... ;;
		*)
			if [ "$1" = all ]; then test=("$0/scripts/race.sh"); else test=(go test -ldflags=-w); fi
			[ "${PWD##*/}" != envoylimit ] || test+=($short)
			"${test[@]}" -vet=off -shuffle=on -timeout 30m ./...
			;;
		esac' "$PWD" "$all"
}

# Each server once and each topology once, two cells at a time: make test-matrix runs
# all of each. The race detector has looked at the same tests in the step before.
other_servers() {
	local packages=(. ./tests/... ./fixedwindow ./slidinglog ./tokenbucket ./internal/{lua,redisson,script})
	local -x RRL_RACE=0 RRL_ENGINE=shared RRL_BUILT=$work/built
	scripts/build-tests.sh "$RRL_BUILT" ./internal/test/redistest "${packages[@]}" &&
		xargs -P 2 -L 1 sh -c 'scripts/cell.sh "$1" "$2" '"${packages[*]}" cell <<-END
		redis-6.2 resp2
		redis-7.0 tls-acl
		redis-8.2 sentinel
		redis-6.2 cluster
		valkey-9.1 ring
	END
}

# One after the other, for the reason that packages are few: see at_once.
rest() {
	local status=0
	without_race || status=1
	other_modules || status=1
	return $status
}

# Other systems; then what users get with no module fetched before, as somebody has it who has
# just come: go get wants go.mod files that no build here ever fetched.
elsewhere() {
	local status=0
	scripts/vet-others.sh || status=1
	GOMODCACHE=$work/none go test -vet=off -ldflags=-w -shuffle=on -timeout 30m ./internal/test/distribution || status=1
	return $status
}

# Then faults of all kinds at once: one round of each test of it has run with the rest. Both
# wait more than they compute.
beside_redisson() {
	local status=0
	local -x RRL_RELEASES=${RRL_RELEASES:-}
	[ "$all" = all ] || RRL_RELEASES=${RRL_RELEASES:-4.7.0}
	go test -vet=off -ldflags=-w -shuffle=on -timeout 30m ./compat_test/... || status=1
	[ "$all" != all ] || make --no-print-directory chaos MINUTES=2 SEED=1 || status=1
	[ "$all" != all ] || make --no-print-directory chaos MINUTES=1 || status=1
	return $status
}

# begin NAME COMMAND runs it beside what follows, and end NAME waits for it.
begin() {
	timed "$1" "$2" >"$work/$1" 2>&1 &
	echo $! >"$work/$1.pid"
}

end() {
	local status=0
	wait "$(<"$work/$1.pid")" || status=1
	cat "$work/$1"
	return $status
}

list() {
	local IFS=,
	sed 's/,/, /g' <<<"$*"
}

# Without a server, promtool or a browser, the tests that need it skip, or fail, by
# themselves. One test builds the driver of Redisson, for all that need it.
servers() {
	if [ "$all" = all ]; then
		scripts/install-redis.sh all || true
		scripts/install-prometheus.sh || true
		scripts/install-chromium.sh || true
	else
		scripts/install-redis.sh || true
	fi
	scripts/install-envoy.sh || true
	RRL_NO_SKIP='' RRL_SKIP_LOG='' go test -ldflags=-w -run '^TestDriverJVMEnds$' ./compat_test >/dev/null || true
}

# The linter does what go vet does, so that no step after it has to. It computes while the tests
# wait. With empty caches building it would take a quarter of the time, so make test leaves that
# to make check and make lint, and has go vet until then; and a third of the linter's own time
# would go to benchmarks and examples, which make test leaves to make test-all.
vet() {
	local which=(-u) build=-n
	[ "$all" != all ] || which=()
	[ "$all" != all ] && [ "${RRL_NO_SKIP:-}" != 1 ] || build=
	if nice scripts/install-lint.sh $build; then
		nice scripts/lint.sh "${which[@]}"
	else
		nice scripts/modules.sh "${which[@]}" go vet ./... && [ "${RRL_NO_SKIP:-}" != 1 ] && touch "$work/unlinted"
	fi
}

begin vet vet
[ "$all" != all ] || begin elsewhere elsewhere
echo "== servers"
servers
echo "== servers: $SECONDS s"
begin rest rest
begin redisson beside_redisson
step "tests where goroutines meet" with_race
[ "$all" != all ] || begin cells other_servers
step "other tests and other modules (begun before)" end rest
step "vet and lint (begun before)" end vet
step "tests beside Redisson${all:+, chaos} (begun before)" end redisson
[ "$all" != all ] || step "vet for other systems, modules from nothing (begun before)" end elsewhere
[ "$all" != all ] || step "other servers and topologies (begun before)" end cells

# What make test leaves out is no lack of this machine.
[ "$all" = all ] || sed -i -E '/^no (redis-[0-9]|valkey-|promtool|[Cc]hromium)/d' "$skips"

summary="passed: $(list "${ran[@]-none}")"
[ ${#failed[@]} = 0 ] || summary+="; FAILED: $(list "${failed[@]}")"
if [ -s "$skips" ]; then
	summary+="; skipped: $(sort "$skips" | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -s -d ';' - | sed 's/;/; /g')"
else
	summary+="; skipped: nothing"
fi
[ ! -e "$work/unlinted" ] || summary+="; left to make lint: the linter, which has to be built"
[ "$all" = all ] || summary+="; left to make test-all: other servers and topologies, failovers, chaos, soak, each layout of Redisson, promtool, Chromium, a run of the benchmarks, lint of benchmarks and examples, modules from nothing, vet for other systems"
echo "$summary"
[ ${#failed[@]} = 0 ]
