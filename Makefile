# make demo    the whole path on real text: corpus, tokenizer, shards, training, release, generation
# make test    all tests but the long ones; make test-all runs those too
# make test-slice  of the layouts that make test leaves out a part, another one with every commit; at most 20 minutes
# make lint    ruff

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN := runs/demo

.PHONY: demo test test-all test-slice lint clean-demo

demo: $(STAMP)
	@$(BIN)/python -m launch_scripts.demo --directory $(RUN)

test: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu"

test-all: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not gpu"

test-slice: $(STAMP)
	@OMP_NUM_THREADS=1 timeout 20m $(BIN)/python -m pytest -q -m "slow and not gpu" --slice=$$(git rev-parse HEAD) tests/distributed

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

$(STAMP): setup.py constraints.txt
	@echo "setting up $(VENV) (torch, DeepSpeed and the rest, pinned by constraints.txt)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,release]'
	@touch $(STAMP)

clean-demo:
	rm -rf $(RUN)
