# Every command a user or a developer needs. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PORT ?= 4170
TRITON_PORT ?= 8000
RUN_DIR ?= .run
# TRITON=simulated runs the demo against the simulated Triton, TRITON=real refuses anything else.
TRITON ?=
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
PY := $(VENV)/bin/python
NOT_INSTALLED = { echo "Not installed: pip says above why. If it could not reach the package index, mend the network or set" \
	"PIP_INDEX_URL; then run make again"; exit 1; }

##@ Use it
.PHONY: help run
help: ## Show this help
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
		/^[a-zA-Z_-]+:.*?##/ {printf "  \033[36m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: PORT=%s TRITON_PORT=%s RUN_DIR=%s TRITON=%s VENV=%s PYTHON=%s\n' \
		"$(PORT)" "$(TRITON_PORT)" "$(RUN_DIR)" "$(or $(TRITON),auto)" "$(VENV)" "$(PYTHON)"

run: $(VENV)/.run-ready ## Start a real Triton with demo models and the governor in front of it
	@PORT=$(PORT) TRITON_PORT=$(TRITON_PORT) RUN_DIR=$(RUN_DIR) $(if $(TRITON),TRITON=$(TRITON)) exec $(PY) -m governor.demo

##@ Test it
.PHONY: test test-edges test-evidence test-slow test-real test-client test-ui check fmt types lint layers ci
# What starts a real Triton, Node, a browser or an installation of its own has a target of its own.
EDGES := tests/contract tests/demo tests/e2e tests/interop
test: $(VENV)/.dev-ready ## Run the tests (under five minutes)
	$(PY) -m pytest -m "not slow" $(patsubst %,--ignore=%,$(EDGES) tests/evidence tests/ui/browser) $(PYTEST_ARGS)

test-edges: $(VENV)/.dev-ready ## Hold the service against a real Triton, Triton's clients, the npm client and the demo
	$(PY) -m pytest -m "not slow" $(EDGES) $(PYTEST_ARGS)

test-evidence: $(VENV)/.dev-ready ## Hold the evidence rules against a real Triton that is killed, reloaded, lied about
	$(PY) -m pytest -m "not slow" tests/evidence $(PYTEST_ARGS)

test-slow: $(VENV)/.dev-ready ## Run the slow tests: large state spaces, long chaos, mutants
	$(PY) -m pytest -m slow $(PYTEST_ARGS)

test-real: $(VENV)/.dev-ready ## Run only what needs the real Triton
	$(PY) -m pytest -m real_triton $(PYTEST_ARGS)

test-client: $(VENV)/.dev-ready ## The client installed alone and afresh, mypy and pyright on it from outside, a thousand prompts at once
	$(PY) -m pytest -m slow tests/client $(PYTEST_ARGS)

test-ui: $(VENV)/.ui-ready ## The operators' page in headless Chromium, one part against a real Triton; installs Chromium where it may
	@$(PY) -m tests.ui.browser.chromium
	$(PY) -m pytest tests/ui/browser $(PYTEST_ARGS)

check: lint types layers ## Style, types and import layers

lint: $(VENV)/.dev-ready ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.dev-ready ## mypy --strict
	$(PY) -m mypy

layers: $(VENV)/.dev-ready ## Import layers: api -> governor -> core, and the core is pure
	$(VENV)/bin/lint-imports

fmt: $(VENV)/.dev-ready ## Format and fix what can be fixed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

ci: check test test-edges test-evidence test-client test-ui ## All that continuous integration runs

##@ Measure it
.PHONY: bench bench-full bench-peers bench-triton bench-admission bench-client
PEERS ?= haproxy nginx smg
bench: $(VENV)/.bench-ready ## Overhead, throughput, overload and refusals, beside what is installed (several minutes)
	$(PY) -m bench $(BENCH_ARGS)

bench-full: $(VENV)/.bench-ready ## Every scenario, more and longer rounds
	$(PY) -m bench --full --all $(BENCH_ARGS)

bench-admission: $(VENV)/.bench-ready ## Who lets more through at once than was allowed (two minutes)
	$(PY) -m bench.admission peers $(BENCH_ARGS)

bench-triton: $(VENV)/.bench-ready ## infer through the governor against a real Triton, side by side
	$(PY) -m bench.overhead $(BENCH_ARGS)

bench-client: $(VENV)/.dev-ready ## What the Python client costs; BENCH_ARGS="URL --model NAME" for a thousand prompts at once
	$(PY) -m bench.client $(BENCH_ARGS)

bench-peers: $(VENV)/.bench-ready ## Install what the governor is compared with under .bench: PEERS="haproxy nginx smg litellm ray"
	$(PY) -m bench.peers $(PEERS)

##@ Deploy it
.PHONY: image
IMAGE ?= governor
image: ## Build the container image (IMAGE=name:tag PYTHON_IMAGE=base)
	@tool=$$(command -v podman || command -v buildah || command -v docker) || \
		{ echo "No podman, buildah or docker found; install one"; exit 1; }; \
	"$$tool" build $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) \
		-f deploy/container/Containerfile -t $(IMAGE) .

##@ Keep it
.PHONY: setup clean
setup: $(VENV)/.dev-ready ## Make the virtual environment for development

clean: ## Remove everything that make has made
	rm -rf $(VENV) .venv-triton .node .bench $(RUN_DIR) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

# A stamp rather than the interpreter: one that was interrupted, or had no network, is there and has no pip or an old one.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found; install one or set PYTHON=/path/to/python"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "Creating $(VENV) with $$($(PYTHON) --version)" && $(PYTHON) -m venv $(VENV); } || \
		{ echo "No virtual environment could be made in $(VENV): $(PYTHON) says above why. The folder must be writable;" \
			"VENV=/another/folder makes it elsewhere"; exit 1; }
	@# --group needs pip 25.1; -qq hides setuptools' advice about editable installs, errors still show
	@$(PY) -m pip install --quiet --disable-pip-version-check "pip>=25.1" || $(NOT_INSTALLED)
	@touch $@

$(VENV)/.run-ready: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing the governor into $(VENV)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[server]' || $(NOT_INSTALLED)
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing the governor and its tools into $(VENV)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[server]' --group dev || $(NOT_INSTALLED)
	@touch $@ $(VENV)/.run-ready

$(VENV)/.bench-ready: $(VENV)/.dev-ready
	@echo "Installing what plots need into $(VENV)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt --group bench || $(NOT_INSTALLED)
	@touch $@

$(VENV)/.ui-ready: $(VENV)/.dev-ready
	@echo "Installing what drives a browser into $(VENV)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt --group ui || $(NOT_INSTALLED)
	@touch $@
