# Two commands: `make demo` builds and runs the main job, `make test` runs every test.
# Each makes its own virtual environment in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml $(shell find ffi -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
# loadgroup: tests that share a costly start (of processes, of ptxas) go to the same worker.
PYTEST_ARGS ?= -n 2 --dist loadgroup

# A module is compiled when it is first imported, not all of them by pip: a third of what installing takes.
export PIP_COMPILE := 0

BUILDS := "Building the extension and installing what it needs: two to five minutes, in silence."

.PHONY: demo test lint docs matrix wheel clean

demo: $(VENV)/installed
	$(BIN)/python examples/rms_norm.py
	@echo "Next: README.md shows the calls, docs/tutorial.md writes a kernel; $(BIN)/python has jax_ptx."

test: $(VENV)/installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The same suite on every supported pair of Python and jax whose interpreter is found; says which.
matrix: $(VENV)/tools
	$(BIN)/python -m nox

# An sdist and a wheel in dist/ that needs no compiler; tried in an environment that has none.
wheel: $(VENV)/tools
	$(BIN)/python -m nox --session wheel

# The site, in site/. It stops at a link that leads nowhere. After `tools`: one pip at a time.
docs: $(VENV)/installed $(VENV)/tools
	$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "The site is in site/; its search needs a server: $(BIN)/python -m http.server -d site"

lint: $(VENV)/installed-test $(VENV)/tools
	$(BIN)/pre-commit run --all-files

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jax_ptx needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Editable, so that only a change of the extension's sources needs a new build.
$(VENV)/installed: $(BIN)/python $(SOURCES)
	@echo $(BUILDS)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: $(BIN)/python $(SOURCES)
	@echo $(BUILDS)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/installed

$(VENV)/tools: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist site .nox
