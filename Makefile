# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check bench services clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

# The benchmark against a server of its own: no network, no GPU, no model.
demo: $(STAMP)
	$(BIN)/aiperf profile --model demo --tokenizer builtin --streaming --isl 100 --osl 64 \
	    --url 'mock://?ttft=50&itl=5' --concurrency 8 --request-count 64 --artifact-dir artifacts/demo

# Redis and PostgreSQL, which some tests of the gateway talk to.
services:
	@sh scripts/install-services.sh

test: $(STAMP) services
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP) services
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) artifacts .pytest_cache .mypy_cache .ruff_cache
