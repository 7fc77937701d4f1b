# Every way to use this repository. `make` alone lists them; `make gym-up` starts from nothing.
#
#   ARGS="..."       flags for train, tasks, test, test-fast, test-adapters, attack, bench, soak and chaos
#   PYTHON=...       the Python that .venv is made with
#   GYM_STATE_DIR    where pids, logs and the service's address are kept
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
# What is installed follows from these files, and from where the tree is: an editable install points at it.
ENVIRONMENT_KEY := $(CURDIR) $(shell cat pyproject.toml constraints.txt | sha256sum)
# What needs the engine is one group, and so in one process, one test after the other (tests/conftest.py).
TWO_AT_A_TIME := -n 2 --dist loadgroup
GENERATE := $(VENV_PYTHON) -m grpc_tools.protoc -Igym_contract/v1=proto/gym/v1 gym_contract/v1/gym.proto

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv with every dependency, versions pinned in constraints.txt
	@if [ "$$(cat .venv/installed 2>/dev/null)" != "$(ENVIRONMENT_KEY)" ]; then $(MAKE) environment; fi

.PHONY: gym-up
gym-up: ## Start the gym: environment, Docker Engine, sandbox image, service
	@echo "[1/4] Python environment"
	@$(MAKE) setup
	@$(VENV_PYTHON) -m sandbox_images.build --steps 4
	@echo "[4/4] Service"
	@$(VENV_PYTHON) -m gym_service up

.PHONY: gym-down
gym-down: ## Stop the service, and the engine if gym-up started it
	@if [ -x $(VENV_PYTHON) ]; then \
	    $(VENV_PYTHON) -m gym_service down && $(VENV_PYTHON) -m sandbox_images.engine down; \
	else \
	    echo "no .venv: nothing was started from here"; \
	fi

.PHONY: gym-status
gym-status: ## Say what runs: engine and service
	@$(MAKE) setup
	@$(VENV_PYTHON) -m sandbox_images.engine status
	@$(VENV_PYTHON) -m gym_service status

.PHONY: train
train: gym-up ## Train a model in the gym, for example ARGS="--steps 2"
	@$(VENV_PYTHON) -m trainer_client.run $(ARGS)

.PHONY: tasks
tasks: ## Make and prove repository-level tasks out of three packages from PyPI
	@echo "[1/3] Python environment"
	@$(MAKE) setup
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m gym_service tasks synthesize $(ARGS)

.PHONY: test
test: ## Run every test; an engine that is started for it is stopped again
	@echo "[1/3] Python environment"
	@$(MAKE) setup
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m pytest -q $(TWO_AT_A_TIME) $(ARGS)

.PHONY: test-fast
test-fast: setup ## Run the tests that need no Docker Engine
	@$(VENV_PYTHON) -m pytest -q $(TWO_AT_A_TIME) -m "not docker" $(ARGS)

# Each of these brings other versions of what .venv has, but for torch and what goes with it: that is taken from there.
ADAPTERS ?= trl verifiers skyrl openenv
SHARED := torch transformers tokenizers numpy protobuf grpcio pytest pytest-asyncio

.PHONY: test-adapters
test-adapters: setup ## Test the adapters to other trainers, each with its library in .venv-adapters
	@for adapter in $(ADAPTERS); do $(MAKE) .venv-adapters/$$adapter/installed || exit 1; done
	@for adapter in $(ADAPTERS); do \
	    .venv-adapters/$$adapter/bin/python -m pytest -q tests/adapters/test_$$adapter*.py $(ARGS) || exit 1; \
	done

.venv-adapters/%/installed: pyproject.toml constraints.txt
	@echo "      installing $* in .venv-adapters/$*, a minute or more"
	@$(VENV_PYTHON) -m venv --clear .venv-adapters/$*
	@$(VENV_PYTHON) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    >"$$(.venv-adapters/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@for name in $(SHARED); do grep "^$$name==" constraints.txt; done >.venv-adapters/$*/shared.txt
	@$(VENV_PYTHON) -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	    print(*extras["$*"], sep="\n")' >.venv-adapters/$*/extra.txt
	@.venv-adapters/$*/bin/python -m pip install -q -c .venv-adapters/$*/shared.txt -r .venv-adapters/$*/extra.txt \
	    >.venv-adapters/$*/install.log 2>&1 || { tail -n 5 .venv-adapters/$*/install.log; exit 1; }
	@touch $@

.PHONY: attack
attack: ## Play every known attack against a real service, each with its honest twin
	@echo "[1/3] Python environment"
	@$(MAKE) setup
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m pytest -q tests/attack $(ARGS)

# Figures alone go to stdout, a JSON object per line; the set-up and the progress go to stderr.
.PHONY: bench
bench: ## Measure the gym beside its baselines: episodes per second, latencies
	@echo "[1/3] Python environment" >&2
	@$(MAKE) setup >&2
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m tests.bench $(ARGS)

.PHONY: soak
soak: ## Play 10,000 episodes, hostile ones among them, and look for what grows
	@echo "[1/3] Python environment" >&2
	@$(MAKE) setup >&2
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m tests.bench.soak $(ARGS)

.PHONY: chaos
chaos: ## Kill and cut what a run of 2,000 episodes stands on, on an engine of its own (as root)
	@echo "[1/3] Python environment" >&2
	@$(MAKE) setup >&2
	@$(VENV_PYTHON) -m sandbox_images.build $(VENV_PYTHON) -m tests.bench.chaos $(ARGS)

.PHONY: verify
verify: setup ## Check style, types, the contract, and that generated code is fresh
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy
	.venv/bin/buf lint proto
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT \
	    && $(GENERATE) --python_out=$$fresh --pyi_out=$$fresh --grpc_python_out=$$fresh \
	    && diff -r -x __pycache__ -x py.typed $$fresh/gym_contract proto/gen/gym_contract \
	    || { echo "proto/gen differs from proto/gym: run make proto"; exit 1; }

.PHONY: fix
fix: proto ## Repair what a tool can repair: style, generated code
	-$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

.PHONY: proto
proto: setup ## Generate proto/gen from the contract
	$(GENERATE) --python_out=proto/gen --pyi_out=proto/gen --grpc_python_out=proto/gen

.PHONY: clean
clean: ## Stop the gym, remove .venv and caches; runs/ and images stay
	-@$(MAKE) gym-down
	rm -rf .venv .venv-adapters build *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# setup's work, when it is due.
.PHONY: environment
environment:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "failed: Python 3.11 or later is needed; name one with PYTHON=..."; exit 1; }
	@$(VENV_PYTHON) -m pip --version >/dev/null 2>&1 \
	    || $(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || $(MAKE) venv-on-debian
	@echo "      installing packages, a minute or more; log: .venv/install.log"
	@$(VENV_PYTHON) -m pip install -c constraints.txt -e '.[gym,trainer,smollm,lora,tensorboard,gymnasium,humaneval,dev]' 2>&1 \
	    | tee .venv/install.log \
	    | sed -un 's/^ *\(Downloading .* MB)\|Installing collected packages\).*/      \1/p' \
	    || { tail -n 5 .venv/install.log; echo "failed: see .venv/install.log"; exit 1; }
	@echo "$(ENVIRONMENT_KEY)" >.venv/installed

# Debian's python3 has no ensurepip; that is in a package of its own.
.PHONY: venv-on-debian
venv-on-debian:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "      installing python3-venv (apt-get)"; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null; \
	else \
	    echo "failed: python3 -m venv does not work here. On Debian or Ubuntu: sudo apt-get install python3-venv"; \
	    exit 1; \
	fi
	@$(PYTHON) -m venv --clear .venv
