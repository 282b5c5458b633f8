# The one list of commands: the README, CI and the workflows call exactly these.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST_ARGS ?=
# Tests of what hooks into Triton and Numba, and the labs that do.
KERNEL_LABS = $(shell grep -l '^extras = .*"kernels"' solutions/*/lab.toml | sed 's:.*/[0-9]*-::; s:/.*::')
KERNEL_TESTS = tests/kernels tests/checks/sandboxed/kernels $(foreach lab,$(KERNEL_LABS),$(wildcard tests/labs/$(subst -,_,$(lab))/test_*.py) \
	'tests/labs/test_checks_discriminate.py::test_the_reference_passes_everything[$(lab)]')
# Of each layer what is fast, and of the grader a few verdicts, from a sandbox.
QUICK_TESTS = tests/test_docstrings.py tests/test_errors.py tests/test_imports.py tests/autograd tests/flops \
	tests/stack tests/cli tests/checks tests/hardware tests/benchmark tests/labs/test_sources.py \
	tests/grader/judging/test_oracle.py $(addprefix tests/grader/judging/test_judge.py::test_,a_right_solution_gets_all_points \
	every_lost_point_has_a_reason_and_a_hint a_hidden_case_is_told_by_its_kind_only)
NEWEST := .venv-newest/bin/python
JAVASCRIPT := .ci/javascript
# Runs a command with the npm and node that the environment has brought.
NODE = PATH="$(CURDIR)/$(BIN):$$PATH"
# The container that performance points are measured in, by docker or podman: no network, one GPU, this checkout and nothing else of the machine.
BUILDER ?= $(firstword $(foreach program,docker podman,$(if $(shell command -v $(program)),$(program))))
DOCKER ?= $(BUILDER)
GPU ?= 0
CONTAINER = $(DOCKER) run --rm --init --network none $(if $(filter %podman,$(DOCKER)),--device nvidia.com/gpu=$(GPU),--gpus device=$(GPU)) $(NESTED) --user "$$(id -u):$$(id -g)" --env HOME=/tmp --volume '$(CURDIR):$(CURDIR)' --workdir '$(CURDIR)' '$(IMAGE)'
# What the program lacks on this machine, in one line, before it says so in its own.
REFUSE = { echo 'make $@: $(strip $(1))' >&2; exit 1; }
FIND_PROGRAM = test -n '$(1)' || $(call REFUSE,neither docker nor podman is installed; help: apt install docker.io); \
	$(1) info >/dev/null 2>&1 || $(call REFUSE,$(1) does not answer; help: `$(1) info` says why)
FIND_IMAGE = $(call FIND_PROGRAM,$(DOCKER)); $(DOCKER) image inspect '$(IMAGE)' >/dev/null 2>&1 || \
	$(call REFUSE,$(DOCKER) has no image $(IMAGE) here; help: `make gpu-image` builds one and `$(DOCKER) pull $(IMAGE)` fetches one from a registry)
# It has no rights of root's. What docker keeps from it besides, bubblewrap needs to build a sandbox within it.
NESTED = --cap-drop ALL --security-opt no-new-privileges $(addprefix --security-opt ,seccomp=unconfined apparmor=unconfined $(if $(filter %podman,$(DOCKER)),unmask=ALL,systempaths=unconfined))$(if $(filter %podman,$(DOCKER)), --userns keep-id)
# The grader on a machine with a GPU: that of IMAGE, which needs no Python here, or that of this checkout.
GPU_GRADER = $(if $(IMAGE),$(CONTAINER) mlsys-grader,$(BIN)/mlsys-grader)
# The image is built from this commit and nothing that lies about.
COMMIT = $(shell git rev-parse --short=12 HEAD)

.DEFAULT_GOAL := help
.PHONY: help start test tests weekly quick book pdf epub lighthouse linkcheck labs check-labs prove oracles lint javascript format constraints fuzz newest bench bench-gpu grade-shard grade-speed grade-merge leaderboard gpu-doctor gpu-image wheel pretrain screenshots packages allow-sandbox clean distclean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python is too old: got %d.%d, expected 3.11 or newer; help: make PYTHON=python3.11" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

start: $(READY) ## Set up, build the site, serve it beside a JupyterLab with the labs
	$(BIN)/python book/build.py
	$(BIN)/python book/serve.py

test: lint tests ## Set up, lint, and run every test (make test PYTEST_ARGS='-k autograd' for some)

tests: $(READY) ## Every test, without lint
	$(BIN)/python -m tests.whole $(PYTEST_ARGS)

weekly: $(READY) ## All cases of what `make test` does a sample of: hours
	$(BIN)/python -m tests.whole --weekly -m weekly $(PYTEST_ARGS)

quick: $(READY) ## What tells most, in a minute or two: style, and the tests that are fast
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses=2 --dist=loadfile -m 'not slow and not browser' $(QUICK_TESTS)

book: $(READY) ## Build the site into book/_build/html
	$(BIN)/python book/build.py

pdf: book ## Write the whole book into book/_build/mlsys-lab.pdf
	$(BIN)/python -m book.offline pdf

epub: book ## Write the whole book into book/_build/mlsys-lab.epub
	$(BIN)/python -m book.offline epub

lighthouse: book .ci/lighthouse/node_modules/.package-lock.json ## Measure the built site with Lighthouse, five runs a page
	$(BIN)/python -m book.lighthouse

.ci/lighthouse/node_modules/.package-lock.json: .ci/lighthouse/package-lock.json | $(READY)
	cd .ci/lighthouse && $(NODE) npm ci --ignore-scripts --loglevel=error

linkcheck: book ## Check every link of the built site; other hosts too with EXTERNAL=1
	$(BIN)/python book/linkcheck.py $(if $(EXTERNAL),--external)

labs: $(READY) ## Release the labs: solutions/ -> labs/
	$(BIN)/mlsys-grader release

check-labs: $(READY) ## Are labs/ up to date, do the checks tell right from wrong?
	$(BIN)/mlsys-grader release --check
	$(BIN)/python -m pytest tests/labs
	for lab in solutions/*/; do $(BIN)/mlsys-grader prove "$$(basename "$$lab")" || exit 1; done

prove: $(READY) ## Mistakes made by a machine: does a check notice each of them? Hours (LAB=triton for one lab, SAMPLE=100 for some)
	for lab in $(or $(LAB),$(notdir $(wildcard solutions/*))); do \
		$(BIN)/mlsys-grader prove "$$lab" --mutations $(if $(SAMPLE),--sample '$(SAMPLE)') $(if $(SEED),--seed '$(SEED)') || failed=1; \
	done; test -z "$$failed"

oracles: $(READY) ## How many published figures the package reproduces, by topic
	$(BIN)/python -m tests.oracles

lint: $(READY) ## Style, types, and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory javascript

javascript: $(JAVASCRIPT)/node_modules/.package-lock.json ## Style of the JavaScript; installs a linter the first time
	$(NODE) $(JAVASCRIPT)/node_modules/.bin/eslint --config $(JAVASCRIPT)/eslint.config.js --max-warnings 0 mlsys_lab book/_static book/live tests

$(JAVASCRIPT)/node_modules/.package-lock.json: $(JAVASCRIPT)/package-lock.json | $(READY)
	cd $(JAVASCRIPT) && $(NODE) npm ci --loglevel=error
	@touch $@

format: $(READY) ## Let ruff put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: $(READY) ## Resolve every version anew and write constraints.txt (PIP_ARGS= another index, for a small torch)
	@mkdir -p build
	$(BIN)/python -m pip install --dry-run --ignore-installed --quiet --disable-pip-version-check --report build/resolved.json $(PIP_ARGS) '.[dev]'
	.ci/constraints build/resolved.json constraints.txt

fuzz: $(READY) ## Throw damaged frames, notebooks, archives and records at the grader (make fuzz MINUTES=10)
	$(BIN)/python -m tests.grader.fuzz.run $(or $(MINUTES),10)

newest: ## Run the kernels' tests against the newest releases of all they need, in an environment of its own
	test -x $(NEWEST) || $(PYTHON) -m venv .venv-newest
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--editable '.[kernels,grader]' 'nvidia-nvvm; platform_system == "Linux"' pytest pytest-timeout hypothesis pyyaml
	$(NEWEST) -m pip list --disable-pip-version-check
	$(NEWEST) -m pytest --weekly $(PYTEST_ARGS) $(KERNEL_TESTS)

bench: $(READY) ## Measure what the course promises, as ratios within one run
	for script in $(filter-out gpu models goals,$(basename $(notdir $(wildcard tests/bench/*.py)))); do $(BIN)/python -m tests.bench.$$script || exit 1; done

bench-gpu: $(if $(GPU_PYTHON),,$(READY)) ## Measure what kernels, serving and diffusion promise, on a GPU (ONLY=matmul for some; GPU_PYTHON=python3 with its own torch)
	$(or $(GPU_PYTHON),$(BIN)/python) tests/bench/gpu.py --record $(if $(ONLY),--only '$(ONLY)')

grade-shard: $(READY) ## Judge one shard of a class: LAB= SHARD=1/4 IN=course folder OUT=
	$(BIN)/mlsys-grader $(if $(LABS),--labs '$(LABS)') --course '$(IN)' shard '$(LAB)' --shard '$(SHARD)' --out '$(OUT)'

grade-speed: $(if $(IMAGE),,$(READY)) ## Measure performance points: LAB= IN=course folder FROM='shards' OUT= (in a container: IMAGE=)
	@$(if $(IMAGE),$(FIND_IMAGE))
	$(GPU_GRADER) $(if $(LABS),--labs '$(LABS)') --course '$(IN)' shard '$(LAB)' --speed-of $(FROM) --out '$(OUT)'

grade-merge: $(READY) ## Enter shards into the gradebook: LAB= IN=course folder FROM='shares'
	$(BIN)/mlsys-grader $(if $(LABS),--labs '$(LABS)') --course '$(IN)' merge '$(LAB)' $(FROM)

leaderboard: $(READY) ## Run the capstone's bundles again that are not in book/data/bundles as they are in IN=
	@set --; for bundle in '$(IN)'/*.json; do \
		cmp --quiet "$$bundle" "book/data/bundles/$${bundle##*/}" || set -- "$$@" "$$bundle"; \
	done; test $$# = 0 || $(BIN)/mlsys-grader leaderboard "$$@"

