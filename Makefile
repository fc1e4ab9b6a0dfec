# Two commands on a fresh machine with Python 3.11 or newer and nothing else:
#   make run     own environment, install, plan and run an AllReduce where rings fail, then one between processes
#   make test    own environment, linters, types, layers, native tests, tests: what a merge must pass
# then `make test-more`, the tests that need PyTorch, Jupyter, Sphinx, SimGrid or Chromium, which it installs; `make test-all`,
# which leaves nothing out; `make docs` builds the documentation site into build/site; `make gpu` is for a machine with an
# NVIDIA GPU.
# Where there is no C++ compiler the build fetches one (native/backend/); `make native` builds again after a change in native/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Package indexes and caches are pip's own business: PIP_INDEX_URL and its like work as usual. With --no-compile below,
# Python compiles what is imported when it is; all that is installed would take ten seconds.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := native/CMakeLists.txt native/blink_exports.map $(wildcard native/src/* native/bootstrap/* native/simulate/* native/packing/* native/device/*/* native/shim/* native/copies/* native/preload/* native/mpi/* src/blinkccl/native/include/blink/*)
# More than two: some tests wait for deadlines most of their time. Threads of OpenBLAS and OpenMP only take the cores from
# others.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist worksteal -q
COMPILER := $(shell command -v "$${CXX:-c++}" || command -v g++ || command -v clang++)
# Hundreds of processes import the package: its bytecode is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
SAY_ZIG := $(if $(COMPILER),,echo "No C++ compiler on PATH: PyPI's ziglang (90 MB) compiles the native libraries, in some minutes.")

.PHONY: run test test-more test-all lint types layers collect unit native native-test bench claims docs wheels debian gpu gpu-bundle clean

run: $(VENV)/.installed
	$(BIN)/blink topo dgx-1v
	@echo
	$(BIN)/blink plan allreduce --topo dgx-1v --gpus 1,4,5,6
	@echo
	$(BIN)/blink bench allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K -e 16M
	@echo
	$(BIN)/blink bench allreduce -g 2 -b 4K -e 16M

# What takes one core side by side. The tests come after the native ones, whose ranks yield: beside tests that keep all
# cores busy they would take minutes. One process imports and rewrites all tests first, and not four at the same time.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j 2 native-test types lint layers collect
	@$(MAKE) --no-print-directory unit

# What `make test` skips where these are missing, and nothing else: tests/support/extras.py marks it.
test-more: $(VENV)/.more debian
	$(PYTEST) -m needs

# Slow tests, more random examples, sanitized and faulty builds of libblink.so, all of PyTorch's suite: an hour or two.
test-all: export BLINK_ALL_TESTS = 1
test-all: test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/support/budget.py

types: $(VENV)/.dev
	$(BIN)/mypy --strict

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(PYTEST)

collect: $(VENV)/.dev
	@mkdir -p build
	@$(BIN)/python -m pytest -q --collect-only >build/collected || { grep -v :: build/collected; exit 1; }

native: $(VENV)/.dev

native-test: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" native/tests/run-all

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/planning.py

# The papers' claims beside our numbers: docs/claims.md anew.
claims: $(VENV)/.installed
	$(BIN)/python -m reproduction --markdown docs/claims.md

# The documentation site; every warning is an error. Anew each time (-E): Sphinx does not know which code pages are made of.
docs: $(VENV)/.installed $(VENV)/.docs
	$(BIN)/sphinx-build -W -q -E -a -c docs -d build/doctrees . build/site
	@echo "build/site/index.html"

# Wheels for users without a compiler, for any Linux with glibc 2.28 or newer on x86-64 and AArch64: PyPI's ziglang compiles.
DIST ?= dist
wheels: | $(VENV)/bin/python
	@for machine in x86_64 aarch64; do \
	  BLINK_MANYLINUX=$$machine $(PIP) wheel --no-deps --wheel-dir $(DIST) . || exit; done; ls -l $(DIST)

# On a machine with an NVIDIA GPU: writes benchmarks/gpu-quick.md and gpu.md. The program ends with 3 where there is none.
gpu: $(VENV)/.installed
	$(BIN)/python benchmarks/gpu_day.py --quick || [ $$? -eq 1 ]
	$(BIN)/python benchmarks/gpu_day.py

# What a GPU day takes along to a machine that has Python, torch and no package index.
gpu-bundle: $(VENV)/.dev
	$(BIN)/python benchmarks/gpu_bundle.py make build/gpu-bundle

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "Install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' comes without venv. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	@$(SAY_ZIG)
	$(PIP) install --no-compile --editable .
	@touch $@

# After a change in native/ alone: builds what changed and installs it, with the tools that the first time brought. A
# compiler is none of them.
$(VENV)/.dev: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	@$(SAY_ZIG)
	$(PIP) install --no-compile $(if $(filter pyproject.toml,$?),--editable '.[dev]',$(if $(COMPILER),--no-build-isolation) --no-deps --editable .)
	@touch $@ $(VENV)/.installed

# Its tools alone: to install the package with an extra would build the native libraries once more.
EXTRA = $$($(BIN)/python -c 'import sys, tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]])' $(1))
$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --no-compile $(call EXTRA,docs)
	@touch $@

# The torch that the tests were written for; another: make TORCH=torch test-more. SimGrid and Chromium are Debian's, which
# root alone can install: their tests are skipped, with the reason, where that does not work.
TORCH ?= torch==2.13.0
$(VENV)/.more: pyproject.toml | $(VENV)/.dev $(VENV)/.docs
	$(PIP) install --no-compile '$(TORCH)' $(call EXTRA,notebook)
	@touch $@

debian:
	@/usr/bin/python3 -c 'import simgrid' >/dev/null 2>&1 || $(call DEBIAN,python3-simgrid)
	@command -v chromium >/dev/null || $(call DEBIAN,chromium)
DEBIAN = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && mkdir -p build && { timeout 120 apt-get update -qq; \
	  timeout 300 apt-get install -y -qq $(1); } </dev/null >build/apt 2>&1; } || \
	  { tail -n 1 build/apt 2>/dev/null; echo "No $(1): its tests are skipped."; } >&2

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
