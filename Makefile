# mpifed: `make run` and `make test` set up everything they need in .venv; `make` alone lists all targets.
# NAME=VALUE behind a target chooses a part of it, as its comment says.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RANKS ?= 4
# of PyTorch, with which networks are tested; newer ones take 2.5 s to import
TORCH ?= 2.13.0
WORKERS ?= 3

# one BLAS thread per rank; Open MPI may put more ranks on a machine than it has cores, and run in containers
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# hundreds of processes would compile the package anew
unexport PYTHONDONTWRITEBYTECODE
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe ?= true
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
ifneq ($(wildcard ../shared/data),)
export MPIFED_DATA ?= $(CURDIR)/../shared/data
endif

# the machine's own MPI where mpi4py can join its ranks, else that of a wheel, which stands first in the path
JOINED := from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != $(RANKS))
LAUNCH = PATH="$$(realpath $(BIN)):$$PATH"; MPIEXEC=mpiexec; export PATH MPIEXEC;
OWN_MPI = $(shell grep -qF '$(BIN)/mpiexec' $(VENV)/launcher && echo ,mpich)

comma := ,
.DEFAULT_GOAL := help
.PHONY: help run test check docs format test-long test-kill test-slurm test-gpu bench reproduce clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/launcher: | $(BIN)/python
	@if command -v mpiexec >/dev/null && $(BIN)/python -m pip install --quiet 'mpi4py>=4' && \
	  timeout 60 mpiexec -n $(RANKS) $(BIN)/python -c "$(JOINED)" >/dev/null 2>&1; \
	then command -v mpiexec >$@; echo "MPI: $$(cat $@)"; \
	else echo '$(CURDIR)/$(BIN)/mpiexec' >$@; echo "MPI: MPICH from a wheel, since no mpiexec here starts $(RANKS) ranks"; fi

$(VENV)/data,plot.done: COST = : 170 MB to download, 700 MB on the disk, one to four minutes
$(VENV)/test.done: COST = : up to 250 MB to download
$(VENV)/%.done: setup.cfg pyproject.toml setup.py mpifed/core/_loops.c | $(VENV)/launcher
	@echo 'Installing mpifed[$*$(OWN_MPI)] in $(VENV)$(COST)'
	@$(BIN)/python -m pip install --quiet --editable '.[$*$(OWN_MPI)]' $(if $(findstring torch,$*),torch==$(TORCH))
	@touch $@

data/digits: | $(VENV)/data,plot.done
	$(BIN)/mpifed data digits --split rows --clients 8 --partition dirichlet:0.5 --test-fraction 0.2 --out $@

run: $(VENV)/data,plot.done data/digits ## set up, train by FedAvg and by SSCA on real data on 4 ranks, draw both
	@rm -rf runs/quickstart runs/quickstart-ssca
	@if [ -t 1 ]; then progress=bar; else progress=none; fi; $(LAUNCH) set -ex; \
	mpiexec -n $(RANKS) $(BIN)/mpifed run jobs/quickstart.toml --progress $$progress; \
	mpiexec -n $(RANKS) $(BIN)/mpifed run jobs/quickstart-ssca.toml --progress $$progress; \
	$(BIN)/mpifed plot --label FedAvg=runs/quickstart --label SSCA=runs/quickstart-ssca --x round --x bytes \
	  --y train_loss --y test_accuracy --out runs/quickstart.png
	@echo 'next: source $(BIN)/activate; README.md goes on from there'

# CHECKED=1: but for what `make check` has run; TESTS='tests/unit/job': these alone
test: $(VENV)/test.done ## set up and pass the quick tests: serial, then on 4 ranks
	$(LAUNCH) code=0; \
	$(BIN)/python -m pytest $(or $(TESTS),$(addprefix --ignore ,tests/mpi $(if $(CHECKED),$(CHEAP)))) -n $(WORKERS) --dist worksteal || code=1; \
	$(if $(TESTS),,MPIR_CVAR_ENABLE_HEAVY_YIELD=1 mpiexec -n 4 $(BIN)/python -m pytest --with-mpi tests/mpi || code=1;) exit $$code

