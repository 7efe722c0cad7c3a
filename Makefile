# `make demo` and `make test` need only Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# Without byte code, each start of a program compiles all its modules again, which takes half a second.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORE := $(VENV)/.installed
ALL := $(VENV)/.installed-all
DEV := $(VENV)/.installed-dev

.PHONY: help install demo test test-slow check docs bench package peer-check services clean

help:
	@echo "make demo       install the core into .venv and run the benchmark against a mock server"
	@echo "make install    install everything into .venv; then '. $(BIN)/activate' puts aiperf and penstock on the path"
	@echo "make test       run the tests; make test-slow: the long ones; make check: ruff, mypy and the links of the docs"
	@echo "make docs       build the documentation as a site in build/site"
	@echo "make package    build the wheel and the source distribution, and try them in a clean virtual environment"
	@echo "make peer-check load the files of many runs with the models of an installed AIPerf"
	@echo "make bench      measure the speed and accuracy figures of the README"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Penstock into $(VENV); this takes a minute the first time ..."
	@$(PIP) -e .
	@touch $@

$(ALL): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Penstock with all extras into $(VENV); this takes a minute the first time ..."
	@$(PIP) -e '.[all]'
	@touch $@ $(CORE)

$(DEV): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Penstock and its development tools into $(VENV) ..."
	@$(PIP) -e '.[dev]'
	@touch $@ $(CORE) $(ALL)

install: $(ALL)
	@echo "Ready. '. $(BIN)/activate' puts aiperf and penstock on the path of this shell."

# Benchmark a mock server. This needs no GPU and no model, and after the installation no network.
demo: $(CORE)
	$(BIN)/aiperf profile --model demo --tokenizer builtin --streaming --isl 100 --osl 64 \
	    --url 'mock://?ttft=50&itl=5' --concurrency 8 --request-count 64 --artifact-dir artifacts/demo

# Install Redis and PostgreSQL for tests of the gateway, zsh and fish for tests of completion, and tmux for the dashboard.
services:
	@sh scripts/install-services.sh

test: $(DEV) services
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(DEV) services
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in build/site."

# Build the wheel and the source distribution, and run both from a virtual environment that has nothing else.
package: $(DEV)
	rm -rf dist build/clean
	$(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/clean
	build/clean/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && clean/bin/aiperf profile -m m --tokenizer builtin --url mock:// --request-count 5 --artifact-dir clean/run
	build/clean/bin/pip uninstall --quiet --yes penstock
	build/clean/bin/pip install --quiet --disable-pip-version-check dist/*.tar.gz
	cd build && clean/bin/penstock report clean/run

# Load the files of many runs with the models of AIPerf 0.13, which is installed beside Penstock (1.2 GB).
peer-check: $(DEV)
	test -x build/peer/bin/python || $(PYTHON) -m venv build/peer
	build/peer/bin/pip install --quiet --disable-pip-version-check aiperf==0.13.0
	$(BIN)/python scripts/peer-check.py build/peer/bin/python

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) artifacts build dist .pytest_cache .mypy_cache .ruff_cache
