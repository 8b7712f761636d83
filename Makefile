# mpifed: `make run` and `make test` set up everything they need in .venv; `make` alone lists all targets.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
RANKS ?= 4

# one BLAS thread per rank; Open MPI may put more ranks on a machine than it has cores, and run in containers
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
ifneq ($(wildcard ../shared/data),)
export MPIFED_DATA ?= $(abspath ../shared/data)
endif

# the machine's own MPI if it has one, else a wheel's
SYSTEM_MPI := $(shell command -v mpiexec)
MPI_EXTRA := $(if $(SYSTEM_MPI),,mpich,)
MPIEXEC := $(if $(SYSTEM_MPI),mpiexec,$(BIN)/mpiexec)

.DEFAULT_GOAL := help
.PHONY: help run test serial mpi check format bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/%.done: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$(MPI_EXTRA)$*]'
	@touch $@

data/digits: | .venv/data,plot.done
	$(BIN)/mpifed data digits --split rows --clients 8 --partition dirichlet:0.5 --test-fraction 0.2 --out $@

run: .venv/data,plot.done data/digits ## set up, train on real data on 4 ranks, draw the convergence (runs/quickstart)
	@rm -rf runs/quickstart
	@if [ -t 1 ]; then progress=bar; else progress=lines; fi; set -x; \
	$(MPIEXEC) -n $(RANKS) $(BIN)/mpifed run jobs/quickstart.toml --out runs/quickstart --progress $$progress
	@$(BIN)/mpifed plot runs/quickstart --out runs/quickstart/convergence.png --terminal

test: serial mpi ## set up and pass all tests: serial, then on 4 ranks

serial: .venv/test.done
	$(BIN)/python -m pytest --ignore tests/mpi

mpi: .venv/test.done ## the tests that need several ranks
	$(MPIEXEC) -n 4 $(BIN)/python -m pytest --with-mpi tests/mpi

check: .venv/test,dev.done ## ruff, mypy and the serial tests
	$(BIN)/ruff check . && $(BIN)/ruff format --check --diff . || true
	$(BIN)/mypy
	$(MAKE) serial

format: .venv/test,dev.done ## format the code
	$(BIN)/ruff check --fix .

bench: .venv/data,plot.done ## speed against a hand-written loop, in one run (benchmarks/results.json)
	$(BIN)/python benchmarks/bench.py

clean: ## remove the environment, data and runs
	rm -rf .venv data/digits runs
