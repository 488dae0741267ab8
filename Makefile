# Everything runs inside .venv, which is made on first use and again when a requirement changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Compiling all of torch takes longer than installing it: each module is compiled when it is imported first.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-sites lint bench sites clean

demo: $(READY)
	$(BIN)/coterie run examples/digits.toml

# Two processes of one thread each: more would wait for each other. Each begins with a half, so that what the tests
# of a file share is made once, and takes from the other when it is done.
test: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

# A hundred random ends of members, and ten thousand rounds: many minutes.
test-sites: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/deploy/long_sites.py

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

bench: $(READY)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/methods.py

# A hub and four members on this machine; one is killed and comes back.
sites: $(TOOLS)
	$(BIN)/python examples/sites/four_hospitals.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coterie needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $(READY)

# In tests warnings are errors, and compiling POT warns.
$(TOOLS): $(READY)
	$(INSTALL) -e '.[test]'
	$(BIN)/python -W ignore -m compileall -q $(VENV)/lib/python3.*/site-packages/ot
	touch $(TOOLS)

clean:
	rm -rf $(VENV) runs
