# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.PHONY: help install demo test test-slow check bench services clean

help:
	@echo "make demo       set up .venv and run the benchmark against a server of its own"
	@echo "make install    set up .venv; then '. $(BIN)/activate' puts aiperf and penstock on the path"
	@echo "make test       the tests; make test-slow: the long ones; make check: ruff and mypy"
	@echo "make bench      the speed and accuracy figures of the README"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Penstock into $(VENV); this takes a minute the first time ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Penstock and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(RUN)

install: $(RUN)
	@echo "Ready. '. $(BIN)/activate' puts aiperf and penstock on the path of this shell."

# The benchmark against a server of its own: no GPU, no model, and once it is installed no network.
demo: $(RUN)
	$(BIN)/aiperf profile --model demo --tokenizer builtin --streaming --isl 100 --osl 64 \
	    --url 'mock://?ttft=50&itl=5' --concurrency 8 --request-count 64 --artifact-dir artifacts/demo

# Redis and PostgreSQL, which some tests of the gateway talk to, and the shells of the completion scripts.
services:
	@sh scripts/install-services.sh

test: $(DEV) services
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(DEV) services
	$(BIN)/python -m pytest -m slow

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) artifacts .pytest_cache .mypy_cache .ruff_cache
