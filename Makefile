# make demo    the whole path on real text: corpus, tokenizer, shards, training, release, generation
# make test    all tests but the long ones; make test-all runs those too
# make test-slice  of the layouts that make test leaves out a part, another one with every commit; SLICE_MINUTES=8
# make test-faults  runs that are killed, stopped, hung and slowed on purpose
# make lint    ruff
# make triton-3.6.0  an older Triton beside the environment, that the kernels are compiled with too

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN := runs/demo
SLICE_MINUTES ?= 8
COMMIT = $(shell git rev-parse HEAD)

.PHONY: demo test test-all test-slice test-faults lint triton-3.6.0 older-triton clean-demo

demo: $(STAMP)
	@$(BIN)/python -m launch_scripts.demo --directory $(RUN)

test: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu"

test-all: $(STAMP) older-triton
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not gpu"

test-slice: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and not gpu" \
		--slice=$(COMMIT) --slice-minutes=$(SLICE_MINUTES) tests/distributed tests/faults

test-faults: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "faults and not gpu" tests/faults

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

triton-3.6.0: .triton-3.6.0/.installed

older-triton:  # its tests are skipped where it cannot be had
	-@$(MAKE) --no-print-directory triton-3.6.0

.triton-3.6.0/.installed: | $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .triton-3.6.0 triton==3.6.0
	@touch $@

$(STAMP): setup.py constraints.txt
	@echo "setting up $(VENV) (torch, DeepSpeed and the rest, pinned by constraints.txt)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,release]'
	@touch $(STAMP)

clean-demo:
	rm -rf $(RUN)
