# Targets are few; `make` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export GOTOOLCHAIN = local

TOOLS := bin/gofumpt bin/staticcheck bin/testsum

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: test
test: setup $(TOOLS) ## everything that must hold: all modules' tests, lint, module hygiene (about 10 min at first)
	@.ci/lint
	@.ci/modules
	@.ci/test

.PHONY: test-fast
test-fast: ## the tests that changed since the last time, without the race detector
	@go test $$(go list -m -f '{{.Dir}}/...')

.PHONY: sim
sim: ## replay a simulated run, SEED=N; or make RUNS=N runs from there on
	@go test ./internal/sim -count=1 -timeout=0 -v -sim.seed=$(or $(SEED),1) $(if $(RUNS),-run='TestSeeds$$' -sim.runs=$(RUNS),-run='TestReplay$$' -sim.trace)

.PHONY: build
build: ## bin/tenure, the command
	@cd cmd/tenure && go build -o ../../bin/tenure .

.PHONY: lint
lint: $(TOOLS) ## formatting, vet, staticcheck, module hygiene
	@.ci/lint
	@.ci/modules

.PHONY: fmt
fmt: bin/gofumpt ## format all Go code
	@bin/gofumpt -w .

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin .cache

.PHONY: setup
setup:
	@.ci/setup

# The tools are a module of their own outside the workspace, so that their
# dependencies choose no version of anybody else's.
bin/gofumpt: tools/go.mod tools/go.sum
	@echo "building $@"
	@cd tools && GOWORK=off go build -o ../$@ mvdan.cc/gofumpt

bin/staticcheck: tools/go.mod tools/go.sum
	@echo "building $@"
	@cd tools && GOWORK=off go build -o ../$@ honnef.co/go/tools/cmd/staticcheck

bin/testsum: tools/go.mod $(wildcard tools/testsum/*.go)
	@echo "building $@"
	@cd tools && GOWORK=off go build -o ../$@ ./testsum
