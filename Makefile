# Thin: the work is in scripts/ and CMakePresets.json.
.PHONY: build test quickstart setup
.NOTPARALLEL:

cmake = .venv/bin/cmake
export PATH := $(CURDIR)/.venv/bin:$(PATH)

build: setup  ## The program, optimised: build/release/bin/oom
	@$(cmake) --preset release
	@$(cmake) --build --preset release

test: setup  ## Everything that a machine without a GPU can check
	@scripts/run_tests

quickstart: setup  ## Trains a small model on this machine's CPU in a minute or two
	@scripts/quickstart

setup:
	@scripts/setup
