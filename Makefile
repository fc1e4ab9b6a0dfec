# Two commands on a fresh machine with Python 3.11 or newer and nothing else:
#   make run     own environment, install, plan and run an AllReduce where rings fail
#   make test    own environment, linters, types, layers, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Package indexes and caches are pip's own business: PIP_INDEX_URL and its like work as usual.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test lint types layers unit bench clean

run: $(VENV)/.installed
	$(BIN)/blink topo dgx-1v
	@echo
	$(BIN)/blink plan allreduce --topo dgx-1v --gpus 1,4,5,6
	@echo
	$(BIN)/blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M

test: lint types layers unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy --strict

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -q

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/planning.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "Install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' comes without venv. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
