# The commands of the README. `make test` and `make check` set up everything they need in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: test check format bench clean

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_imports.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python benchmarks/open_gguf.py
	$(BIN)/python benchmarks/tokenizer.py

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.test: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	@touch $@ $(VENV)/.test
