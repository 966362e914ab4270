# `make demo` and `make test` need make, Python 3.11 or newer with venv, and the internet: each first makes .venv when it is missing or out of date.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_RUN ?= runs/adm-digits-demo
# Half the recipe's images in smaller batches: nearly as good (benchmarks/results/digits_quality-2026-11-23.md), and minutes on an old CPU too.
DEMO = --train.total-images 18k --train.batch-size 32 --train.sample-count 30
DEMO += --train.checkpoint-every 9k --train.sample-every 9k --train.validate-every 9k
# One more than the two cores of a small machine: tests also wait, for processes, disks and signals.
TEST_PROCESSES ?= 3
TESTS ?=

# What is imported is compiled once: tests and trainings start processes. pip would compile all that is there, for a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-slow test-all test-more test-matrix check format
.DELETE_ON_ERROR:

help:
	@echo "make demo         train the built-in digits for a few minutes and draw samples"
	@echo "make test         run the test suite without its slow tests"
	@echo "make test-slow    run the slow tests"
	@echo "make test-all     run both"
	@echo "make test-more    list and run the tests that need a GPU, other programs or real data"
	@echo "make test-matrix  run the suite as on other kinds of CPU"
	@echo "make check        lint, format check, types, import rules"
	@echo "make format       format the code"

demo: $(READY)
	@$(BIN)/triptych train adm-digits --run $(DEMO_RUN) $(DEMO)
	@$(BIN)/triptych sample $(DEMO_RUN) --count 100 --out $(DEMO_RUN)/demo.png
	@echo
	@echo "report    $(DEMO_RUN)/report.html (open it in a browser)"
	@echo "samples   $(DEMO_RUN)/demo.png (one column for each digit)"
	@echo "run       $(DEMO_RUN)"
	@echo "settings  $(DEMO_RUN)/config.json"
	@echo "metrics   $(DEMO_RUN)/metrics.jsonl"

test: WHICH := -m "not slow"
test-slow: WHICH := -m slow
test test-slow test-all: $(READY)
	@OMP_NUM_THREADS=$${TEST_THREADS:-1} $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup -q $(WHICH) $(TESTS)

test-more: $(READY)
	@$(BIN)/python -m pytest -q -m "gpu or peer or real_data"

test-matrix: $(READY)
	@$(BIN)/python benchmarks/test_matrix.py --out benchmarks/results/test_matrix-$$(date +%F).md

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Triptych needs Python 3.11 or newer; \"$(PYTHON)\" is $$($(PYTHON) --version 2>&1). Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; this downloads PyTorch)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
