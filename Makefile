# Dovetail's task file. `make` alone prints what there is to do.
#
# Everything runs from .venv, which `setup` makes from nothing but Python 3.11+ and pip's own
# configured package index, in the versions of constraints.txt. The stamp makes it idempotent: a
# changed pyproject.toml or constraints.txt runs it again.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first interpreter that is new enough; `make setup PYTHON=/path/to/python` overrides it.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.14 python,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.dovetail-setup
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--build-constraint constraints.txt

# Test processes. Two, because that is what the smallest machine we promise for has.
WORKERS ?= 2
# Seeds of `make sim`: one, or first-last.
SEEDS ?= 1000-1999
# Extra words for pytest, e.g. `make test ARGS="-k spill"`.
ARGS ?=

.PHONY: help setup demo test lint unit fmt bench bench-full sim compose-test proto lock clean

help: ## Show this list
	@echo "Dovetail: joins several live streams exactly, even when the state outgrows memory."
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' \
		| while IFS=$$'\t' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done
	@echo
	@echo "Start with 'make demo'; then '$(BIN)/dovetail run --help'."

setup: $(STAMP) ## Make .venv with the dovetail command in it (every other target does this first)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one, or run" \
		"'make setup PYTHON=/path/to/python3'" >&2; exit 1; }
	@echo "setup: making $(VENV) with $(PYTHON) (a few minutes the first time)" >&2
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || .ci/make-venv "$(PYTHON)" $(VENV)
	@.ci/install-pip $(BIN)/python
	@$(INSTALL) --require-hashes --constraint constraints.txt \
		--requirement <($(BIN)/python deploy/requirements.py)
	@$(INSTALL) --no-deps --editable .
	@$(BIN)/dovetail compile >&2 || true # later commands would: it takes half a minute
	@touch $@

demo: setup ## Join three streams with a quarter of the memory they need, and check the answer
	@$(BIN)/python -m dovetail_bench.demo

test: setup ## Run everything that must hold: lint, types, tests
	@.ci/checks "$(BIN)" "$(WORKERS)" $(ARGS)

lint: setup ## Lint, formatting and types only
	@.ci/checks "$(BIN)" 0

unit: setup ## Only the quick tests, without lint and types
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/unit $(ARGS)

fmt: setup ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: setup ## All benchmarks, small: a table each, JSON in .benchmarks/
	@$(BIN)/python -m dovetail_bench $(ARGS)

bench-full: setup ## All benchmarks at the sizes that docs/benchmarks.md speaks of
	@$(BIN)/python -m dovetail_bench --full $(ARGS)

sim: setup ## The cluster's protocols under simulated delays, losses and crashes
	@$(BIN)/python tests/kit/sim_main.py --seeds $(SEEDS) --jobs $(WORKERS) $(ARGS)

compose-test: setup ## The compose cluster from nothing to an exact answer, where Docker runs
	@$(BIN)/python deploy/compose_test.py

proto: setup ## Generate the wire stubs from proto/dovetail_proto/v1/*.proto
	@$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=proto --pyi_out=proto \
		proto/dovetail_proto/v1/*.proto

lock: ## Write constraints.txt anew: the newest libraries that pyproject.toml allows
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && .ci/make-venv "$(PYTHON)" "$$folder" \
		&& "$$folder/bin/python" -m pip install --quiet --upgrade pip packaging \
		&& "$$folder/bin/python" .ci/lock.py

clean: ## Remove what builds, tests and benchmarks leave behind (keeps .venv)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks demo-out
	@find proto manager processor pipeline client bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
