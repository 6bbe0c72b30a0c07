# Targets for developers; `make help` lists them. Every target does its own set-up and needs root,
# because the set-up installs Debian packages.
.DEFAULT_GOAL := help
.PHONY: help setup demo unit test test-slow test-torch test-arm64 lint format format-c compile-commands site pictures wheel deb rpm lint-deb bench bench-estimator bench-policies bench-samplers bench-scale bench-reaction bench-hostile test-hostile bench-tensors bench-learned train clean
PYTHON_FILES := hmd tests bench config packaging cffi_build.py setup/backend.py
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest --strict-skips --durations 20
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the other targets need (Debian 12, root); skips what is there
	@setup/setup.sh

demo: setup ## Show hmd at work on an emulated DRAM+PM machine; table, picture, build/demo.json
	@$(PYTHON) -m hmd demo

unit: ## Unit tests, as any user, without make setup; T=PATH for some
	@setup/unit.sh $(T)

ifdef T
test: setup ## Lint, then run the tests, including those in the emulated machine; T=PATH for some
	$(PYTEST) $(T)
else
test: setup lint
	@setup/browser.sh
	@setup/debian.sh
	$(PYTEST) -n 2 --dist loadfile -m 'not vm and not alone' tests
	$(PYTEST) -m 'not slow' tests/vm
endif

test-slow: setup ## Run the longest tests, and those that want the machine for themselves; CI runs them too
	$(PYTEST) -m alone tests/system
	$(PYTEST) -m slow tests/vm

test-torch: setup ## Run the tests that need PyTorch, in a virtual environment of their own; T=PATH for some
	@setup/torch.sh $(T)

test-arm64: setup ## Build for aarch64 and run unit tests under qemu-user; T=PATH for some
	@setup/arm64.sh $(T)

lint: setup ## ruff, mypy --strict, import direction, prose, figures in documents
	ruff check $(PYTHON_FILES)
	ruff format --check $(PYTHON_FILES)
	mypy
	MYPYPATH=packaging:packaging/pages mypy packaging/*.py packaging/container/*.py packaging/pages/*.py packaging/site/*.py
	lint-imports
	$(PYTHON) packaging/prose.py
	$(PYTHON) -m bench.documents.figures --check

format: setup ## Format with ruff and apply its fixes
	ruff check --fix $(PYTHON_FILES)
	ruff format $(PYTHON_FILES)

format-c: ## Format C with clang-format, which make setup does not install (pip install clang-format)
	clang-format -i hmd/native/*.[ch] hmd/emulate/timing/*.[ch] hmd/emulate/plugin/*.[ch]

compile-commands: setup ## Write compile_commands.json, with which clangd reads the C files
	@$(PYTHON) cffi_build.py compile_commands

site: setup ## Build the documentation into build/site; a broken link fails
	@mkdocs build --strict

pictures: setup ## Draw the pictures of the documents from docs/results; docs/images
	$(PYTHON) -m bench.documents.pictures

wheel: setup ## Build source distribution, wheel and SBOM; build/dist/
	@rm -rf build/dist
	$(PYTHON) -m build --no-isolation --outdir build/dist .
	$(PYTHON) packaging/sbom.py build/dist/hmd.cdx.json

deb: setup ## Build the Debian package build/deb/hmd_VERSION_amd64.deb, with its SBOM
	@setup/debian.sh
	@packaging/build_deb.sh

rpm: setup ## Build the RPM for Rocky Linux and RHEL 9, build/rpm/, with its SBOM
	@setup/debian.sh
	@packaging/build_rpm.sh

lint-deb: deb ## lintian on the Debian package; takes minutes
	lintian --allow-root --fail-on error --tag-display-limit 0 build/deb/*.deb

bench: setup ## Measure the cost of hmd on this machine; build/*.json
	@for name in heat policy ring metrics scan service timing stage_costs; do $(PYTHON) -m bench.stages.$$name || exit 1; done

bench-estimator: setup ## Measure the estimator's error on real programs; CASES=gups,redis for some
	@setup/suite.sh
	@$(PYTHON) -m bench.suite.estimator $(CASES)

bench-policies: setup ## Compare hmd with kernel tiering, DAMON and others; CASES=drift:1:8:damon for some
	@setup/suite.sh
	@$(PYTHON) -m bench.compare.policies $(CASES)

bench-samplers: setup ## Measure how much of a program's heat each sampler finds; build/samplers.json
	@$(PYTHON) -m bench.suite.samplers

bench-scale: setup ## Measure the cost of a tick over tracked memory; table, picture, build/scale.json; SIZES=4:1 (GiB:processes) for some
	@$(PYTHON) -m bench.scale.tick_cost $(SIZES)

bench-reaction: setup ## Measure the seconds until a hot set that moved is fast again; docs/results/reaction.json
	@$(PYTHON) -m bench.scale.reaction --publish

bench-hostile: setup ## Measure the service while hostile clients flood it for ten minutes; docs/results/hostile.json
	@$(PYTHON) -m bench.hostile.clients --seconds 600 --publish

test-hostile: setup ## Test the service under hostile clients for ten minutes (make test-slow: less than one)
	HMD_HOSTILE_SECONDS=600 $(PYTHON) -m pytest --strict-skips tests/system/hostile

bench-tensors: setup ## Compare planners of training steps on G10's traces; build/tensors.json
	@$(PYTHON) -m bench.tensors.planners
	@$(PYTHON) -m bench.tensors.in_place
	@$(PYTHON) -m bench.tensors.made_steps

bench-learned: setup ## Compare the learned policy on programs that its training never saw; build/learned.json
	@setup/suite.sh
	@$(PYTHON) -m bench.learned_policy.held_out

train: setup ## Train the weights that hmd ships on the suite's programs; hmd/policy/builtin/learned.npz
	@setup/suite.sh
	@$(PYTHON) -m bench.learned_policy.held_out --ship hmd/policy/builtin/learned.npz

clean: ## Remove what was built (not the virtual environment, not the kernel)
	rm -rf build/setup/native build/dist build/deb build/rpm build/share build/site build/demo* build/*.json hmd/_native* hmd/emulate/_timing*
