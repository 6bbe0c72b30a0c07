# hmd's front door for developers. Every target does its own set-up; all want root, because the
# set-up installs Debian packages. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format site wheel deb lint-deb bench bench-estimator bench-policies bench-samplers clean
PYTHON_FILES := hmd tests bench config packaging cffi_build.py setup/backend.py
PYTHON := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the other targets need (Debian 12, root); skips what is there
	@setup/setup.sh

demo: setup ## Show hmd at work on an emulated DRAM+PM machine; table, picture, build/demo.json
	@$(PYTHON) -m hmd demo

test: setup lint ## Lint, then run all tests, those in the emulated machine too
	@setup/browser.sh
	@setup/debian.sh
	$(PYTHON) -m pytest

lint: setup ## ruff, mypy --strict, import direction
	ruff check $(PYTHON_FILES)
	ruff format --check $(PYTHON_FILES)
	mypy
	MYPYPATH=packaging/pages mypy packaging/*.py packaging/*/*.py
	lint-imports
	$(PYTHON) -m bench.document_figures --check

format: setup ## Let ruff format and mend what it can
	ruff check --fix $(PYTHON_FILES)
	ruff format $(PYTHON_FILES)

site: setup ## Build the documentation into build/site; a broken link fails
	@mkdocs build --strict

wheel: setup ## Build the source distribution, and of it the wheel; build/dist/
	@rm -rf build/dist
	$(PYTHON) -m build --no-isolation --outdir build/dist .

deb: setup ## Build the Debian package build/deb/hmd_VERSION_amd64.deb
	@setup/debian.sh
	@packaging/build_deb.sh

lint-deb: deb ## lintian on the Debian package; takes minutes
	lintian --allow-root --fail-on error --tag-display-limit 0 build/deb/*.deb

bench: setup ## Measure hmd's own costs on this machine; build/*.json
	@for name in heat policy ring metrics scan service timing; do $(PYTHON) -m bench.$$name || exit 1; done

bench-estimator: setup ## The estimator on a suite of real programs; CASES=gups,redis for some
	@setup/suite.sh
	@$(PYTHON) -m bench.suite.estimator $(CASES)

bench-policies: setup ## hmd beside kernel tiering, DAMON and others; CASES=drift:1:8:damon for some
	@setup/suite.sh
	@$(PYTHON) -m bench.compare.policies $(CASES)

bench-samplers: setup ## How much of a program's heat each sampler finds; build/samplers.json
	@$(PYTHON) -m bench.suite.samplers

clean: ## Remove what was built (not the virtual environment, not the kernel)
	rm -rf build/setup/native build/dist build/deb build/share build/site build/demo* build/*.json hmd/_native* hmd/emulate/_timing*
