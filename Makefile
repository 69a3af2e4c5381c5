# Every target bootstraps its own environment; only Python >= 3.11 need be there.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HARNESS := tools/board_harness
PAGE := $(HARNESS)/dist/main.js

AUDIT := .venv-audit

.DEFAULT_GOAL := help
.PHONY: help demo test unit check audit generate board-harness boards fuzz soak soak-day chaos compose-check bench scale schemathesis coverage mutation release-check clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python tools/kubernetes_programs.py $(BIN) || echo "make: helm and kubectl are not there; their tests are skipped" >&2
	@touch $(READY)

# Node comes as a wheel, so that any system has a recent one.
$(HARNESS)/node_modules/.ready: $(HARNESS)/package-lock.json | $(READY)
	@echo "installing the board harness's Node packages (once, about a minute) ..."
	@# Node has its own list of authorities; behind a company's proxy only the system's knows the proxy's.
	@cd $(HARNESS) && NODE_USE_SYSTEM_CA=1 PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --ignore-scripts --loglevel=error
	@touch $@

$(PAGE): $(HARNESS)/node_modules/.ready $(HARNESS)/build.mjs $(HARNESS)/index.html $(shell find $(HARNESS)/src -type f)
	@cd $(HARNESS) && PATH="$(CURDIR)/$(BIN):$$PATH" node build.mjs

demo: $(READY) ## A simulated fleet, a fault, and Tailkeeper at work; console on http://127.0.0.1:8088.
	@$(BIN)/tailkeeper demo $(ARGS)

test: unit ## All tests; those that need a real program are skipped where it is missing.
	@$(MAKE) --no-print-directory board-harness || echo "make: the board harness is not there; its tests are skipped" >&2
	@$(BIN)/python -m pytest -n 2 tests/contract tests/loopback $(ARGS)
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

unit: $(READY) ## The fast tests alone: no real programs, under a minute.
	@$(BIN)/python -m pytest -n auto tests/unit tests/property tests/scenario $(ARGS)

check: $(READY) ## Lint, security rules, types, layers, and whether generated files are as committed.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive tailkeeper exporter watchdog dashboards alerts demo tools
	@$(BIN)/mypy
	@$(BIN)/mypy tests tools
	@$(BIN)/lint-imports
	@$(BIN)/tailkeeper generate --check

audit: ## Known vulnerabilities in all that constraints.txt pins. Asks a public service, so not a part of check.
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) \
	  && $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit==2.10.1'; }
	@$(AUDIT)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off $(ARGS)

generate: $(READY) ## Write dashboards, rules, Alertmanager configuration and metric docs.
	@$(BIN)/tailkeeper generate

board-harness: $(PAGE) ## The page that draws boards in Chromium: Node packages and build, once.

boards: $(READY) $(PAGE) ## Pictures of all boards from the demo under faults, into docs/images/boards/. Four minutes.
	@$(BIN)/python -m tools.boards.shoot $(ARGS)

fuzz: $(READY) ## A minute of mutated metrics pages: no crash, no hang, no growth.
	@$(BIN)/python -m tests.fuzz.fuzz_pages --seconds 60 $(ARGS)

schemathesis: $(READY) ## All that both servers say of themselves, asked by Schemathesis with 100 examples a path. Four minutes.
	@SCHEMATHESIS_EXAMPLES=100 $(BIN)/python -m pytest tests/contract/test_openapi.py $(ARGS)

soak: $(READY) ## Ten thousand scrapes of an exporter over ten backends: small and flat? Nine minutes.
	@$(BIN)/python tools/soak_exporter.py $(ARGS)

soak-day: $(READY) ## 24 simulated hours of a fleet with thousands of faults, and what is promised asked at every tick. Five to fifteen minutes.
	@$(BIN)/python -m tests.soak.day --out docs/results $(ARGS); done=$$?; $(BIN)/python -m tools.results.page; exit $$done

chaos: $(READY) ## An hour of random faults on the real programs, and whether what is promised holds; ARGS='--minutes 5' for less.
	@$(BIN)/python -m tools.chaos --out docs/results $(ARGS); done=$$?; $(BIN)/python -m tools.results.page; exit $$done

compose-check: ## Bring up docker-compose.yml, break a backend, see the alert and the weight, take it down.
	@bash tools/compose-check.sh

bench: $(READY) ## The benchmarks, one after the other, into docs/results/ and the pages' tables; ARGS=NAME for some. Under 20 minutes.
	@$(BIN)/python -m tools.results.bench $(ARGS)

scale: $(READY) ## What a backend is in series, bytes and CPU, with real stores, into docs/results/ and docs/scale.md; five minutes.
	@$(BIN)/python -m tools.results.scale

coverage: $(READY) ## Branch coverage of the pure core by the fast tests; fails under 95 %. Two minutes; ARGS=--missing shows where nobody was.
	@CI=1 $(BIN)/python -m tools.coverage_core $(ARGS)

mutation: $(READY) ## Are small mistakes in what decides noticed? Into docs/results/mutation.json. An hour; goes on where it was stopped.
	@nice -n 10 $(BIN)/python -m tools.mutation $(ARGS)

release-check: ## Build, check, install and run what would be published, into dist/ with its SBOM. Two to five minutes; publishes nothing.
	@$(PYTHON) tools/release_check.py $(ARGS)

clean: ## Remove the environment and caches.
	rm -rf $(HARNESS)/node_modules $(HARNESS)/dist $(VENV) $(AUDIT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
