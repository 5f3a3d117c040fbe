PYTHON ?= python3
VENV := .venv/bin/python

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint clean test-inputs

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Prepare .venv, llama.cpp, the model and the AWS emulator (minutes the first time)
	@$(PYTHON) scripts/setup.py --emulator

demo: setup ## Score decisions on this machine (MODEL=path/to/other.gguf to choose the model)
	@$(VENV) scripts/demo.py

test: test-inputs ## Run every check and every test
	$(checks)
	$(VENV) -m pytest

lint: setup ## Run the checks alone: ruff and mypy
	$(checks)

clean: ## Remove what setup made in this checkout (its cache stays)
	rm -rf .venv .build node_modules

test-inputs:
	@$(PYTHON) scripts/setup.py --emulator --tests

define checks
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	$(VENV) -m mypy
endef