CHEAP = tests/unit/core tests/unit/maths tests/unit/algorithms tests/unit/test_package.py

check: $(VENV)/test.done $(VENV)/dev.done ## before each commit: ruff, ruff format, mypy --strict, import-linter, the cheap tests (a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(LAUNCH) $(BIN)/python -m pytest $(CHEAP) -n $(WORKERS) --dist loadfile

docs: $(VENV)/test.done $(VENV)/docs.done ## pages in site/, where a broken link is an error; then what they show is run as it stands
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"
	$(LAUNCH) $(BIN)/python -m pytest tests/unit -m "docs and not long" -n $(WORKERS) --dist worksteal

format: $(VENV)/dev.done ## ruff: mend what it can, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# files as they come, since the longest have few tests, and would be the last
IN_ORDER = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# MODELS=1: networks of PyTorch and JAX instead, and data of datasets; it installs all
test-long: $(VENV)/test$(if $(MODELS),$(comma)torch$(comma)jax$(comma)flwr-datasets).done ## the tests that take long: statistics over many runs, whole reproductions, fuzzing; MODELS=1: networks
ifdef MODELS
	$(LAUNCH) $(BIN)/python -m pytest tests/models -m models $(IN_ORDER)
else
	$(LAUNCH) $(BIN)/python -m pytest --ignore tests/mpi -m long $(IN_ORDER)
	$(LAUNCH) MPIR_CVAR_ENABLE_HEAVY_YIELD=1 mpiexec -n 2 $(BIN)/python -m pytest --with-mpi tests/mpi -m long
endif

test-kill: $(VENV)/test.done ## SIGKILL at random moments and before every step on the disk, and disks that fail (2 minutes)
	$(LAUNCH) $(BIN)/python -m pytest tests/kill -m kill -n $(WORKERS) --dist worksteal

test-slurm: $(VENV)/test.done ## on a real Slurm of four nodes that is started here, and stopped (as root; installs it)
	@slurm/testbed/install
	@trap slurm/testbed/stop EXIT; settings=$$(slurm/testbed/start) && eval "$$settings" && set -x && \
	$(BIN)/python -m pytest tests/slurm -m slurm

# of a machine without a network, of this Python: `bash benchmarks/gpu_wheels.sh`, and there `bash benchmarks/gpu_drill.sh`
test-gpu: $(VENV)/test,torch,gpu.done ## every algorithm on a CUDA device against the processor; fails without one
	$(LAUNCH) $(BIN)/python -m pytest tests/device -m gpu

# CASES='2 columns': of these names or families, without the gate; QUICK=1: the gate, and that the loops by hand run;
# DEVICE=cuda: seconds a round on one core, on all cores, and there; RIVALS=1: Flower and pfl-research, which it installs
bench: $(VENV)/data,$(if $(DEVICE),torch$(comma)gpu,$(if $(RIVALS),plot,encrypted$(comma)plot$(comma)torch)).done ## ends with 1 if slower than the commit in benchmarks/base; speed against a hand-written loop
ifdef DEVICE
	$(LAUNCH) $(BIN)/python benchmarks/device.py --device $(DEVICE)
else ifdef RIVALS
	$(LAUNCH) $(BIN)/python benchmarks/rivals/rivals.py $(if $(QUICK),--quick)
else
	@if ! command -v valgrind >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; \
	then set -x; apt-get update --quiet && apt-get install --yes --quiet valgrind; fi
	$(LAUNCH) $(BIN)/python benchmarks/bench.py $(if $(QUICK),--quick) $(if $(CASES),--cases $(CASES))
endif

# PAPER=ssca, fedpdm, hyfdca or mcmahan; FULL=1, SEEDS, ROUNDS, ONLY='a9a-4x4', MINUTES=30
reproduce: $(VENV)/data,plot$(if $(filter mcmahan,$(PAPER)),$(comma)torch).done ## the figures of a paper, reduced: PAPER=ssca; FULL=1 for all
	$(BIN)/python -m jobs.reproduce $(PAPER) $(if $(FULL),--full) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

clean: ## remove the environment, data and runs
	rm -rf .venv .venv-* build data/digits runs site
