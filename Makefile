# Everything a working copy can do. `make setup` and the targets that need it write only to .venv,
# build, package caches and, as root on Debian, apt packages that are listed first (tools/setup_env).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# A third of the tests wait for processes most of the time: three jobs keep two processors busy.
TEST_JOBS ?= 3

# Bytecode is kept even where the environment says otherwise: tests start hundreds of processes, and
# each of them would compile every source that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCKED := install --require-hashes --no-deps

HOT_SOURCES := $(wildcard $(foreach room,hot hot/columns,src/tidemill/$(room)/*.py src/tidemill/$(room)/*.pxd src/tidemill/$(room)/*.pyx))
# As setup.py reads it: the file runs alone, without the package.
PATH_LIST := src/tidemill/core/compiled.py
PATH_MODULES := $(shell $(PYTHON) -c 'import runpy; print(*runpy.run_path("$(PATH_LIST)")["REQUEST_PATH"])')
PATH_SOURCES := $(patsubst %,src/%.py,$(subst .,/,$(PATH_MODULES))) $(PATH_LIST)
PATH_BUILT := $(shell find src -name '*.so' -not -path '*/hot/*')
METADATA := pyproject.toml $(wildcard setup.py)
LINTED := src tests tools interop examples $(wildcard bench) $(wildcard setup.py)

.PHONY: help setup setup-spark plain fresh demo test check lint bench sim sim-hours kills holds soak cuts standby interop coverage docs lock generate format clean

help:
	@echo 'make setup      .venv with the broker and what its tests need'
	@echo 'make setup-spark  the same with Spark, for pipelines'
	@echo 'make demo       the main job, end to end, in a minute'
	@echo 'make check      format, lint, types and the quick tests: before every commit'
	@echo 'make test       all tests, the same that CI runs'
	@echo 'make sim SEEDS=0-999  search simulated clusters for a seed that breaks a promise'
	@echo 'make sim-hours HOURS=10  let simulated clusters live for hours, and add up what happened'
	@echo 'make kills KILLS=1000  kill brokers and Spark drivers around the commits of transactions'
	@echo 'make holds HELD=1000000  many held records over restarts, and clocks that are set by an hour'
	@echo 'make soak HOURS=2  brokers that nobody disturbs, for hours: no election, no growth, no loss'
	@echo 'make cuts       brokers and ZooKeeper whose network is cut in several ways; needs Linux'
	@echo 'make standby    a disk that moves from a broker to its stand-by; needs root on Linux'
	@echo 'make interop    clients of other languages: Java, Node, Go and Kafka'\''s own tools [BROKERS=3]'
	@echo 'make bench      measure, side by side with Apache Kafka'
	@echo 'make coverage   which branches the tests miss'
	@echo 'make docs       the documentation as a site: build/docs/index.html'
	@echo 'make plain      remove the compiled request path: the sources run, for working on them'
	@echo 'make format     let ruff lay out the code'
	@echo 'make generate   write again what is made from something else: messages, reference pages, folder map, states'
	@echo 'make lock       pin the dependencies again (requirements/*.txt)'
	@echo 'make clean      remove what builds and tests left; .venv stays'

# --- set-up --------------------------------------------------------------------------------------
# Each step leaves a stamp, so that a second run takes no time, and a changed lock, project file or
# hot loop repeats just the steps that depend on it.

setup: $(STAMPS)/hot $(STAMPS)/request-path

$(STAMPS)/venv: tools/setup_env
	@PYTHON=$(PYTHON) tools/setup_env base
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv requirements/build.txt requirements/runtime.txt requirements/dev.txt
	@echo 'setup: installing the locked packages'
	@$(PIP) $(LOCKED) -r requirements/build.txt
	@$(PIP) $(LOCKED) -r requirements/runtime.txt -r requirements/dev.txt
	@touch $@

$(STAMPS)/project: $(STAMPS)/packages $(METADATA)
	@echo 'setup: installing tidemill; its loops and request path are compiled, about a minute'
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

# A built extension shadows its .py file: it must never be older than its source. The installation
# above has just built what has not changed since.
$(STAMPS)/hot: $(STAMPS)/project $(HOT_SOURCES)
	@if [[ -n "$$(find $(HOT_SOURCES) -newer $(STAMPS)/project)" ]]; then \
		echo 'setup: building the hot loops'; $(BIN)/python setup.py --quiet build_ext --inplace; fi
	@touch $@

$(STAMPS)/request-path: $(STAMPS)/project $(PATH_SOURCES)
	@if [[ -n "$$(find $(PATH_SOURCES) -newer $(STAMPS)/project)" || \
		-z "$$(find src -name 'tidemill__mypyc.*')" ]]; then \
		echo 'setup: compiling the request path'; $(BIN)/python setup.py --quiet build_ext --inplace; fi
	@touch $@

plain:
	@rm -f $(PATH_BUILT) $(STAMPS)/request-path

# A compiled module older than its source must not run; the source can, without a minute of compiling.
fresh: $(STAMPS)/hot
	@if [[ -n "$$(find $(PATH_SOURCES) -newer $(firstword $(PATH_BUILT) Makefile))" ]]; then \
		$(MAKE) --silent plain; fi

# Spark comes as a source archive of 456 MB without a wheel; it is packed on the pinned build tools.
setup-spark: setup $(STAMPS)/spark $(STAMPS)/spark-classes

$(STAMPS)/spark: $(STAMPS)/packages requirements/spark.txt
	@PYTHON=$(PYTHON) tools/setup_env java database
	@echo 'setup: installing Spark'
	@$(PIP) $(LOCKED) --no-build-isolation -r requirements/spark.txt
	@touch $@

# Not again when the package changes: the archive has the classes of Spark only.
$(STAMPS)/spark-classes: $(STAMPS)/spark tools/spark_classes.py | $(STAMPS)/hot
	@echo 'setup: writing the class archive for Spark, about a minute'
	@$(BIN)/python tools/spark_classes.py
	@touch $@

$(STAMPS)/bench: $(STAMPS)/packages requirements/bench.txt
	@PYTHON=$(PYTHON) tools/setup_env java
	@$(PIP) $(LOCKED) -r requirements/bench.txt
	@touch $@

$(STAMPS)/docs: $(STAMPS)/packages requirements/docs.txt
	@$(PIP) $(LOCKED) -r requirements/docs.txt
	@touch $@

# --- what people run -----------------------------------------------------------------------------

demo: setup-spark
	@$(BIN)/python -m tidemill.cli.main demo

bench: setup-spark $(STAMPS)/bench
	@$(BIN)/python -m bench $(BENCH_OPTIONS)

lint: $(STAMPS)/hot $(STAMPS)/spark
	@$(BIN)/ruff format --check --quiet $(LINTED) || \
		{ echo 'format: run `make format`'; exit 1; }
	@$(BIN)/ruff check --quiet $(LINTED)
	@$(BIN)/mypy --no-error-summary

check: lint fresh
	@$(BIN)/pytest -q -n $(TEST_JOBS) -m 'not slow and not e2e and not interop' \
		tests/tidy tests/unit tests/wire tests/contract tests/scenario

# The summary and the table of what is proven come last. They are written even when tests fail, and
# the exit code stays that of the tests.
test: setup-spark lint
	@mkdir -p build && rm -f build/tests.xml
	@status=0; $(BIN)/pytest -q -n $(TEST_JOBS) --durations=20 \
			--junitxml=build/tests.xml || status=$$?; \
		$(BIN)/python tools/requirement_table.py build/tests.xml build/requirement_table.md; \
		exit $$status

# A failing seed is made smaller and printed with the command that repeats it.
SEEDS ?= 0-299
sim: $(STAMPS)/hot fresh
	@$(BIN)/python -m tests.sim.seed_search --seeds $(SEEDS) $(SIM_OPTIONS)

# One cluster lives for an hour at a time; the file adds up what all of them went through.
sim-hours: $(STAMPS)/hot fresh
	@$(BIN)/python -m tests.sim.hours --hours $(or $(HOURS),10) $(SIM_OPTIONS)

# On one node, then on three, then drivers of Spark at every point of a batch.
KILLS ?= 200
kills: setup-spark
	@$(BIN)/python -m tests.campaign.transaction_kills --kills $(KILLS)
	@$(BIN)/python -m tests.campaign.transaction_kills --kills $(KILLS) --brokers 3
	@$(BIN)/pytest -q --kill-points all -k killed_at tests/spark/test_exactly_once.py

# Three brokers with many pending records; then a broker under libfaketime.
HELD ?= 200000
holds: setup
	@$(BIN)/python -m tests.campaign.pending_holds --records $(HELD)
	@$(BIN)/python -m tests.campaign.clock_steps

# The plot needs matplotlib: `make bench` installs it.
soak: setup
	@mkdir -p build
	@$(BIN)/python -m tests.campaign.soak --hours $(or $(HOURS),2) \
		--summary build/soak.json --plot build/soak.svg $(SOAK_OPTIONS)

# In network namespaces of its own, without rights of root; ZooKeeper comes with Spark.
cuts: setup-spark
	@unshare --map-root-user --net --pid --mount-proc --fork --kill-child \
		$(BIN)/python -m tests.campaign.network_cuts $(CUT_OPTIONS)

# With loop devices and mount namespaces.
standby: setup
	@$(BIN)/python -m tests.campaign.shared_storage

interop: setup
	@$(BIN)/python -m interop.run --brokers $(or $(BROKERS),1) $(ONLY)

# Interpreted: coverage cannot follow compiled code line by line.
coverage: $(STAMPS)/hot plain
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -m 'not slow and not e2e and not interop' tests/unit tests/wire
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report

# Strict: a broken link, a page outside the contents or a wrong heading fails the build.
docs: $(STAMPS)/docs $(STAMPS)/project
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --builder html docs build/docs
	@echo 'docs: build/docs/index.html'

# --- what people change --------------------------------------------------------------------------

format: setup
	@$(BIN)/ruff check --fix-only --quiet $(LINTED)
	@$(BIN)/ruff format $(LINTED)

generate: setup
	@$(BIN)/python -m tools.schema_gen
	@$(BIN)/python tools/reference_docs.py
	@$(BIN)/python -m tools.folder_map
	@$(BIN)/python -m tools.state_tables

# In an environment of its own: the tool that pins the packages is not one of them.
lock:
	@test -x build/lock-venv/bin/python || $(PYTHON) -m venv build/lock-venv
	@build/lock-venv/bin/python -m pip --quiet $(LOCKED) -r requirements/lock.txt
	@build/lock-venv/bin/python tools/lock.py $(LOCK_OPTIONS)

clean:
	@rm -rf build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
	@rm -f src/tidemill/hot/*.so src/tidemill/hot/*/*.so $(PATH_BUILT) $(STAMPS)/project $(STAMPS)/request-path
	@find $(LINTED) -name __pycache__ -type d -prune -exec rm -rf {} +
