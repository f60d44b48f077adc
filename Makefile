# gpumemprof: `make help` tells the targets.

PYTHON := .venv/bin/python
BPF_CLANG ?= clang
MULTIARCH := $(shell dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo $(shell uname -m)-linux-gnu)
BPF_ARCH := $(if $(filter aarch64,$(shell uname -m)),arm64,x86)

.DEFAULT_GOAL := help
.PHONY: help setup build fakes demo pictures test test-browser test-unit test-integration test-kernels test-cluster lint format bench image manifests gpu-bundle clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up ---

SETUP := .venv/.setup
SETUP_TESTS := .venv/.setup-tests

$(SETUP): pyproject.toml scripts/setup.sh
	scripts/setup.sh

$(SETUP_TESTS): pyproject.toml scripts/setup.sh
	scripts/setup.sh tests

setup: $(SETUP) ## Install what is missing (Debian, Ubuntu) and create .venv

# --- build ---

BPF_OBJECT := gpumemprof/probe/gpumemprof.bpf.o

$(BPF_OBJECT): $(wildcard bpf/*.c bpf/*.h) | $(SETUP)
	$(BPF_CLANG) -O2 -g -Wall -Werror -target bpf -mcpu=v3 -D__TARGET_ARCH_$(BPF_ARCH) -Ibpf \
		-isystem /usr/include/$(MULTIARCH) -c bpf/gpumemprof.bpf.c -o $@

build: $(BPF_OBJECT) ## Compile the BPF programs

include tests/fakes/fakes.mk
-include tests/fakes/native/native.mk

fakes: $(FAKE_FILES) $(NATIVE_FILES) ## Build the stand-in CUDA libraries and programs

# --- use ---

demo: build $(FAKES)/libcuda.so.1 $(FAKES)/libcudart.so.12 ## Profile a small LLM server (root)
	LD_LIBRARY_PATH=$(CURDIR)/$(FAKES) $(PYTHON) -m gpumemprof demo

pictures: $(SETUP_TESTS) build $(FAKES)/libcuda.so.1 $(FAKES)/libcudart.so.12 ## Make README's pictures from the demo (root, chromium)
	LD_LIBRARY_PATH=$(CURDIR)/$(FAKES) $(PYTHON) scripts/pictures.py

# --- checks ---

ROOT := $(filter 0,$(shell id -u))

test: lint build fakes ## Lint, unit tests, the report in a browser, and as root integration tests
	@$(if $(ROOT),,echo "not root: the integration tests are left out")
	$(PYTHON) -m pytest tests/unit tests/chart tests/browser $(if $(ROOT),tests/integration) $(MORE_TESTS)

test-unit: $(SETUP_TESTS) build fakes ## Unit tests only (no root, seconds)
	$(PYTHON) -m pytest tests/unit

test-browser: $(SETUP_TESTS) ## The HTML report in a real browser (chromium; pictures in build/screenshots)
	$(PYTHON) -m pytest tests/browser

test-integration: $(SETUP_TESTS) build fakes ## Tests with real eBPF (root)
	$(PYTHON) -m pytest tests/integration

test-kernels: $(SETUP_TESTS) build fakes ## Record under Debian's kernels in virtual machines (KERNELS="6.1 6.12")
	$(PYTHON) -m tests.kernels $(or $(KERNELS),-o docs/kernels.md)

test-cluster: $(SETUP_TESTS) build fakes ## The agent on a real Kubernetes (root, Go; a long time at first)
	tests/cluster/kit/prepare.sh
	$(PYTHON) -m pytest tests/cluster

lint: $(SETUP_TESTS) ## ruff, mypy, layers
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

format: $(SETUP_TESTS) ## Format the Python sources
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

bench: $(SETUP_TESTS) build fakes ## Measure what profiling costs (root)
	LD_LIBRARY_PATH=$(CURDIR)/$(FAKES) $(PYTHON) -m tests.bench

# --- for a cluster ---

IMAGE ?= gpumemprof:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpumemprof/__init__.py)
BUILDER ?= $(shell command -v docker || echo podman)

image: ## Build the agent's image (IMAGE=registry/gpumemprof:tag, BCC=1)
	$(BUILDER) build --build-arg VERSION=$(lastword $(subst :, ,$(IMAGE))) $(if $(BCC),--build-arg BCC=$(BCC)) -t $(IMAGE) .

manifests: $(SETUP_TESTS) ## Render deploy/manifests from the chart
	$(PYTHON) -m tests.chart.manifests

gpu-bundle: $(SETUP_TESTS) build ## build/gpu-bundle: gpumemprof for a machine with a GPU and no network
	scripts/gpu_bundle.sh

clean: ## Remove what was built, keep .venv
	rm -rf $(FAKES) $(BPF_OBJECT) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
