PYTHON ?= python3
VENV := .venv/bin/python

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench endurance routing bench-model bench-gpu bench-peer audit fuzz clean test-inputs

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Prepare .venv, llama.cpp, the model and the AWS emulator (minutes the first time)
	@$(PYTHON) scripts/setup.py --emulator

demo: setup ## Score decisions on this machine (MODEL=path/to/other.gguf to choose the model)
	@$(VENV) scripts/demo.py

test: test-inputs ## Run every check and every test
	$(checks)
	$(VENV) -m pytest

lint: setup ## Run the checks alone: ruff and mypy
	$(checks)

bench: test-inputs ## Compare speed with other ways to ask (MODEL=, ROWS=, REPEAT=; bench/README.md)
	@$(bench_python) -m bench $(bench_options)

endurance: test-inputs ## Ask for half an hour at full load, and watch (MODEL=, MINUTES=30)
	@$(bench_python) -m bench.endurance $(bench_options) $(if $(MINUTES),--minutes $(MINUTES))

routing: test-inputs ## Simulate how SageMaker routes requests (MODEL=, or TRACE=; docs/routing.md)
	@$(bench_python) -m bench.routing $(bench_options) $(if $(TRACE),--trace "$(TRACE)")

bench-model: setup ## Measure a model's tokens/s by quantization and settings (MODEL=path/to.gguf)
	@$(bench_python) -m bench.model_speed $(bench_options)

bench-gpu: test-inputs ## Run the bench's rows on an NVIDIA GPU
	@$(bench_python) -m bench.gpu $(bench_options)

bench-peer: setup ## Compile llama-server for the bench to compare with (12 minutes, once)
	@$(bench_python) -m bench.build_peer

audit: test-inputs ## Audit the dependencies: pins, licenses, withdrawals, advisories (OFFLINE=1)
	@$(VENV) -m scripts.audit $(if $(OFFLINE),--offline)

fuzz: .build/fuzz/requirements.txt ## Fuzz all that reads foreign bytes (MINUTES= each, TARGET=)
	@PYTHONPATH=$(sources) $(VENV) -m tests.fuzz $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(TARGET),--target $(TARGET))

.build/fuzz/requirements.txt: tests/fuzz/requirements.txt | test-inputs
	@$(VENV) -m pip install --quiet --no-deps --only-binary :all: --target $(@D) --requirement $<
	@cp $< $@

clean: ## Remove what setup made in this checkout (its cache stays)
	rm -rf .venv .build node_modules

test-inputs:
	@$(PYTHON) scripts/setup.py --emulator --tests

sources = client:container:lambda:model:.
bench_python = PYTHONPATH=container $(VENV)
bench_options = $(if $(MODEL),--model "$(MODEL)") $(if $(ROWS),--rows $(ROWS)) \
	$(if $(REPEAT),--repeat $(REPEAT)) $(if $(GPU_LAYERS),--gpu-layers $(GPU_LAYERS))

define checks
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	$(VENV) -m mypy
endef
