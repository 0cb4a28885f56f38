# make demo   the main job from nothing          make test   the tests
# make lint   ruff and mypy                      make bench  the benchmarks
# make generate      the declared keys of pyproject.toml and the tables of the documents, from the code
# make docs     the documents as a site, in build/site
# make test-deploy   federations of real processes, and what may befall them; half an hour
# make smoke-deploy  a few minutes of that
VENV := .venv
BIN := $(VENV)/bin
ROOMS := $(filter-out thistle benchmarks,$(patsubst %/__init__.py,%,$(wildcard */__init__.py)))

demo: $(VENV)/.ready
	$(BIN)/thistle demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest

test-deploy: $(VENV)/.ready
	$(BIN)/python -m pytest -m deploy tests/deploy -rs

smoke-deploy: $(VENV)/.ready
	$(BIN)/python -m pytest -m smoke tests/deploy -rs

lint: $(VENV)/.ready types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(VENV)/types && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache

generate: $(VENV)/.ready
	$(BIN)/python -m thistle.reference

docs: $(VENV)/.ready types
	NO_MKDOCS_2_WARNING=1 TYPES=$(VENV)/types $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/aggregators.py
	$(BIN)/python benchmarks/round.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/calfat.py

clean:
	rm -rf $(VENV) .venv-peers dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The package as the wheel has it, made of links: what mypy and an editor read.
types:
	rm -rf $(VENV)/types && mkdir -p $(VENV)/types/thistle
	ln -s $(CURDIR)/thistle/* $(ROOMS:%=$(CURDIR)/%) $(VENV)/types/thistle/

$(VENV)/.ready: pyproject.toml constraints.txt
	python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "constraints.txt is for Python 3.11: make needs it as python3")'
	@echo "Installing Thistle and its dependencies into $(VENV) (2 GB): one to three minutes, once."
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.PHONY: types generate docs demo test test-deploy smoke-deploy lint bench clean
