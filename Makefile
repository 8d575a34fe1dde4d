# make demo   a fresh machine to a page: .venv, both applications, then source only, MinEnt, MinEnt + AdaDEM and best
# make test   the same and what the tests need, all extras among it, then the whole fast suite
# make docs   the site of docs/, in build/docs, and the notebooks of examples/, which are run
# make check  format, lint, types, tests
# make test-lowest   the fast suite with the lowest version of every dependency that pyproject.toml allows

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.installed-dev
LOWEST := .venv-lowest
LOWEST_READY := $(LOWEST)/.installed
# Cityscapes' own scores, for one test. Without its dependencies: one is the backport `typing`, older than the Python here.
CITYSCAPES := --no-deps "cityscapesscripts>=2.2"

define INSTALLS
Installing dem-apps and what it needs into $(VENV), once: some minutes, and about 6.4 GB on Linux, nearly all of it
torch's build for GPUs. For its CPU build, less than 1.5 GB in all, press Ctrl-C and run
    rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
then, with $(BIN)/pip for pip, the line that pytorch.org shows for "Pip" and "CPU", and this command again.
endef
export INSTALLS

.PHONY: demo docs test test-lowest check format lint types slow

# The first lines of the installation and of the run say what each takes.
demo: $(INSTALLED)
	@echo "Four small trainings on synthetic streets, from ImageNet weights: about three minutes on two cores, and 0.1 GB below runs/ and in ~/.cache/dem-apps."
	@$(BIN)/python -m seg.benchmark --config configs/seg/demo_benchmark.yaml --folder runs/demo-$$(date +%Y%m%d-%H%M%S) --workers 2

# Warnings are errors, a link that leads nowhere among them. Nothing is fetched.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests/docs/test_pages.py -k ipynb
	@echo "build/docs/index.html"

# One torch thread per test process: two processes on two cores are faster than two threads in each.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-lowest: $(LOWEST_READY)
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

check: format lint types test

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

# In benchmarks what a change of the packages breaks: names, attributes and calls.
types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy benchmarks --cache-dir .mypy_cache/benchmarks --implicit-reexport --no-strict-optional \
		--no-warn-return-any --allow-untyped-calls --no-warn-unused-ignores --disable-error-code arg-type

$(INSTALLED): pyproject.toml
	@echo "$$INSTALLS"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --upgrade pip
	@$(BIN)/python -m pip install -q -e ".[seg,rl,pretrained]"
	@touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install -q -e ".[all,dev]"  # no test is skipped for want of an extra
	$(BIN)/python -m pip install -q $(CITYSCAPES)
	touch $@

$(LOWEST_READY): pyproject.toml tests/lowest_versions.py $(READY)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python tests/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --constraint $(LOWEST)/constraints.txt -e ".[dev]"
	$(LOWEST)/bin/python -m pip install $(subst >=2.2,==2.2.0,$(CITYSCAPES))
	touch $@
