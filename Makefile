# Kennel's commands. Needs Python 3.11 and make; everything else comes with `make setup`, into this folder.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv/bin
export PYTHONPATH := $(CURDIR)
# Compiled modules are kept, inside the clone: each of some hundred processes would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE
# The tests of the library: what of it those of the dashboard, the browser, the image and the set-up reach, these reach too.
LIBRARY_TESTS := $(addprefix tests/unit/,core doctor gates leadership pipeline queues scaling sequences tables) \
	tests/contract tests/faults tests/bench/test_faults.py $(addprefix tests/hostile/test_,flags.py gates.py leases.py sequences.py) \
	$(addprefix tests/integration/,gates leadership pipeline queues sequences tables) \
	$(addprefix tests/integration/test_,doctor.py fencing.py hub_connection.py shell.py short_loops.py worker.py) \
	$(addprefix tests/integration/scaling/test_,agents.py drivers.py)

# Four processes of tests, two more than the smallest machine has processors: tests wait for half of their time. The fourth begins
# with those that wait nearly all of it.
SIDE_BY_SIDE := -n 4 --dist loadgroup --no-loadscope-reorder

.PHONY: help setup demo test coverage mutation lint bench docs wheels screenshots browser clean

help:
	@echo "make setup        prepare everything, tests and checks included (does nothing if nothing changed)"
	@echo "make demo         install what runs, start the whole product and print where it is; Ctrl-C ends it"
	@echo "make test         all checks and tests"
	@echo "make coverage     the tests of the library, and which of its branches they leave out; fails below 95 %"
	@echo "make mutation     how many changes to the pure rules the tests notice"
	@echo "make lint         the checks without the tests"
	@echo "make bench        every benchmark; BENCH_ARGS=--quick stays under a minute each"
	@echo "make docs         build the documentation into .kennel/site"
	@echo "make wheels       build the packages kennel-coordinator and kennel-dashboard into .kennel/dist"
	@echo "make screenshots  take the pictures of the pages"
	@echo "make clean        remove what setup made"

setup:
	@$(PYTHON) scripts/setup.py

browser: setup
	@$(VENV)/python -m tests.support.browser --install

demo:
	@$(PYTHON) scripts/setup.py run
	@exec $(VENV)/python -m dashboard.demo

lint: setup
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy --strict coordinator dashboard
	$(VENV)/lint-imports
	$(VENV)/python scripts/dead_code.py
	find templates -name '*.html' | xargs $(VENV)/djade --check
	$(VENV)/codespell README.md CHANGELOG.md SECURITY.md Makefile benchmarks coordinator dashboard deploy docs examples scripts static templates tests
	$(VENV)/python scripts/words.py

# The checks take one of the processors for half a minute, beside the tests, which wait for more than they calculate.
test: browser
	@nice $(MAKE) lint & checks=$$!; \
	$(VENV)/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS); tests=$$?; \
	wait $$checks || { echo "make lint found what is printed above"; exit 1; }; exit $$tests

coverage: setup
	rm -rf .kennel/coverage
	$(VENV)/coverage run -m pytest $(SIDE_BY_SIDE) -m 'not slow and not seconds' \
		$(LIBRARY_TESTS) $(PYTEST_ARGS)
	$(VENV)/coverage combine -q
	@$(VENV)/coverage json -q --fail-under=0 -o .kennel/coverage/figures.json
	@$(VENV)/python -c 'import json; t = json.load(open(".kennel/coverage/figures.json"))["totals"]; \
		print(*(f"{what}: {t[key]} %" for what, key in (("statements", "percent_statements_covered_display"), \
		("branches", "percent_branches_covered_display"), ("both", "percent_covered_display"))), sep=", ")'
	$(VENV)/coverage report

mutation: setup
	rm -rf mutants
	$(VENV)/python scripts/mutation.py

bench: setup
	@set -e; for program in benchmarks/[a-z]*.py; do echo "== $$program"; $(VENV)/python $$program $(BENCH_ARGS); done

docs:
	@$(PYTHON) scripts/setup.py docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict

wheels: setup
	$(VENV)/python scripts/wheels.py

screenshots: browser
	$(VENV)/python scripts/screenshots.py

clean:
	rm -rf .venv node_modules .kennel mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
