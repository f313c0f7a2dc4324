# make demo           plan, buy, train and tear down on this machine
# make test           run lint, types, import contracts, prose and all tests
# make test-providers test the AWS stacks with the real hashicorp/aws, from a local mirror, against moto
# make chaos          inject faults of disk, clock and other controllers, then 200 kills of ranks, agents and stores
# make mutants        inject faults into the code that guards money, and run its tests, which must fail
# make test-bringup   boot fresh machines with the user data of both clouds until Python imports torch; needs root
# make run-examples   run torchrun, Trainer, accelerate, peft, Lightning, DeepSpeed and pipelining as commands
# make lint-hcl       run checkov over terraform/ in its own environment; not part of make test
# Targets create .venv and install what they need. A second call installs nothing.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt Makefile

.PHONY: demo test test-providers test-bringup lint lint-hcl types contracts prose check chaos mutants run-examples clean

demo: $(VENV)/.installed-runtime
	$(BIN)/sailor-cloud up examples/quickstart.yaml --yes

test: check
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: lint types contracts prose

test-providers: $(VENV)/.installed-test
	SAILOR_CLOUD_TEST_PROVIDERS=1 $(BIN)/python -m pytest tests/provision/test_provision_cloud_hcl_real.py \
		tests/provision/test_provision_cloud_real_aws.py

# Needs root, the package registries and the Debian packages below, so CI does not run it. BRINGUP_PIP adds options to
# the nodes' pip, such as BRINGUP_PIP="--find-links /folder --extra-index-url https://example.org/simple".
BRINGUP_PIP ?= --extra-index-url $(TORCH_CPU_INDEX)

test-bringup: $(VENV)/.installed-test
	apt-get install --yes --quiet debootstrap systemd-container slirp4netns iproute2 >/dev/null
	SAILOR_CLOUD_TEST_BRINGUP=1 SAILOR_CLOUD_BRINGUP_PIP="$(BRINGUP_PIP)" $(BIN)/python -m pytest -s tests/bringup

# Runs 200 seeded kills at one commit, within 90 minutes. CHAOS="--kills 1000 --jobs 8 --minutes 300" runs more.
# FAULTS="--only clock" runs only one kind of fault. Faults need root, for a small tmpfs.
chaos: $(VENV)/.installed-test
	$(BIN)/python benchmarks/chaos/storage.py $(FAULTS)
	$(BIN)/python benchmarks/chaos/run.py $(CHAOS)

# Continues where it was interrupted. MUTANTS="--only run/ledger" shows one module's mutants, "--sample 20" tries 20 % of
# each module's.
mutants: $(VENV)/.installed-test
	$(PIP) 'mutmut==3.8.1'
	$(BIN)/python benchmarks/mutants/run.py $(MUTANTS)

# Runs the examples of users' own commands, each with a kill in the middle.
run-examples: $(VENV)/.installed-test
	$(PIP) --editable '.[examples]'
	$(BIN)/python benchmarks/run_any_code/run.py $(EXAMPLES)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# checkov pins an old boto3, which conflicts with that of the tests.
CHECKOV := .venv-checkov

lint-hcl: $(CHECKOV)/.installed
	cd terraform && ../$(CHECKOV)/bin/checkov --config-file .checkov.yaml --directory .

$(CHECKOV)/.installed: Makefile
	$(PYTHON) -m venv $(CHECKOV)
	$(CHECKOV)/bin/python -m pip --disable-pip-version-check install --quiet 'checkov==3.3.30'
	@touch $@

types: $(VENV)/.installed-test
	$(BIN)/mypy

contracts: $(VENV)/.installed-test
	$(BIN)/lint-imports

# Checks words and sentences of all Markdown pages, and words of the code, against docs/glossary.md.
prose: $(VENV)/.installed-test
	$(BIN)/python docs/check_prose.py

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "sailor-cloud needs Python 3.11 or newer; install it or call make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The CPU build of torch is not on PyPI. Unless pip is configured with a local copy, it comes from PyTorch's own index.
$(VENV)/.installed-runtime: $(INPUTS) | $(VENV)/bin/python
	@$(PIP) "$(TORCH)" 'deepspeed==0.19.8' 2>$(VENV)/torch.log || { \
		echo "taking $(TORCH) from $(TORCH_CPU_INDEX)"; \
		$(PIP) --extra-index-url $(TORCH_CPU_INDEX) "$(TORCH)" 'deepspeed==0.19.8'; }
	$(PIP) --editable '.[runtime]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-runtime
	$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) $(CHECKOV) .bringup build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
