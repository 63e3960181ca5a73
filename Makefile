# The two commands are `make demo` and `make test`; both prepare .venv first. No target needs root.
# PYTHON=… chooses the interpreter, MODULE=… the module of the demo, ARGS=… is handed to the program behind.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
export PYTHON

.PHONY: help demo demo-think test test-all check soak crash tck ard bench site release env

help: ## what can be made
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)$$/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'
	@echo "  make test-NAME   one suite: unit, golden, doors, processes, …"

demo: ## a real job through three agents, offline: MODULE=textwrap
	@scripts/bootstrap
	@exec $(BIN)/retinue demo $(MODULE) $(ARGS)

demo-think: ## a model finds, uses and asks for skills, is killed and goes on; offline after it has node
	@scripts/bootstrap demo-think
	@exec $(BIN)/python -m scripts.think_demo $(ARGS)

test: ## all that is fast, and one real run of each kind: before each commit
	@scripts/bootstrap test docs
	@exec $(BIN)/python -m scripts.suites test $(ARGS)

test-all: ## every suite: processes, programs of others, crashes and a browser, too
	@scripts/bootstrap test docs
	@exec $(BIN)/python -m scripts.suites all $(ARGS)

# what `make test` leaves to `make test-all`, or one suite
test-%:
	@scripts/bootstrap test docs
	@exec $(BIN)/python -m scripts.suites $* $(ARGS)

check: ## format, lint, types, layers
	@scripts/bootstrap lint test
	@exec $(BIN)/python -m scripts.check

soak: ## the long tests: run them before an issue is called done
	@scripts/services soak
	@scripts/bootstrap test deploy
	@COLD_STARTS=1 exec $(BIN)/python -m pytest -m soak --timeout=3600 $(ARGS)

crash: ## kill, freeze and cut off the processes of workflows, for long, on SQLite and Postgres
	@scripts/bootstrap test
	@COLD_STARTS=1 exec $(BIN)/python -m pytest tests/crash -m "crash or not crash" --timeout=3600 $(ARGS)

tck: ## the A2A Technology Compatibility Kit: TCK_DIR=copy of a2aproject/a2a-tck ARGS=agent, hub or strict
	@scripts/bootstrap test
	@exec $(BIN)/python -m scripts.tck $(TCK_DIR) $(ARGS)

ard: ## the conformance test of Agentic Resource Discovery against a hub: ARD_DIR=copy of ards-project/ard-spec
	@scripts/bootstrap test
	@exec $(BIN)/python -m scripts.ard_conformance $(ARD_DIR)

bench: ## the figures, as ratios of one run
	@scripts/services bench
	@scripts/bootstrap test bench
	@exec $(BIN)/python -m benchmarks $(ARGS)

site: ## the documentation as a site in site/, its links checked
	@scripts/bootstrap test docs
	@exec $(BIN)/python -m scripts.site

release: ## build all distributions, install and try them: the checklist of a release
	@scripts/bootstrap test docs
	@exec $(BIN)/python -m scripts.release --check $(ARGS)

env: ## .venv with everything a developer needs
	@scripts/bootstrap lint test bench
