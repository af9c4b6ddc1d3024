# make book | pdf | test | assignments | portable | anywhere | lab | serve | bench | links | dist | clean.
# Each sets up what it needs, in .venv and nowhere else; anywhere and lab use a temporary folder besides.

# Names under the checkout only, so that a clone works at any path.
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.deqbook-stamp
BASE_PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 8000
JOBS ?= 2
PIP := $(PYTHON) -m pip install --quiet --disable-pip-version-check
# TORCH=cpu asks for torch without CUDA libraries. pip knows no name for that build, uv does; where
# it cannot be had, pip's usual one follows.
TORCH ?=
CPU_TORCH = { $(PIP) -c constraints.txt uv && $(VENV)/bin/uv pip install --quiet --python $(PYTHON) \
  --torch-backend cpu -c constraints.txt torch; } || echo "== no CPU build of torch found; taking pip's"

.DEFAULT_GOAL := book
.PHONY: book pdf test assignments portable anywhere lab setup serve bench links dist clean

book: setup
	@$(PYTHON) -m deqbook build

# The whole book on paper, _build/pdf; needs Chromium.
pdf: setup
	@$(PYTHON) -m deqbook pdf

test: setup
	@echo "== style"
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@echo "== types"
	@$(PYTHON) -m mypy
	@echo "== rooms: who imports whom"
	@$(VENV)/bin/lint-imports --no-cache
	@echo "== book (strict, with every claim verified)"
	@$(PYTHON) -m deqbook build
	@echo "== tests ($(JOBS) processes)"
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(JOBS)
	@echo "== solvers and models on a simulated lesser processor"
	@$(PYTHON) tests/portable.py --part tests --quick --level lowest --threads 1 --jobs $(JOBS)

# The course's notebooks, for students and for the instructor. This year's word: make assignments SALT=…
assignments: setup
	@$(PYTHON) -m deqbook assignments $(if $(SALT),--salt "$(SALT)")

# Tests, claims and pages under simulated processors. A part of it: make portable ONLY="--part claims"
portable: setup
	@$(PYTHON) tests/portable.py --jobs $(JOBS) $(ONLY)

# The notebooks outside the checkout, with the wheel alone. Another Python, the lowest versions:
# make anywhere ONLY="--python /path/to/python3.10 --bounds lowest --tests"
anywhere: book
	@$(PYTHON) tests/anywhere.py $(ONLY)

# Some notebooks in JupyterLab, in a browser. Others: make lab ONLY="--only 05b"
lab: book
	@$(PYTHON) tests/lab.py $(ONLY)

serve: book
	@echo "http://localhost:$(PORT)/ shows the book; stop with Ctrl-C."
	@$(PYTHON) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

# Beside other libraries, half an hour; the book's page of benchmarks shows what comes out.
RECEIPTS := src/deqbook/data/results
bench: setup
	@$(PIP) -c constraints.txt -e ".[bench]"
	@$(PYTHON) benchmarks/solvers.py --json $(RECEIPTS)/bench_solvers.json
	@$(PYTHON) benchmarks/training_step.py --json $(RECEIPTS)/bench_training_step.json
	@$(PYTHON) benchmarks/growth.py --json $(RECEIPTS)/bench_growth.json
	@$(PYTHON) benchmarks/growth.py --large --json $(RECEIPTS)/bench_growth.json
	@$(PYTHON) benchmarks/places.py --json $(RECEIPTS)/bench_places.json
	@$(PYTHON) benchmarks/tangent_kernel.py

# Does every link of the book still answer?
links: setup
	@$(PYTHON) -m deqbook build --builder linkcheck

# A release's files in _build/dist, each installed and tried.
dist: setup
	@$(PYTHON) .ci/dist.py

clean:
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

setup: $(STAMP)

# The environment remembers which checkout it was made for: moved or copied, it is made anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(BASE_PYTHON)" || { echo "No python3 found; install Python 3.11 or newer." >&2; exit 1; }
	@"$(BASE_PYTHON)" -c 'import sys; v = sys.version.split()[0]; \
	  sys.exit(None if sys.version_info >= (3, 11) else f"Python {v} is too old for the versions of constraints.txt; 3.11 or newer is needed (make BASE_PYTHON=/path/to/python3).")'
	@echo "== environment in $(VENV) (the first time takes a few minutes)"
	@test -x $(PYTHON) || "$(BASE_PYTHON)" -m venv $(VENV)
	@test "$(TORCH)" != cpu || $(CPU_TORCH)
	@$(PIP) -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) -c constraints.txt -e ".[book,course,test]"
	@printf '%s' "$(CURDIR)" > $@
