# The commands of the README. Each sets up what it needs in .venv.
#
#   make chat                       a chat with the default model
#   make chat PROMPT="What is 2+2?" one answer
#   make chat MODEL=./mine.gguf     another model
#   make test                       all tests

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard csrc/*)

# These reach the command as they were typed: no shell and no make looks for $ or quotes in them.
unexport PROMPT MODEL
chat: export STRETTO_PROMPT := $(value PROMPT)
chat: export STRETTO_MODEL  := $(or $(value MODEL),smollm2)

.PHONY: chat test check format bench clean

chat: $(VENV)/.installed
	@if [ -n "$$STRETTO_PROMPT" ]; \
	then printf '%s\n' "$$STRETTO_PROMPT" | $(BIN)/stretto run --chat --model "$$STRETTO_MODEL"; \
	else exec $(BIN)/stretto chat --model "$$STRETTO_MODEL"; \
	fi

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

$(VENV)/.installed: $(BIN)/python pyproject.toml $(NATIVE)
	@echo 'installing into $(VENV)' >&2
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	@touch $@ $(VENV)/.test $(VENV)/.installed
