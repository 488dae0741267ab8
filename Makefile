# Everything runs inside .venv, which is made on first use and again when a requirement changes.
PYTHON ?= python3
VENV := .venv
# Another torch takes the place of the one that is tested.
TORCH :=
VERSIONS := $(if $(TORCH),$(VENV)/versions.txt,constraints.txt)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(VERSIONS)

# Compiling all of torch takes longer than installing it: each module is compiled when it is imported first.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test coverage test-pythons test-torch test-sites lint docs bench sites clean

demo: $(READY)
	$(BIN)/coterie run examples/digits.toml

# Two processes of one thread each: more would wait for each other. Each begins with a half, so that what the tests
# of a file share is made once, and takes from the other when it is done.
test: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

# Which lines the tests run: a table, and coverage.xml. From Python 3.12 on, this takes hardly longer than the tests.
coverage: $(TOOLS)
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q --cov --cov-report=term:skip-covered --cov-report=xml

# The tests with every Python on this machine that we support, each in an environment of its own: slow.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
test-pythons:
	@for python in $(PYTHONS); do \
	  "$$python" -c "import ssl" 2>/dev/null || { echo "$$python: not found"; continue; }; \
	  echo "$$python: found, testing"; \
	  $(MAKE) test PYTHON=$$python VENV=.venvs/$$python || exit 1; \
	done

# The tests with other versions of torch. WARNING: each version downloads up to several gigabytes.
TORCHES ?= 2.6.0 2.9.0
test-torch:
	@echo "This downloads torch $(TORCHES): up to several gigabytes each. Stop now if you do not want this."
	@sleep 5
	@for torch in $(TORCHES); do \
	  $(MAKE) test VENV=.venvs/torch-$$torch TORCH=$$torch || exit 1; \
	done

# Every kind of end of a process, a hundred random ones, and ten thousand rounds: many minutes.
test-sites: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/deploy/long_sites.py

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

# The site, in the folder `site`; open site/index.html. Any warning is an error.
docs: $(TOOLS)
	$(BIN)/python docs/site/build_site.py

bench: $(READY)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/methods.py

# A hub and four members on this machine; one is killed and comes back.
sites: $(TOOLS)
	$(BIN)/python examples/sites/four_hospitals.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coterie needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VERSIONS))
	$(INSTALL) -e .
	touch $(READY)

# In tests warnings are errors, and compiling POT warns.
$(TOOLS): $(READY)
	$(INSTALL) -e '.[docs,test]'
	$(BIN)/python -W ignore -m compileall -q $(VENV)/lib/python3.*/site-packages/ot
	touch $(TOOLS)

clean:
	rm -rf $(VENV) .venvs .site site runs .coverage coverage.xml