gpu-doctor: $(if $(IMAGE),,$(READY)) ## What does this machine lack to measure performance points? (in a container: IMAGE=)
	@$(if $(IMAGE),$(FIND_IMAGE))
	$(GPU_GRADER) doctor --gpu

gpu-image: ## Build IMAGE for grade-speed from this commit, as mlsys-lab-gpu:COMMIT, with docker or podman (BUILDER= PYTHON_VERSION=)
	@$(call FIND_PROGRAM,$(BUILDER))
	rm -rf build/gpu-image && mkdir -p build/gpu-image
	git archive HEAD | tar --extract --directory build/gpu-image
	$(BUILDER) build --build-arg COMMIT=$(COMMIT) $(if $(PYTHON_VERSION),--build-arg PYTHON_VERSION=$(PYTHON_VERSION)) --tag mlsys-lab-gpu:$(COMMIT) --file build/gpu-image/grader/Containerfile.gpu build/gpu-image

wheel: $(READY) ## Build the wheel, with the released labs inside, into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

pretrain: $(READY) ## Train the two small models on the book's text, the one on digits and its students, and measure them: some minutes of one core
	$(BIN)/python book/pretrain.py
	$(BIN)/python book/measure_pair.py
	$(BIN)/python book/pretrain_digits.py
	$(BIN)/python book/distil_digits.py

screenshots: book ## Take the README's pictures again
	$(BIN)/python book/screenshots.py
	$(BIN)/python -m pytest -q tests/e2e/test_learner_journey.py --pictures book/_static/screenshots

packages: ## Install the Debian packages that the tests need (Chromium, bubblewrap, g++, Arm's gcc and QEMU, fonts, epubcheck); asks for root
	.ci/packages

allow-sandbox: ## Let bubblewrap make user namespaces where the system forbids it (Ubuntu 24.04); asks for root
	.ci/allow-sandbox

clean: ## Remove what can be made again, but not what was installed
	rm -rf build dist book/_build book/labs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean ## Remove what was installed too: the virtual environments and the JavaScript linter
	rm -rf .venv .venv-newest $(JAVASCRIPT)/node_modules .ci/lighthouse/node_modules
