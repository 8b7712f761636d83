# mpifed: `make run` and `make test` set up everything they need in .venv; `make` alone lists all targets.

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

.DEFAULT_GOAL := help
.PHONY: help run test serial mpi test-pythons test-gpu gpu-drill bench-gpu test-models test-docs test-long fuzz mutants test-kill test-slurm check docs smoke format bench bench-rivals reproduce clean
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

test: ## set up and pass the quick tests: serial, then on 4 ranks
	@$(MAKE) --no-print-directory --keep-going serial mpi

# CHECKED=1: but for what `make check` has run
serial: $(VENV)/test.done
	$(LAUNCH) $(BIN)/python -m pytest $(or $(TESTS),$(addprefix --ignore ,tests/mpi $(if $(CHECKED),$(CHEAP)))) --numprocesses $(WORKERS) --dist worksteal

mpi: $(VENV)/test.done ## the tests that need several ranks
	$(LAUNCH) MPIR_CVAR_ENABLE_HEAVY_YIELD=1 mpiexec -n 4 $(BIN)/python -m pytest --with-mpi tests/mpi

# files as they come, since the longest have few tests, and would be the last
IN_ORDER = --dist loadfile --no-loadscope-reorder

test-long: $(VENV)/test.done ## the tests that take long: statistics over many runs, and whole reproductions
	$(LAUNCH) $(BIN)/python -m pytest --ignore tests/mpi -m long --numprocesses $(WORKERS) $(IN_ORDER)
	$(LAUNCH) MPIR_CVAR_ENABLE_HEAVY_YIELD=1 mpiexec -n 2 $(BIN)/python -m pytest --with-mpi tests/mpi -m long

test-gpu: $(VENV)/test,torch,gpu.done ## every algorithm on a CUDA device against the processor; fails without one
	$(LAUNCH) $(BIN)/python -m pytest tests/device -m gpu

