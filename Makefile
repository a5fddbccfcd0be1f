.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.cache/bin:$(PATH)

FUZZTIME ?= 20s
OPS      ?= 5000
SEED     ?= 0
REDISSON ?=
ROUNDS   ?= 5
MINUTES  ?= 10
RESULTS  ?= .cache/results
ONLY     ?=
PART     ?= 1/1
FOR      ?= 24h
MUTATED  ?= ./internal/lane ./internal/merge ./internal/engine ./internal/middleware ./lua ./internal/script ./internal/keyed ./internal/outage \
	./internal/refusal ./internal/lease ./internal/decide ./internal/recent ./internal/local . ./fixedwindow ./slidinglog ./tokenbucket ./httplimit ./codec

COVERED := . ./fixedwindow ./slidinglog ./tokenbucket

# Whose tests are to notice what is changed in MUTATED: those of the API first.
NOTICING := ./codec ./tests/concurrency ./tests/waiting ./tests/defaults . ./fixedwindow ./slidinglog ./tokenbucket ./tests/redisson ./tests/memory \
	./tests/bounded ./tests/damage ./tests/hostile ./internal/middleware ./httplimit ./grpclimit ./internal/lua ./internal/merge ./internal/engine \
	./internal/lane ./internal/script ./internal/keyed ./internal/refusal ./internal/lease ./internal/outage ./internal/recent ./internal/local \
	./rratelimitertest ./tests/merging ./tests/faults ./tests/linearizability

# The build cache serves all clones of the repository, not this folder only. Compiling takes
# two thirds of the time without tables for debuggers and, but for the standard library and
# the interpreter of scripts, without inlining: with go-redis v9.23.0 the compiler makes 1,500
# functions of generic types in each package that names a client. And the example of gin does
# without the format whose package takes 30 s to compile.
check lint test test-all mutants: export GOFLAGS := -trimpath -tags=nomsgpack \
	'-gcflags=all=-dwarf=false -l' -gcflags=std=-dwarf=false -gcflags=github.com/yuin/gopher-lua/...=-dwarf=false $(GOFLAGS)

.PHONY: help test test-all test-matrix golden check lint fuzz fuzz-long cover demo compat chaos reliability mutants soak bench bench-short pictures dist release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target what; do \
		printf '  make %-11s %s\n' "$$target" "$$what"; done

test: ## vet, lint if the linter is built, tests on miniredis, one real Redis and beside the newest Redisson; installs a Redis
	@scripts/test.sh

test-all: ## make test and the rest: other servers, failovers, all layouts of Redisson, Chromium; installs what is missing
	@scripts/test.sh all

test-matrix: ## every release of Redisson, every server through every topology, failovers; writes docs/compatibility.md
	@scripts/matrix.sh $(RESULTS)

golden: ## record anew what each release of Redisson does, for tests without Java; git diff shows what changed. REDISSON=release for one
	@scripts/install-redis.sh || true
	go test -count 1 -timeout 20m ./compat_test -run 'TestGolden$$' -record $(if $(REDISSON),-releases $(REDISSON))

check: ## the fast part: vet and lint what has changed, for Windows and macOS too, and run the packages' own tests that need no server
	@scripts/check.sh

lint: ## golangci-lint, in all modules
	@scripts/install-lint.sh
	@scripts/lint.sh

fuzz: ## each fuzz target for FUZZTIME=20s
	@grep -rEo --include='*_test.go' --exclude-dir=.cache '^func Fuzz[A-Za-z0-9_]*' . | \
	sed 's|/[^/]*:func | |' | sort -u | while read -r dir target; do \
		echo "$$dir $$target"; \
		(cd "$$dir" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . </dev/null) || exit 1; \
	done

fuzz-long: ## each fuzz target for FUZZTIME=10m; adds up executions in docs/fuzzing.tsv
	@FUZZTIME=$(if $(filter file,$(origin FUZZTIME)),10m,$(FUZZTIME)) scripts/fuzz.sh $(TARGETS)

cover: ## coverage of the limiters and what they import, by all tests but those beside Redisson
	@scripts/install-redis.sh || true
	@covered=$$(go list -deps $(COVERED) | grep "^$$(GOWORK=off go list -m)" | paste -s -d , -); \
	said=$$({ go list ./... ./cmd/rrl/... | grep -v /compat_test$$ | xargs go test -coverprofile coverage.out -coverpkg "$$covered" && \
		go test ./compat_test -run '^TestHistories$$' -coverprofile coverage.histories -coverpkg "$$covered"; } 2>&1) || \
		{ echo "$$said"; exit 1; }
	@tail -n +2 coverage.histories >>coverage.out && rm coverage.histories
	@awk -f scripts/cover.awk coverage.out

demo: ## many clients on one limiter, on a server of the demo's own
	@go run ./cmd/rrl demo

compat: ## the tests beside Redisson, with long histories: OPS=5000 SEED=0 (0 draws one) REDISSON=release
	@scripts/install-redis.sh || true
	go test -count 1 -timeout 60m ./compat_test -ops $(OPS) -seed $(SEED) $(if $(REDISSON),-redisson $(REDISSON))

chaos: ## limiters of every kind under many faults at once: MINUTES=10 SEED=0 (0 draws one)
	@scripts/install-redis.sh || true
	go test -count 1 -v -timeout 0 ./tests/chaos -run 'TestChaos$$' -minutes $(MINUTES) -seed $(SEED)

reliability: ## chaos on each kind of servers for MINUTES=10, and faults of our own; writes the tables of docs/reliability.md
	@scripts/reliability.sh $(RESULTS)/chaos $(MINUTES) $(SEED)

mutants: ## each statement of MUTATED changed once: what no test notices, and how many in docs/reliability.md; FOR=30m of PART=1/20
	@scripts/install-redis.sh || true
	@go build -o .cache/bin/mutants ./internal/test/mutants
	@.cache/bin/mutants -only "$(ONLY)" -part $(PART) -for $(FOR) -tests "$(NOTICING)" $(MUTATED)
	@go run ./internal/docs/reliability .cache/mutants/results

soak: ## that use leaves nothing behind: calls of all kinds for MINUTES=10, a million keys used once
	@scripts/install-redis.sh || true
	go test -count 1 -v -timeout 0 ./tests/soak -minutes $(MINUTES) -keys 1000000

bench: ## us beside the other limiters, some 20 minutes; writes docs/performance.md, its plots and our aims. ROUNDS=3 for 12 minutes
	@scripts/install-redis.sh || true
	cd benchmarks && go run . -rounds $(ROUNDS)

bench-short: ## our aims in two minutes, to the terminal only
	@scripts/install-redis.sh || true
	cd benchmarks && go run . -short

pictures: ## the pictures and figures of docs/dashboard.md, in a Chromium; five minutes
	@scripts/install-redis.sh || true
	@scripts/install-chromium.sh
	cd dashboard/browser && go test -count 1 -run 'TestPictures|TestFigures' . -update

dist: ## rrl and rratelimitd for Linux, macOS and Windows, for amd64 and arm64, and SHA256SUMS, into dist/; the same bytes for the same commit
	@scripts/dist.sh dist

release: ## make a release in this clone: VERSION=v1.2.3; checks it as a user would get it, and pushes nothing
	@scripts/release.sh $(VERSION)

clean: ## remove what the other targets made, installed tools included
	@rm -rf .cache bin dist compat_test/java/target benchmarks/java/target coverage.out
