# Everything runs in .venv, which is made on first use from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup run test test-slow check lint types bench results clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## Make the virtual environment (the other targets do it themselves)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedwidth needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools wheel
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	@touch $@

run: $(STAMP)  ## Train the quick start and print its table
	$(BIN)/fedwidth run --out runs/quickstart --overwrite

test: $(STAMP)  ## Run the tests
	$(BIN)/python -m pytest

test-slow: $(STAMP)  ## Run the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test  ## What CI runs: lint, types, tests

bench: $(STAMP)  ## Measure extract and aggregate side by side with a plain loop
	$(BIN)/python benchmarks/core.py

results: $(STAMP)  ## Write docs/results.md from the runs recorded in results/
	$(BIN)/fedwidth results

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
