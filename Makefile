# Needs Python 3.11+, git and make; everything else is installed into .uv/ and .venv/ on first use.
# `make test PYTHON=python3.13` uses that Python: in .venv/, or, where .venv/ holds another version,
# in .venv-3.13/ beside it.
PYTHON ?= python3
VENV ?= .venv
ifneq ($(filter command% environment,$(origin PYTHON)),)
ifneq ($(filter file,$(origin VENV)),)
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ASKED := $(call version,$(PYTHON))
ifneq ($(words $(ASKED)),1)
$(error PYTHON=$(PYTHON) does not run: give the path of a Python 3.11 or newer)
endif
ifneq ($(wildcard .venv/bin/python),)
ifneq ($(call version,.venv/bin/python),$(ASKED))
VENV := .venv-$(ASKED)
endif
endif
endif
endif
UV := .uv/bin/uv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed

export UV_COMPILE_BYTECODE ?= 1
export UV_PYTHON_DOWNLOADS ?= never
# Threads that spin while they wait make a shared machine several times slower.
export OMP_WAIT_POLICY ?= PASSIVE
# A shell's own virtual environment must not be mistaken for ours.
unexport VIRTUAL_ENV
# Tests start many processes: each would compile focoop anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-versions test-gpu coverage check docs format bench bench-gpu wheel lock sbom clean

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: $(SETUP) ## install the pinned packages into .venv/ (PYTHON=python3.13: with that Python)

demo: $(SETUP) ## zero-shot, PromptFL, FOCoOp and FOCoOp+ on the packaged CIFAR-100 features
	$(BIN)/focoop demo

# One process per core, one thread each; a file's tests stay in one process. Every test has a time
# limit (tests/conftest.py); a process that dies ends the run, and so does the last limit, TEST_LIMIT.
TEST_LIMIT ?= 40m
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} timeout --kill-after=30 $(TEST_LIMIT) \
	$(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0

# Only a slow test uses schemathesis, whose plugin takes a second to load in every process.
test: $(SETUP) ## all tests but the slow ones
	$(PYTEST) -p no:schemathesis -m "not slow"

test-slow: $(SETUP) ## the slow tests
	$(PYTEST) -m slow

test-versions: ## the quick tests on each supported Python found here, and which are absent
	$(PYTHON) tools/each_python.py

# One process: tests share the device. Triton compiles here; elsewhere it interprets.
test-gpu: $(SETUP) ## the tests that need a CUDA device
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} timeout --kill-after=30 $(TEST_LIMIT) \
		$(BIN)/python -m pytest -m gpu

coverage: $(SETUP) ## how much of each room the quick tests run; report in build/coverage
	@mkdir -p build
	$(PYTEST) -m "not slow" --cov --cov-report=json:build/coverage.json --cov-report=html:build/coverage
	$(BIN)/python tools/coverage_by_room.py build/coverage.json

check: $(SETUP) docs ## lint, format, types and the documentation site, as CI does
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pydoclint --quiet focoop
	$(BIN)/mypy

# Strict: a broken link, a page outside the menu or an unknown name of the API fails.
docs: $(SETUP) ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

format: $(SETUP) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The other files there are parts of these, and gpu.py.
BENCHMARKS = text_engine memory transport evaluation encoding scale attacks flower_floor serving

bench: $(SETUP) ## the benchmarks of a CPU, many minutes
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

bench-gpu: $(SETUP) ## the text engine and the naive path on a GPU, four minutes
	$(BIN)/python benchmarks/gpu.py

sbom: $(SETUP) ## a bill of materials of the pinned packages (CycloneDX), in build/sbom.json
	$(BIN)/python tools/sbom.py --out build/sbom.json

# What builds it is compared with the hashes of requirements.lock, too.
DIST ?= dist
wheel: $(UV) ## focoop as one file that pip installs anywhere, in dist/
	rm -f $(DIST)/focoop-*.whl
	$(UV) build --quiet --wheel --python .uv/bin/python --out-dir $(DIST) \
		--build-constraint requirements.lock --require-hashes
	@echo "pip install '$$(echo $(DIST)/focoop-*.whl)', or with extras: '$$(echo $(DIST)/focoop-*.whl)[serve,formats]'"

lock: $(UV) ## renew requirements.lock from pyproject.toml, and tests/tracking/*.txt
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-annotate --custom-compile-command "make lock" \
		--python-version 3.11 --extra dev $(LOCK_ARGS) pyproject.toml -o requirements.lock
	$(PYTHON) tools/lock_trackers.py $(UV)

clean: ## remove environments, caches and build output; run folders stay
	rm -rf .venv .venv-* .uv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv lives apart from .venv, whose packages may pin another uv.
$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "focoop needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { \
		echo "this Python lacks venv (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
	@test -x $@ && touch $@

# Hard links from uv's cache are fast and small, but only exist within one file system.
$(SETUP): requirements.lock pyproject.toml | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "focoop needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "installing the pinned packages into $(VENV)/ (about 6 GB with torch; a minute or two)"
	$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	@cache=$$($(UV) cache dir) && mkdir -p "$$cache" && \
	if [ "$$(stat -c %d "$$cache")" != "$$(stat -c %d $(VENV))" ]; then export UV_LINK_MODE=copy; fi && \
	$(UV) pip sync --require-hashes --python $(VENV) requirements.lock && \
	$(UV) pip install --quiet --python $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@
