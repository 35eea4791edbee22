# Every target is one or two commands that can also be typed. `make` alone lists them.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) radix_rs/Cargo.toml $(shell find radix_rs/src -name '*.rs')

# Whoever forbids bytecode caches elsewhere: here every process of every test would start slowly.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(BIN):$(PATH):$(HOME)/.cargo/bin

.PHONY: help dev model gen fmt check test test-kube fuzz chaos soak bench pictures demo up lock clean toolchain

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

dev: $(VENV)/.extension model ## set everything up: environment, extension, model

model: $(VENV)/.extension ## fetch the small model that demo and tests run (93 MB, once)
	@python -m router.cli model

demo: dev ## see it work: four assistants, twelve users, two policies (under three minutes)
	@echo "==> demo (on two cores under three minutes)"
	@prefixlb demo

up: dev ## a cluster on this machine until Ctrl-C
	@prefixlb up

test: dev ## all tests
	@echo "==> tests of the crate (compiles it first)"
	@PREFIXLB_FUZZ_PYTHON=$(CURDIR)/$(BIN)/python cargo test --quiet --workspace
	@echo "==> tests of the processes (minutes; a dot is a test)"
	@python -m pytest

test-kube: dev ## the chart on KUBECONFIG's cluster (PREFIXLB_LOAD_IMAGE="kind load docker-image" to run it there)
	@PREFIXLB_TEST_KUBE=1 python -m pytest tests/kube -rsP -v

fuzz: dev ## random tree operations, then broken requests, an hour each (SECONDS=n: so long), against other readings
	PREFIXLB_FUZZ_SECONDS=$(or $(SECONDS),3600) cargo test -p radix_rs --test tree_model
	PREFIXLB_FUZZ_SECONDS=$(or $(SECONDS),3600) PREFIXLB_FUZZ_PYTHON=$(CURDIR)/$(BIN)/python cargo test -p radix_rs --lib fuzz

chaos: dev ## break a cluster in every way there is and see that it heals (CHAOS="--quick", "--seed 7")
	@python -m tests.chaos $(CHAOS)

soak: dev ## an hour of clients good and bad, and whether any process grows (MINUTES=n: so long)
	@python -m tests.chaos.soak --minutes $(or $(MINUTES),60)

check: $(VENV)/.extension ## linters, types, formats, generated code
	@echo "==> Python: ruff, mypy"
	@ruff check --quiet
	@ruff format --quiet --check
	@mypy --no-error-summary
	@echo "==> Rust: rustfmt, clippy (compiles first)"
	@cargo fmt --all --check
	@cargo fmt --check --manifest-path tests/bench/index/Cargo.toml
	@cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings
	@echo "==> protos: buf, generated code"
	@cd proto && buf lint
	@python -m proto.generate --check
	@echo "==> text: no conflict left unmerged"
	@! git grep -nE '^(<{7}|>{7}) ' -- .
	@echo "all clean"

fmt: $(VENV)/.extension ## format and fix what can be fixed
	ruff check --fix
	ruff format
	cargo fmt --all
	cargo fmt --manifest-path tests/bench/index/Cargo.toml

gen: $(VENV)/.packages ## generate the Python modules of proto/
	python -m proto.generate

bench: dev ## the model's and the serving figures in README.md
	python -m tests.bench

pictures: dev ## the README's pictures of the status page, of a fleet under load (eight minutes, needs Chromium)
	python -m tests.ui_pictures

lock: $(VENV)/.uv ## resolve the dependencies of pyproject.toml anew
	uv pip compile --universal --generate-hashes --no-header -q requirements-uv.in -o requirements-uv.lock
	uv pip compile --universal --generate-hashes --no-header -q pyproject.toml --extra kubernetes --extra traces -o requirements-router.lock
	uv pip compile --universal --generate-hashes --no-header -q pyproject.toml --extra replica --extra traces -o requirements-replica.lock
	uv pip compile --universal --generate-hashes --no-header -q pyproject.toml --all-extras -o requirements-dev.lock

clean: ## remove what the targets above made, but not the model
	rm -rf $(VENV) target .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find proto radix_rs replica router tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f radix_rs/_native*.so

$(VENV)/.uv: requirements-uv.lock | toolchain
	@echo "==> virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@touch $@

$(VENV)/.packages: requirements-dev.lock $(VENV)/.uv
	@echo "==> Python packages (torch is large)"
	@uv pip install --python $(BIN)/python --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.extension: pyproject.toml $(RUST_SOURCES) $(VENV)/.packages
	@echo "==> extension radix_rs (release build)"
	@maturin develop --release --uv
	@touch $@

toolchain:
	@missing=0; say() { echo "missing: $$1" >&2; missing=1; }; \
	test -n "$(PYTHON)" || say "Python 3.11 or newer. Debian, Ubuntu: apt-get install python3 python3-venv"; \
	test -z "$(PYTHON)" || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		say "Python's venv module. Debian, Ubuntu: apt-get install python3-venv"; \
	command -v cc >/dev/null || say "a C compiler. Debian, Ubuntu: apt-get install build-essential"; \
	cargo --version 2>/dev/null | awk '{split($$2, v, "."); ok = v[1] > 1 || v[2] >= 88} END {exit !ok}' || \
		say "Rust 1.88 or newer (cargo). Install it with rustup, or update it: rustup update stable"; \
	exit $$missing
