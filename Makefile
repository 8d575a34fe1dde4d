# make demo   a fresh machine to a page: .venv, both applications, then source, control and the best recipe side by side
# make test   the same and what the tests need, then the whole fast suite
# make soak   kills trainings hundreds of times and compares what they come to; fuzzes what reads files
# make check  format, lint, types, tests
# make test-lowest   the fast suite with the lowest version of every dependency that pyproject.toml allows

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.installed-dev
LOWEST := .venv-lowest
LOWEST_READY := $(LOWEST)/.installed

.PHONY: demo test test-lowest check format lint types slow soak

demo: $(INSTALLED)
	run=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/python -m seg.benchmark --config configs/seg/demo_comparison.yaml --folder $$run --workers 2 && \
	$(BIN)/python -m dem_apps.report $$run/source/seed0 $$run/control/seed0 $$run/best/seed0 --out $$run/report.html

# One torch thread per test process: two processes on two cores are faster than two threads in each.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-lowest: $(LOWEST_READY)
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -m "not slow" -n 2 --dist loadfile

slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

# Hours of bad luck in minutes, by hand: see docs/reliability.md.
soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/kill_soak.py --kills 20 --out docs/results/soak_kills.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/fuzz_readers.py --seconds 600 --out docs/results/soak_fuzz.json

check: format lint types test

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -e ".[seg,rl]"
	touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install -e ".[dev]"
	touch $@

$(LOWEST_READY): pyproject.toml tests/lowest_versions.py $(READY)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python tests/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --constraint $(LOWEST)/constraints.txt -e ".[dev]"
	touch $@
