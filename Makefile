# fedrs-lightning: make without a target lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One thread a process: sums in parallel regions depend on the number of threads.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

.PHONY: help setup demo demo-segmentation test test-cpus fuzz lint format docs options smoke bench bench-federation \
	gpu-check cost clean

help: ## list the targets
	@grep -hE "^[a-z-]+:.*##" $(MAKEFILE_LIST) | sed -E "s/:[^#]*## /\t/" | column -t -s "$$(printf "\t")"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and \"fedrs-lightning needs Python 3.11 or newer; set PYTHON=...\")"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

setup: $(VENV)/.installed ## environment with everything installed, in .venv

sample-data/eurosat/SYNTHETIC.json: | setup
	$(BIN)/fedrs data synth eurosat --out sample-data/eurosat --size small --seed 0

demo: setup sample-data/eurosat/SYNTHETIC.json ## sample data, a FedMAD run, its table and learning curves (5 minutes)
	$(BIN)/fedrs fit --config experiments/quickstart.yaml
	$(BIN)/fedrs plot runs/quickstart --out runs/quickstart/curves.png

SHIFT := --size small --spectral-shift 0.4 --spatial-shift 0.5 --side 384 --gsd-factor 4

sample-data/aerial/%/SYNTHETIC.json: | setup
	$(BIN)/fedrs data synth $* --out sample-data/aerial/$* --domain $(if $(filter potsdam,$*),0,1) $(SHIFT)

demo-segmentation: setup sample-data/aerial/potsdam/SYNTHETIC.json sample-data/aerial/vaihingen/SYNTHETIC.json ## the same for FedDAP on synthetic aerial tiles (5 minutes)
	$(BIN)/fedrs fit --config experiments/feddap_quickstart.yaml

test: setup ## all tests (under 8 minutes on two idle cores)
	$(BIN)/python -m pytest

# Each chooses other kernels, and with them other roundings. Tests must hold under all of them.
CPUS := ONEDNN_MAX_CPU_ISA=DEFAULT ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=SSE41 \
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE
TRAINING := tests/engine tests/golden tests/methods tests/models tests/nn tests/tasks tests/test_states.py \
	tests/test_add_a_method.py tests/cli/test_fit.py

test-cpus: setup ## the tests that train, as on other processors (a quarter of an hour)
	failed=0; for cpu in $(CPUS); do echo "== $$cpu"; env $$cpu $(BIN)/python -m pytest -q $(TRAINING) || failed=1; done; exit $$failed

fuzz: setup ## tests/fuzz with FEDRS_FUZZ (25) times its hundred examples a test
	FEDRS_FUZZ=$${FEDRS_FUZZ:-25} $(BIN)/python -m pytest -q tests/fuzz

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[dev,docs]"
	@touch $@

docs: $(VENV)/.docs ## the documentation site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

options: setup ## the option tables of docs/, from signatures and docstrings
	$(BIN)/python docs/option_tables.py

format: setup ## let ruff format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

smoke: setup sample-data/eurosat/SYNTHETIC.json ## two rounds of the quickstart
	$(BIN)/fedrs fit --config experiments/quickstart.yaml --schedule.num_rounds 2 --run.name smoke

bench: setup ## benchmarks as ratios (half an hour; wants an idle machine)
	failed=0; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || failed=1; done; exit $$failed

bench-federation: setup ## rounds beside a bare loop and a plain FedAvg: time and memory (a quarter of an hour)
	$(BIN)/python benchmarks/bench_federation.py

gpu-check: setup ## digests, agreement with the CPU, speed and memory on one GPU, in build/gpu-check.json (8 minutes)
	$(BIN)/python benchmarks/gpu_check.py --out build/gpu-check.json

COMPARED := FedAvg,FedProx,FedBN,MOON,FedDC,FedAWA,FedGPS,FedMAD

cost: setup ## the tables of docs/cost.md, operations of a ResNet50 (two minutes)
	$(BIN)/fedrs flops --config experiments/fedmad_eurosat.yaml --side 64 --compare $(COMPARED)
	$(BIN)/fedrs flops --config experiments/fedmad_bigearthnet.yaml --side 120 --compare $(COMPARED)

clean: ## remove the environment and caches, never runs or data
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
