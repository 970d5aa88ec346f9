# On a fresh machine with Python and make alone: `make main` runs the main job, `make bench` times a few losses, `make
# test` checks what a change usually breaks, `make test-all` everything.
#
# The environment is made once, in .venv, and used again. An active environment that has torch is used instead, as it is:
# its torch is kept, or the installation is refused.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
WORKERS ?= 2
PYTEST ?=
# Descriptions of flats with their rents, which the project generates.
FINETUNED ?= model=smollm2 dataset=rents
# Ours, with and without NTL, F.cross_entropy and ntloss, on one small problem; not those that have to be compiled.
TIMED ?= logits-fp32 and (ours or torch_ce) and not float and not compiled

ACTIVE := $(shell test -n "$$VIRTUAL_ENV$$CONDA_PREFIX" && python -c 'import sys, torch; print(sys.prefix)' 2>/dev/null)
ENVIRONMENT := $(or $(ACTIVE),$(VENV))
RUN := $(ENVIRONMENT)/bin/python
# Besides TORCH: what pip brings, or the oldest that is promised, by turns on odd and even days. Each brings its Triton.
TURN := $(shell expr $$(date +%j) % 2 + 1)
OTHER_TORCH ?= $(word $(TURN),torch==2.8.0 torch==2.14.1)
OTHER_VENV = $(VENV)-$(subst ==,-,$(OTHER_TORCH))
PIPS_TRITON := triton==3.8.0
OTHER_TRITON ?= $(word $(TURN),triton==3.9.0 triton==3.4.0)
# A worker has a core: more threads than that would only wait for each other.
TESTS = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HYDRA_FULL_ERROR=1 $(RUN) -m pytest -n $(WORKERS) -rsfE
BY_FILE = --dist loadfile --no-loadscope-reorder
EMULATED = $(TESTS) --dist load tests/emulated tests/emulator
say = @printf '\n== %s\n' "$(1)"

.PHONY: help main finetune bench test test-all lint types docs tests tests-all emulated other-torch frameworks
.DEFAULT_GOAL := help

help:
	@echo "make main   install into $(ENVIRONMENT) and compare CE with CE + NTL on a small task (options: ARGS=...)"
	@echo "make finetune   download a pretrained model of 135 million parameters, fine-tune it with CE and with CE + NTL, and"
	@echo "                compare them (it says how long that takes; your table: FINETUNED='model=smollm2 dataset=table dataset.file=...')"
	@echo "make bench  install into $(ENVIRONMENT) and time a few losses with pytest-benchmark (options: TIMED=..., PYTEST=...)"
	@echo "make test   install into $(ENVIRONMENT), then linter, types, documentation and quick tests (options: PYTEST=...)"
	@echo "make test-all   the same with all tests: also those marked slow (pages in a browser, recipes),"
	@echo "                make emulated (the compiled kernels on an emulated GPU in every way, two versions of Triton),"
	@echo "                make other-torch (the quick tests with $(OTHER_TORCH))"
	@echo "                and make frameworks (those that pin other versions)"

main: $(ENVIRONMENT)/.installed-bench
	$(call say,main job: python -m benchmarks.quality $(ARGS))
	$(RUN) -m benchmarks.quality $(ARGS)

finetune: $(ENVIRONMENT)/.installed-finetune
	$(call say,a pretrained model: python -m benchmarks.quality pretrained smollm2)
	$(RUN) -m benchmarks.quality pretrained smollm2
	$(call say,fine-tuning: python -m benchmarks.quality compare $(FINETUNED))
	$(RUN) -m benchmarks.quality compare $(FINETUNED)

bench: $(ENVIRONMENT)/.installed-bench
	$(call say,speed: pytest benchmarks/speed --benchmark-only -k '$(TIMED)')
	$(RUN) -m pytest benchmarks/speed --benchmark-only -q -k "$(TIMED)" \
		--benchmark-columns=min,median,max,rounds $(PYTEST)