# wheels of this Python, that of the machine with the device, for Linux since 2018; of what that has, none
GPU_PYTHON ?= python3.12
PLATFORMS = linux $(addprefix manylinux,_2_28 _2_27 _2_24 _2_17 2014 _2_5 1)
THERE = numpy scipy h5py torch cupy pytest hypothesis click scikit_learn threadpoolctl iniconfig packaging pluggy pygments
gpu-drill: ## wheels in build/wheels for a machine with a GPU and without a network, where benchmarks/gpu_drill.sh runs
	rm -rf build/wheels
	$(GPU_PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheels .
	$(GPU_PYTHON) -m pip download --quiet --only-binary=:all: $(PLATFORMS:%=--platform %_x86_64) --dest build/wheels \
	  "$$(ls build/wheels/mpifed-*.whl)[mpich]" pytest-mpi pytest-timeout
	cd build/wheels && rm -f $(THERE:%=%-*) && du -sh .

# EXAMPLES=1000: of each test
fuzz: EXAMPLES ?= 300
fuzz: $(VENV)/test.done ## thousands of damaged jobs, tables, data and run files: each a clean end, or as if nothing had been
	MPIFED_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz -m 'long or not long' --numprocesses $(WORKERS) --dist loadscope $(if $(ONLY),-k '$(ONLY)')

# ONLY='ledger|masks': a part of tests/mutants/mutants.toml, by name, file or promise
mutants: $(VENV)/test,torch.done ## deliberate bugs, each in a copy: does a test fail?
	$(LAUNCH) $(BIN)/python tests/mutants/run.py $(if $(ONLY),--only '$(ONLY)')

test-models: $(VENV)/test,torch,jax,flwr-datasets.done ## networks of PyTorch and JAX: every algorithm and channel, on one rank and several; data of datasets (installs all)
	$(LAUNCH) $(BIN)/python -m pytest tests/models -m models --numprocesses $(WORKERS) $(IN_ORDER)

test-kill: $(VENV)/test.done ## SIGKILL at 24 random moments and before every step on the disk (2 minutes)
	$(LAUNCH) $(BIN)/python -m pytest tests/kill -m kill --numprocesses $(WORKERS) --dist worksteal

test-slurm: $(VENV)/test.done ## on a real Slurm of four nodes that is started here, and stopped (as root; installs it)
	@slurm/testbed/install
	@trap slurm/testbed/stop EXIT; settings=$$(slurm/testbed/start) && eval "$$settings" && set -x && \
	$(BIN)/python -m pytest tests/slurm -m slurm

CHEAP = tests/unit/core tests/unit/maths tests/unit/algorithms tests/unit/test_sources.py

check: $(VENV)/test.done $(VENV)/dev.done ## before each commit: ruff, ruff format, mypy --strict, import-linter, the cheap tests (a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(LAUNCH) $(BIN)/python -m pytest $(CHEAP) --numprocesses $(WORKERS) --dist loadfile

# BASE=commit: as that gives on this machine; WRITE=1: write them anew, and say what has moved; WRITE=values: with values that differ
.PHONY: hashes
hashes: $(VENV)/test.done ## the shipped jobs' models, bit by bit, and their histories, as they were
	$(BIN)/python tests/hashes.py $(if $(WRITE),write $(if $(filter values,$(WRITE)),--values),compare $(if $(BASE),--base $(BASE)))

# what can depend on the version of Python: the command line, TOML, types and signatures, what is read from sources or
# imported by name, and the interface in Python; and one run of each algorithm
OF_PYTHON = $(addprefix tests/unit/,explain job test_cli.py test_sources.py) \
  $(addprefix tests/unit/python/test_,data.py python.py) \
  $(addprefix tests/laws/test_,own.py methods.py::test_runs_are_resumable)

test-pythons: ## what can depend on it, on the oldest and the newest supported Python that are found on this machine
	@set -e; for found in $$(.ci/pythons); do version=$${found%%=*}; set -x; \
	$(MAKE) serial VENV=.venv-$$version PYTHON=$${found#*=} TESTS='$(OF_PYTHON)'; { set +x; } 2>/dev/null; done

smoke: run serial ## the quickstart and the serial tests

test-docs: $(VENV)/test.done ## what the tutorials, pages and examples show, run as they stand
	$(LAUNCH) $(BIN)/python -m pytest tests/unit -m "docs and not long" --numprocesses $(WORKERS) --dist worksteal

docs: $(VENV)/docs.done ## the documents as pages in site/; a warning, such as a broken link, is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

format: $(VENV)/dev.done ## ruff: mend what it can, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# CASES='2 columns': of these names or families, without the gate; QUICK=1: the gate, and that the loops by hand run
bench: $(VENV)/data,encrypted,plot,torch.done ## ends with 1 if slower than the commit in benchmarks/base; speed against a hand-written loop
	@if ! command -v valgrind >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; \
	then set -x; apt-get update --quiet && apt-get install --yes --quiet valgrind; fi
	$(LAUNCH) $(BIN)/python benchmarks/bench.py $(if $(QUICK),--quick) $(if $(CASES),--cases $(CASES))

bench-gpu: $(VENV)/data,torch,gpu.done ## seconds a round on one core, on all cores, and on a CUDA device
	$(LAUNCH) $(BIN)/python benchmarks/device.py --device $(or $(DEVICE),cuda)

bench-rivals: $(VENV)/data,plot.done ## install Flower, pfl-research, PyTorch; the same work, beside ours
	$(LAUNCH) $(BIN)/python benchmarks/rivals/rivals.py --verify
	$(LAUNCH) $(BIN)/python benchmarks/rivals/rivals.py --installed $(if $(QUICK),--quick)

# PAPER=ssca, fedpdm, hyfdca or mcmahan; FULL=1, SEEDS, ROUNDS, ONLY='a9a-4x4', MINUTES=30
comma := ,
reproduce: $(VENV)/data,plot$(if $(filter mcmahan,$(PAPER)),$(comma)torch).done ## the figures of a paper, reduced: PAPER=ssca; FULL=1 for all
	$(BIN)/python -m jobs.reproduce $(PAPER) $(if $(FULL),--full) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

clean: ## remove the environment, data and runs
	rm -rf .venv .venv-* build data/digits runs site
