# Every target makes what it needs: the environment, torch, the package with its C extension, the tools.
PYTHON ?= python3
# torch comes first and pinned: left to the resolver it may be any release, with gigabytes of accelerator libraries.
# Another release: make test TORCH=torch==2.9.1
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
DEV := $(VENV)/.stamp-dev
PACKAGE := pyproject.toml $(wildcard setup.py) $(wildcard src/hookscope/*/*.c)
# One thread a process: the tests run in two processes, and threads of torch would only fight over the cores.
export OMP_NUM_THREADS = 1

.PHONY: help demo test quick lint docs bench clean FORCE
.DEFAULT_GOAL := help

help:                ## this list
	@sed -n 's/^\([a-z]*\): .*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

demo: $(DEV)         ## three small trainings, one healthy, each watched and diagnosed
	@$(BIN)/hookscope demo --to runs/demo

test: lint           ## lint, then every test and every example in a docstring
	@$(BIN)/python -m pytest --no-header -n 2 --doctest-modules tests src

quick: $(DEV)        ## the tests that are not slow
	@$(BIN)/python -m pytest --no-header -n 2 -m "not slow" --doctest-modules tests src

lint: $(DEV)         ## ruff and mypy
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check . || { echo "not formatted; .venv/bin/ruff format . does it" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

docs: $(VENV)/.stamp-docs ## the documentation as a site, in site/
	@$(BIN)/python scripts/rules.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q
	@echo "site/index.html"

bench: $(VENV)/.stamp-bench ## what watching costs here; benchmarks/README.md says how to read it
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:               ## remove everything that was made, the environment too
	@rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info src/hookscope/*/*.so
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# Rewritten only when TORCH differs from what is installed, so what depends on it is redone exactly then.
$(VENV)/.stamp-torch: FORCE | $(BIN)/python
	@[ "$$(cat $@ 2>/dev/null)" = "$(TORCH)" ] || { $(PIP) "$(TORCH)" && echo "$(TORCH)" > $@; }

$(DEV): $(VENV)/.stamp-torch $(PACKAGE)
	@$(PIP) "$(TORCH)" -e '.[dev]'
	@touch $@

$(VENV)/.stamp-docs $(VENV)/.stamp-bench: $(VENV)/.stamp-%: $(DEV)
	@$(PIP) "$(TORCH)" -e '.[$*]'
	@touch $@
