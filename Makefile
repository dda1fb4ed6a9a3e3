# `make demo` and `make test` install everything first; no other command needs to be run before them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: help setup demo test test-slow bench paper docs docs-serve release-check lint clean

help:
	@echo "make demo       train 20 agents that each see one class out of five; figure in runs/demo"
	@echo "make test       run lint and tests"
	@echo "make test-slow  also run the longer tests"
	@echo "make bench      measure speed, memory and defaults; tables in benchmarks/results; make bench NAME … runs only these cases"
	@echo "make paper      run every experiment of the paper (about an hour) and write docs/paper.md; IMAGES=DIR has the textures"
	@echo "make docs       build the documentation site in build/site; broken links are errors"
	@echo "make docs-serve serve the site at http://127.0.0.1:8000/ and reload on changes"
	@echo "make release-check  build wheel and sdist into dist and test each in an empty environment"
	@echo "make lint       check formatting, lint, types, import layers, sizes and docstrings"
	@echo "make setup      install only"

setup: $(DONE)

$(DONE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kernelmesh needs Python 3.11 or newer; set PYTHON=…"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	@echo "Compiling the inner loops, once …"
	$(BIN)/python tools/compile_loops.py
	touch $@

# the live page needs a display
demo: setup
	$(BIN)/kernelmesh run one-class --seed 0 --out runs/demo
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ]; then $(BIN)/kernelmesh dashboard --open runs/demo/relay runs/demo/paper; else echo "See runs/demo/figure.png."; fi

# on two cores; tests that start agents run one at a time
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -rs

test-slow: setup
	$(BIN)/python -m pytest -m "slow or not slow"

# `make bench` runs all cases, `make bench rules defaults` only these
ifeq (bench,$(firstword $(MAKECMDGOALS)))
CASES := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(CASES)
$(CASES): ; @:
endif

bench: setup
	$(BIN)/python benchmarks/run.py $(CASES)

paper: setup
	$(BIN)/python tools/paper.py $(if $(IMAGES),--images "$(IMAGES)")

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

release-check: setup
	$(BIN)/python tools/release_check.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/code_size.py
	$(BIN)/python -m pytest -q tests/test_package.py -k docstrings

clean:
	rm -rf $(VENV) build/site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