test: lint types docs tests

test-all: lint types docs tests-all emulated other-torch frameworks

lint: $(ENVIRONMENT)/.installed-dev
	$(call say,linter: ruff check and ruff format --check; imports: lint-imports)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(ENVIRONMENT)/bin/lint-imports --no-cache --no-logo

types: $(ENVIRONMENT)/.installed-dev
	$(call say,types: mypy)
	$(RUN) -m mypy

docs: $(ENVIRONMENT)/.installed-dev
	$(call say,documentation: mkdocs build --strict)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict -f docs/mkdocs.yml

tests: $(ENVIRONMENT)/.installed-dev
	$(call say,tests: pytest on $(WORKERS) workers, without those marked slow)
	$(TESTS) $(BY_FILE) -m "not slow" $(PYTEST)
	@$(RUN) -c 'from tests.emulator.needs import missing; missing() and print("\n== NOT TESTED: the compiled kernels;", missing())'

tests-all: $(ENVIRONMENT)/.installed-dev
	$(call say,tests: pytest on $(WORKERS) workers)
	$(TESTS) $(BY_FILE) --ignore tests/emulated --ignore tests/emulator $(PYTEST)
	@command -v chromium > /dev/null || printf '\n== NOT TESTED: pages in a browser, since there is no %s\n' \
		"chromium on this machine (Debian: apt-get install chromium chromium-driver)"

# A Triton beside that of the environment, settings. It takes a gigabyte or two, which CI frees, as below.
define emulate
	$(call say,emulated GPU: $(1))
	@test -d build/$(1) || $(RUN) -m pip install --quiet --no-deps --target build/$(1) $(1)
	$(2) PYTHONPATH=build/$(1) NTL_KERNELS_EMULATOR=build/emulator-$(1) $(EMULATED) $(PYTEST)
	$(if $(CI),@rm -rf build/$(1) build/emulator-$(1))
endef

# Every test in every way, and then in one way with another Triton.
emulated: $(ENVIRONMENT)/.installed-dev
	$(call emulate,$(PIPS_TRITON),NTL_KERNELS_EMULATE_ALL=1)
	$(call emulate,$(OTHER_TRITON))

other-torch:
	@$(MAKE) tests ACTIVE= VENV=$(OTHER_VENV) TORCH=$(OTHER_TORCH)
	$(if $(CI),@rm -rf $(OTHER_VENV))

frameworks: $(ENVIRONMENT)/.installed-dev
	$(call say,tests with frameworks that pin other versions)
	.ci/frameworks $(RUN)

# One part after another and without a cache: a build with CUDA has gigabytes of parts, and pip would first collect all.
install_torch = $(RUN) -m pip install --quiet --no-cache-dir --no-deps $(TORCH) && $(RUN) -c \
	'from importlib.metadata import requires; print(*requires("torch"), sep="\0", end="")' \
	| xargs -0 -n 1 $(RUN) -m pip install --quiet --no-cache-dir --no-warn-conflicts

# An active environment may serve other checkouts, too, so that it has no mark and is looked at every time.
$(ENVIRONMENT)/.installed-%: setup.py $(if $(ACTIVE),always) | $(RUN)
	$(if $(ACTIVE),,$(call say,installation (once): $(TORCH)))
	$(if $(ACTIVE),,@$(install_torch))
	$(call say,installation: ntl_kernels with the extra $* into $(ENVIRONMENT))
	@constraint=$$(mktemp) && trap 'rm -f $$constraint' EXIT \
		&& $(RUN) -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $$constraint \
		&& $(RUN) -m pip install --quiet -e ".[$*]" -c $$constraint
	$(if $(ACTIVE),,@touch $@)

$(VENV)/bin/python:
	$(call say,environment (once): $(PYTHON) -m venv $(VENV))
	@$(PYTHON) -m venv $(VENV)

.PHONY: always
always:
