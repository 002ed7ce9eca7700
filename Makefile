# Everything a fresh machine needs: `make quickstart` runs the main job, `make test` checks the whole project.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test lint types format lock clean

quickstart: $(STAMP)
	$(BIN)/isocompute quickstart

test: $(STAMP) lint types
	$(BIN)/pytest -n auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The environment is rebuilt only when the lock or the project's own metadata changes.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lock: $(STAMP)
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --extra dev --extra remote --no-emit-index-url --no-emit-find-links --no-emit-options \
	    --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
