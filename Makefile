# `make repro` builds everything, `make test` tests it; both make the environment (.venv) first if it is not there.
# A Python 3.11 other than python3.11 or python3 of the PATH: make PYTHON=/path/to/python setup
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
READY := $(VENV)/.ready
PYTHON ?=
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# -qq keeps errors and drops the warnings that pip prints for each entry of a local index.
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install -qq -c constraints.txt

.PHONY: help setup repro test lint plan

help:
	@echo "make setup   the environment alone (.venv); then: source $(VENV)/bin/activate"
	@echo "make repro   the whole pipeline (dvc repro)"
	@echo "make test    all tests"
	@echo "make lint    ruff, import contracts, mypy"
	@echo "make plan    params.yaml from conf/, code dependencies of dvc.yaml from the imports"

setup: $(READY)

# torch goes first: its setuptools builds this package, so that the build is pinned as well.
$(READY): pyproject.toml constraints.txt
	@for python in $(or $(PYTHON),python3.11 python3); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "error: no Python 3.11 ($(or $(PYTHON),python3.11, python3)); install it, or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	"$$found" -m venv $(VENV)
	@echo "environment: torch (the largest download; once)"
	@$(PIP) torch setuptools
	@echo "environment: the rest"
	@$(PIP) --no-build-isolation -e '.[dev]'
	@$(PIP) -e '.[qnn]' --no-build-isolation || echo "note: no onnxruntime-qnn for this machine (it needs Linux x86-64 with glibc 2.35, or Windows): nothing will be compiled for the NPU, the rest works"
	@touch $@

repro: setup
	dvc repro

test: setup
	python -m pytest -n 2 --dist loadfile

lint: setup
	ruff check .
	ruff format --check .
	lint-imports --no-cache --no-logo
	mypy

plan: setup
	python tools/plan.py
