# `make demo`, `make test` and `make test-all` set up .venv first; a second run reuses it.

# The first of these commands whose version is new enough.
PYTHON ?= $(shell for name in python3 python3.11 python3.12 python3.13 python3.10; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$name && break; \
	done)
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := microkernels tir_schedules relay_passes tvm_hybrid tvm_hybrid_command.py tools
STAMP := $(VENV)/.installed
# A Chromium for tests of the report's page and of the site's search, which are skipped without one.
BROWSER_STAMP := $(VENV)/.browser
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# PyTorch has a separate environment on top of .venv: TVM imports PyTorch if it is installed.
TORCH := $(VENV)/torch
TORCH_STAMP := $(TORCH)/.installed
TORCH_TESTS := tests/tvm_hybrid/pytorch tests/tvm_hybrid/frontend/test_nn_modules.py \
	notebooks/pytorch.ipynb
# Packages written for ONNX Runtime: they want other versions than .venv and PyTorch's environment have.
SHIMMED := $(VENV)/packages
SHIMMED_STAMP := $(SHIMMED)/.installed
# Number of test processes; each test file runs in one process.
WORKERS ?= 2
# Duration of `make fuzz`.
SECONDS ?= 600

.PHONY: demo docs quick test test-torch test-all test-machines fuzz lint types format wheel clean

demo: $(STAMP)
	$(BIN)/python -m tvm_hybrid.demo

# The documentation as pages that need no network: build/site/index.html.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Two notebook kernels that start at once may choose the same free port: the kernel that dies is restarted.
NBMAKE := --nbmake --nbmake-timeout=300 --reruns 1 --only-rerun 'Kernel died before replying'

# Bytecode is kept: rewriting the assertions of all tests takes half the time of collecting them.
# Files run in order, notebooks first: a long file that begins last would keep only one process busy.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(NBMAKE) -n $(WORKERS) \
	--dist loadfile --no-loadscope-reorder

TORCH_PYTEST := PYTHONDONTWRITEBYTECODE= $(TORCH)/bin/python -m pytest $(NBMAKE) -n $(WORKERS) --dist loadfile $(TORCH_TESTS)

# Fast tests of every package: rules, intrinsics, one template, compilation, options, documents.
QUICK_TESTS := tests/test_layers.py tests/test_documents.py tests/test_version.py \
	tests/microkernels/test_isa.py tests/microkernels/base tests/microkernels/machines \
	tests/microkernels/tensorize/test_tensor_intrin.py tests/tir_schedules/rows/test_normalize.py \
	tests/tir_schedules/core tests/tir_schedules/epilogue/test_fusible_ops.py \
	tests/relay_passes/canonicalize tests/relay_passes/ir \
	tests/tvm_hybrid/test_api.py tests/tvm_hybrid/test_options.py tests/tvm_hybrid/test_argument_errors.py tests/tvm_hybrid/targets

# Before each commit: under two minutes on two cores.
quick: $(STAMP)
	$(MAKE) lint
	$(PYTEST) -m "not slow" $(QUICK_TESTS)

# mypy is one process: PyTorch's tests use the other CPUs meanwhile.
test: $(TORCH_STAMP) $(BROWSER_STAMP)
	$(MAKE) --jobs=2 test-torch types lint
	$(PYTEST) -m "not slow"

test-torch: $(TORCH_STAMP)
	$(TORCH_PYTEST) -m "not slow"

# All tests. `test` leaves out tests marked slow; four fifths of random examples; seven eighths of the parameters of
# tests marked sampled and, on CPUs without AVX-512, of tests by stand-ins; two thirds of the instruction sets of
# templates' tests. The selection changes each day; TVM_HYBRID_TEST_DAY states the day.
test-all: lint types $(TORCH_STAMP) $(SHIMMED_STAMP) $(BROWSER_STAMP)
	TVM_HYBRID_ALL_TESTS=1 $(TORCH_PYTEST)
	TVM_HYBRID_ALL_TESTS=1 $(PYTEST)
	$(MAKE) test-machines

# Decisions based on cost estimates differ from CPU to CPU: runs the tests of code that estimates this CPU, with the
# numbers of each described CPU in turn.
test-machines: $(STAMP)
	set -e; for machine in $$($(BIN)/python -m tests.pinned_machine $(CURDIR)/build/machines); do \
		echo "estimates of $$machine"; \
		TVM_HYBRID_MACHINE=$$machine $(PYTEST) -m "not slow" tests/relay_passes tests/end_to_end tests/tvm_hybrid \
			tests/test_tensorization_page.py tests/test_tvm_schedules_page.py; \
	done

# Examines random graphs, which are new unless SEED is given; writes findings to build/fuzz.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy $(PACKAGES)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Set-up runs again if a file that it depends on changes.
$(STAMP): setup.cfg pyproject.toml tvm_hybrid/__init__.py
	@test -n "$(PYTHON)" || \
		{ echo "Error: no Python 3.10 or newer; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v g++ >/dev/null || \
		{ echo "Error: g++ is missing; it links exported models"; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	touch $@

# Installs Debian's package if Chromium is missing and the user is root; if that fails, continues without it.
$(BROWSER_STAMP): $(STAMP)
	@test -n "$(CHROMIUM)" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ apt-get -qq update; DEBIAN_FRONTEND=noninteractive timeout 600 \
		apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1; } || \
		echo "No Chromium: the tests of pages in a browser will be skipped"
	@touch $@

$(TORCH_STAMP): $(STAMP)
	$(BIN)/python -m venv --clear $(TORCH)
	$(BIN)/python -c 'import os, site; print(site.getsitepackages()[0], os.getcwd(), sep="\n")' > \
		"$$($(TORCH)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tvm_hybrid.pth"
	$(TORCH)/bin/python -m pip install --disable-pip-version-check \
		torch==2.13.0 torchao==0.18.0 transformers==5.23.0 onnxscript==0.7.2
	touch $@

$(SHIMMED_STAMP): $(TORCH_STAMP)
	$(BIN)/python -m venv --clear $(SHIMMED)
	for bin in $(TORCH)/bin $(BIN); do \
		$$bin/python -c 'import site; print(site.getsitepackages()[0])'; \
	done > "$$($(SHIMMED)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tvm_hybrid.pth"
	$(SHIMMED)/bin/python -m pip install --disable-pip-version-check --editable '.[packages]' torch==2.13.0
	touch $@

# Builds a wheel and a source distribution in dist.
wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
