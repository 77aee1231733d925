# Everything starts from a machine with Python >= 3.11 and a C++ compiler. `make` shows the targets.
# The interpreter for the virtual environment can be chosen: make setup PYTHON=python3.12
# and the minor release of torch, with an environment of its own (.venv-2.15) beside the pinned one: make test TORCH=2.15

PYTHON ?= python3
TORCH  ?=
VENV   := .venv$(addprefix -,$(TORCH))
BIN    := $(VENV)/bin
PY     := $(BIN)/python
PINS   := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
WANTED := $(if $(TORCH),'torch==$(TORCH).*')
STAMP  := $(VENV)/.installed
JOBS   ?= 2
PYTEST  = $(PY) -m pytest -n $(JOBS) --dist worksteal --durations=25 --durations-min=4
# A command beside mypy, which has one core for as long as a minute and is shown where it finds something; not with TORCH=.
BESIDE_TYPES = $(if $(TORCH),$(1),@mkdir -p build; $(BIN)/mypy -p intarsia > build/types.txt 2>&1 & types=$$!; \
	$(1); tests=$$?; wait $$types || { cat build/types.txt; exit 1; }; exit $$tests)
# These two depend on CUDA's torch by their metadata; beside the pinned torch they are installed alone.
ALONE  := torchvision timm
BESIDE := pip pillow matplotlib transformers accelerate lightning

# A hundred Python processes of the tests would each translate all of the package's text.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types fuzz soak stress opdb bench gpu sanitize sanitize-cpu size docs clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

setup: $(STAMP)  ## make the virtual environment (only when pyproject.toml or constraints.txt changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, found " + sys.version.split()[0] + "; choose another with PYTHON=...")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH),grep -vE '^(torch|triton)==' constraints.txt > $(PINS))
	$(PY) -m pip install -q -c $(PINS) $(BESIDE) $(WANTED) -e '.[test,docs]'
	$(PY) -m pip install -q --no-deps -c $(PINS) $(ALONE)
	$(PY) benchmarks/torchvision_stub.py
	@touch $(STAMP)

demo: $(STAMP)  ## run the models, eager and compiled, in one table
	$(PY) benchmarks/run.py --device cpu --suite demo --skip inductor

test: $(if $(TORCH),$(STAMP),lint)  ## lint, types, tests; of the slow ones a share that follows from the commit
	$(call BESIDE_TYPES,$(PYTEST) $(ARGUMENTS) tests)

test-all: $(if $(TORCH),$(STAMP),lint)  ## lint, types, all tests; with TORCH=2.15 the tests, with that torch
	$(call BESIDE_TYPES,$(PYTEST) --slow all $(ARGUMENTS) tests)

lint: $(STAMP)  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict in ir and passes
	$(BIN)/mypy -p intarsia

fuzz: $(STAMP)  ## 2,000 random graphs, checked after every pass
	INTARSIA_FUZZ=2000 $(PY) -m pytest tests/fuzz -n $(JOBS)

soak: $(STAMP)  ## random programs of eleven kinds against eager, for SECONDS=600 on DEVICE=cpu; failures are made small
	$(PY) -m tests.soak --seconds $(or $(SECONDS),600) --device $(or $(DEVICE),cpu) --jobs $(JOBS)

stress: $(STAMP)  ## THREADS=16 threads that compile, call, change weights and reset, for SECONDS=600
	OMP_NUM_THREADS=1 $(PY) -W ignore -m tests.stress $(or $(SECONDS),600) $(or $(THREADS),16)

opdb: $(STAMP)  ## every operator of torch's database, compiled, with gradients: none wrong, at least 90% not in eager
	INTARSIA_OPDB=1 $(PY) -m pytest tests/opdb -n $(JOBS)

bench: $(STAMP)  ## all benchmarks on the CPU
	$(PY) benchmarks/run.py --device cpu

gpu: $(STAMP)  ## on a GPU machine: its tests; programs, models, operators and 1,000 random graphs, side by side
	$(PY) -m pytest tests/gpu -n 8
	$(PY) -m tests.gpu.sweep --graphs 1000 --seconds 600

sanitize: $(STAMP)  ## on a GPU machine: the kernels under compute-sanitizer's memcheck and racecheck
	$(PY) tests/gpu/sanitize.py

sanitize-cpu: $(STAMP)  ## random programs with kernels compiled under AddressSanitizer and UndefinedBehaviorSanitizer (SECONDS=300)
	$(PY) tests/fuzz/sanitize.py --seconds $(or $(SECONDS),300)

size:  ## lines per room and per file
	@wc -l $$(git ls-files '*.py' '*.h' '*.cpp' '*.ir') | grep -v ' total$$' | sort -k2 | awk ' \
	  { split($$2, path, "/"); room = index($$2, "/") ? path[1] : "."; rooms[room] += $$1; count[room]++; all += $$1; \
	    files[room] = files[room] sprintf("%7d  %s\n", $$1, $$2) } \
	  END { for (room in rooms) printf "%7d  %s/ (%d files)\n", rooms[room], room, count[room]; printf "%7d  in all\n\n", all; \
	        for (room in rooms) if (room != "tests") printf "%s", files[room] }'

docs: $(STAMP)  ## make anew what the documentation takes from the code, then the site in build/site
	$(PY) -m intarsia.ir.document docs/ir.md
	$(PY) docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

clean:  ## remove what was made, but not the virtual environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +
