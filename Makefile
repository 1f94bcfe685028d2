# Everything happens in .venv, which is made when it is missing. Each target installs what it needs and no more.
#   make PYTHON=python3.12            another interpreter
#   make CONSTRAINTS=/dev/null        newest versions instead of the pinned ones
#   make test WORKERS=0               in one process, as a debugger needs it
#   make test PACKAGE=build/dist/...  of a wheel that `make dist` has built, in place of these sources

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP ?= $(PY) -m pip --disable-pip-version-check
CONSTRAINTS ?= constraints.txt
PACKAGE ?= .
PYTEST_ARGS ?=
WORKERS ?= logical
BENCH_ARGS ?=
MUTANTS_ARGS ?=
OLDEST_PYTHON ?= $(firstword $(shell for one in python3.10 "$$(pyenv root 2>/dev/null)"/versions/3.10.*/bin/python $(PYTHON); do \
  "$$one" -c 'import sys; print(sys.executable)' 2>/dev/null; done))
DEMO_ARGS ?=
# The tests that know a framework.
FRONTS = tests/test_versions.py tests/contract tests/gpu tests/parity tests/sharding $(wildcard tests/*_front)

# The build tools live in the environment, so that a change of one line is rebuilt in a second or two.
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist loadfile
# Without this project's settings of pytest, which need what the tests do.
ALONE = -q --noconftest -c /dev/null --rootdir . -p no:cacheprovider
MKDOCS = NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs
# Into an environment without a pip of its own; nothing is compiled that no test imports.
install-into = $(PIP) --python $(1)/bin/python install -qq --no-compile
# An environment that has these packages, and finds those of $(VENV): what trains with ours need not be there for all tests.
SITE = import sysconfig; print(sysconfig.get_path("purelib"))
with-packages = $(PY) -m venv --without-pip $(1) && $(PY) -c '$(SITE)' >"$$($(1)/bin/python -c '$(SITE)')/others.pth" && \
  $(install-into) -c $(CONSTRAINTS) $(2)
INSTALL = $(PIP) install -qq --no-compile -c $(CONSTRAINTS) --no-build-isolation
# pip would compile one file after the other, for half of the time that it takes in all. Nobody imports packages' own
# tests, and of the models of transformers few.
COMPILE = find $(VENV)/lib -name '*.py' -newer $@.begun ! -path '*/tests/*' ! -path '*/transformers/models/*' -print0 | \
  xargs -0 -n 500 -P "$$(getconf _NPROCESSORS_ONLN)" $(PY) -m compileall -qq >/dev/null || true; rm $@.begun
# Folders are among the sources because removing a file touches nothing else.
SOURCES := $(shell find src csrc ! -path '*/__pycache__*' ! -name README.md) CMakeLists.txt
NEEDS := pyproject.toml constraints.txt | $(VENV)/.tools

.PHONY: setup demo test quick test-all test-timm test-deepspeed test-tensorflow test-gpu test-oldest test-newest test-pure check cross bench bench-gpu dist dist-pure release-check test-project touched site site-serve stub generate sanitize mutants clean help
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@echo "make setup        everything for development, and the pre-commit hooks"
	@echo "make demo         what the optimizers are for, shown on real data in some minutes, with a report"
	@echo "make test         every test that a change of the library needs, in some minutes"
	@echo "make quick RULE=lamb  what says most of one optimizer, in a minute, without the extension"
	@echo "make quick FILE=src/layerwise/torch/step/_stepper.py  the tests that noticed small errors in that file, or call it"
	@echo "make test-all     all tests: also those against other packages, and of long programs"
	@echo "make test-timm    timm's own tests, on ours"
	@echo "make test-deepspeed  what trains under DeepSpeed, which is installed for it"
	@echo "make test-gpu     what is tested on a GPU, where there is one; elsewhere in Triton's interpreter"
	@echo "make test-oldest  a step and a checkpoint with the oldest versions that are supported"
	@echo "make test-newest  the tests of all APIs with the newest versions, in an environment of their own"
	@echo "make test-pure    the same with the wheel that has no extension"
	@echo "make test-tensorflow  Keras on TensorFlow, in an environment of its own"
	@echo "make check        lint, format, types, and what is generated"
	@echo "make test-project  that documents are true: their examples run; tests of tools, benchmarks and tests"
	@echo "make dist         the source distribution, and the wheel built from it, in build/dist"
	@echo "make dist-pure    the source distribution, and the wheel without the extension, in build/pure"
	@echo "make release-check  what a release is, tried in empty environments, and what a person must still do"
	@echo "make cross        the extension's sources, read by Clang and by GCC for Windows"
	@echo "make site         the documentation as a site, in build/site;  make site-serve shows it while you write"
	@echo "make bench        time a step against other implementations"
	@echo "make bench-gpu    check and time the optimizers on a GPU"
	@echo "make sanitize     the compiled engine under the address, undefined-behaviour and thread sanitizers"
	@echo "make mutants      which of many small errors the tests notice, in hours; MUTANTS_ARGS names some"
	@echo "make generate     stubs of the APIs, and tables of the pages, from what the rules declare"
	@echo "make stub         write the extension's stub again;  make clean removes everything built"

setup: $(VENV)/.parity $(VENV)/.package
	@$(PY) -m pre_commit install

demo: $(VENV)/.demo
	@$(PY) -m demo $(DEMO_ARGS)

test: $(VENV)/.dev $(VENV)/.ttsem $(VENV)/.package
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# Of one optimizer: its rule against the reference and the properties, its options, small errors in it, and its steps by
# the NumPy API. The sources as they are; nothing is compiled.
QUICK = tests/test_rules.py tests/test_options.py tests/test_mutants.py tests/numpy_front/test_options.py tests/contract/test_steps.py \
  tests/contract/test_stats.py tests/contract/test_state.py tests/contract/test_resume.py

# Of one file: the tests that noticed small errors in it, and some that call its functions, if `make touched` has been run.
# An extension that is for this machine's processor alone is kept for C++; the first time, it takes minutes.
quick: | $(VENV)/.dev
	@$(if $(RULE)$(FILE),,echo "Of what? make quick RULE=lamb, or make quick FILE=src/layerwise/torch/step/_stepper.py"; exit 1)
	@$(if $(filter csrc/%,$(FILE)),$(call build-with,HERE=ON,build/quick,_native) >/dev/null && $(call beside-sources,build/quick))
	@$(if $(FILE),mkdir -p build && PYTHONPATH=tests:src $(PY) -m mutants.nearest $(FILE) >build/quick.txt && \
	  PYTHONPATH=$(if $(filter csrc/%,$(FILE)),build/quick,src) $(PYTEST) -m "not slow" @build/quick.txt $(PYTEST_ARGS))
	@$(if $(RULE),PYTHONPATH=src $(PYTEST) -k "$(RULE) and not (torch or jax or strict or Keras or MLX or Paddle)" $(QUICK) $(PYTEST_ARGS))

# `make test`, slower, noting for `make quick` which tests call which functions.
touched: $(VENV)/.dev $(VENV)/.ttsem $(VENV)/.package
	@$(PYTEST) -m "not slow" -p touched $(PYTEST_ARGS)

# With all draws of every property. What `make test` has run already is left out by PYTEST_ARGS='-m "slow or hypothesis"'.
test-all: $(VENV)/.parity $(VENV)/.ttsem $(VENV)/.package
	@CI=1 $(PYTEST) $(PYTEST_ARGS)

# They are in timm's source distribution and not in its wheel.
test-timm: $(VENV)/.dev $(VENV)/.package
	@$(PIP) install -qq 'timm>=1.0.12' && rm -rf build/timm && mkdir -p build/timm
	@$(PIP) download -qq --no-deps --no-binary timm -d build/timm "$$($(PY) -m pip freeze | grep '^timm==')"
	@tar -xzf build/timm/timm-*.tar.gz -C build/timm --strip-components 1
	@LAYERWISE_TIMM_TESTS=build/timm/tests $(PY) -m pytest tests/others/test_timm.py tests/trainers/test_timm.py $(PYTEST_ARGS)

# What DeepSpeed's processes send by is compiled before them: one that ends meanwhile would leave a lock for the next run.
OPS = build/deepspeed/ops
LOAD = from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)
test-deepspeed: $(VENV)/.parity $(VENV)/.package
	@$(call with-packages,build/deepspeed,deepspeed)
	@rm -f $(OPS)/*/lock && TORCH_EXTENSIONS_DIR=$(abspath $(OPS)) DS_ACCELERATOR=cpu build/deepspeed/bin/python -c '$(LOAD)' >/dev/null
	@TORCH_EXTENSIONS_DIR=$(abspath $(OPS)) build/deepspeed/bin/python -m pytest tests/sharding/test_deepspeed_runs.py tests/offload/test_others.py $(PYTEST_ARGS)

# With the packages of whatever environment has a PyTorch for the GPU: make test-gpu PY=python3. Where ttsem is missing,
# launches are not executed as compiled.
test-gpu:
	@LAYERWISE_TEST_ALL=1 $(PY) -m pytest tests/gpu $(PYTEST_ARGS)

# Fresh environments: the oldest Python that is here with the wheel for any platform, and this one with the extension.
test-oldest: dist-pure
	@rm -rf build/oldest
	@$(OLDEST_PYTHON) -m venv --without-pip build/oldest/all && $(PYTHON) -m venv --without-pip build/oldest/compiled
	@$(call install-into,build/oldest/all) pytest build/pure/*.whl $$($(PY) tools/requirements.py --oldest jax)
	@$(call install-into,build/oldest/compiled) pytest $(PACKAGE) $$($(PY) tools/requirements.py --oldest)
	@build/oldest/all/bin/python -m pytest $(ALONE) tests/test_versions.py
	@build/oldest/compiled/bin/python -m pytest $(ALONE) tests/test_versions.py tests/engines/test_threads.py

# In an environment of their own, the newest versions that there are. Triton's is the one that PyTorch asks for.
test-newest:
	@rm -rf build/newest
	@$(MAKE) VENV=build/newest CONSTRAINTS=/dev/null build/newest/.parity build/newest/.package
	@build/newest/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not repeats" $(FRONTS) $(PYTEST_ARGS)

# In an environment of its own, because TensorFlow has a say in many versions: Keras on its usual backend.
test-tensorflow: dist-pure
	@rm -rf build/tensorflow && $(PYTHON) -m venv --without-pip build/tensorflow
	@$(call install-into,build/tensorflow) -c $(CONSTRAINTS) pytest tensorflow-cpu build/pure/*.whl $$($(PY) tools/requirements.py keras torch)
	@KERAS_BACKEND=tensorflow build/tensorflow/bin/python -m pytest -W ignore -p no:cacheprovider tests/keras_front/promises.py \
	  tests/keras_front/on_tensorflow.py $(PYTEST_ARGS)

# Found in its archive before what is installed; with all frameworks that are.
test-pure: dist-pure $(VENV)/.dev
	@PYTHONPATH="$$(echo $(abspath build/pure)/*.whl)" $(PY) -m pytest $(ALONE) tests/test_versions.py
	@PYTHONPATH="$$(echo $(abspath build/pure)/*.whl)" $(PY) -m layerwise info | grep -F 'compiled  not available: this wheel'

# Reads only; nothing is installed for it.
cross:
	@tools/cross.sh

check: $(VENV)/.dev $(VENV)/.package
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@mkdir -p build
	@$(call write-stub,build/_native.pyi)
	@$(PY) tools/generate.py --check
	@diff -u src/layerwise/_native.pyi build/_native.pyi || { echo "The stub is out of date: make stub"; exit 1; }
	@$(VENV)/bin/zizmor --offline --quiet .

# No change of the library needs them: what its pages say, and what is beside it.
test-project: $(VENV)/.parity $(VENV)/.package
	@$(PYTEST) tests/project $(PYTEST_ARGS)

# The wheel is built as pip builds it anywhere: of nothing but the archive, in an environment of its own.
dist: $(VENV)/.tools
	@rm -rf build/dist && mkdir -p build/dist
	@$(PY) -m build --sdist --no-isolation --outdir build/dist . >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@PIP_CONSTRAINT="$(abspath $(CONSTRAINTS))" $(PIP) wheel -qq --no-deps -w build/dist build/dist/*.tar.gz
	@ls build/dist

# For every platform that no other wheel is for: it steps by the reference implementation.
dist-pure: build/pure/.made

build/pure/.made: $(SOURCES) README.md LICENSE $(NEEDS)
	@rm -rf build/pure && mkdir -p build/pure
	@$(PY) -m build --sdist --no-isolation --outdir build/pure . >build/pure.log 2>&1 || { cat build/pure.log; exit 1; }
	@$(PIP) wheel -qq --no-deps --no-build-isolation -C wheel.cmake=false -w build/pure build/pure/*.tar.gz
	@ls build/pure
	@touch $@

# What a release is, tried without anybody's account, and what a person must still do.
release-check: dist $(VENV)/.dev
	@rm -rf build/pure && $(MAKE) --no-print-directory dist-pure
	@$(PIP) install -qq -c $(CONSTRAINTS) $$($(PY) tools/requirements.py release)
	@$(PY) tools/release.py try build/dist build/pure
	@$(PY) tools/release.py left

# Its hook takes the checkout's own sources, so it is enough that the library has been installed once.
site: $(VENV)/.docs
	@$(MKDOCS) build --strict

site-serve: $(VENV)/.docs
	@$(MKDOCS) serve

bench: $(VENV)/.parity $(VENV)/.package
	@$(PY) benchmarks/fronts.py numpy $(BENCH_ARGS)
	@$(PY) benchmarks/fronts.py torch $(BENCH_ARGS)
	@$(PY) benchmarks/backward_memory.py $(if $(BENCH_ARGS),--no-write)
	@$(PY) benchmarks/noise_scale.py $(if $(BENCH_ARGS),--no-write)
	@$(PY) benchmarks/fronts.py jax $(BENCH_ARGS)
	@$(PY) benchmarks/cpu_engine.py $(BENCH_ARGS)
	@$(PY) benchmarks/sharding.py $(BENCH_ARGS)
	@$(PY) benchmarks/formats.py $(if $(BENCH_ARGS),--shapes tiny-1000 --rounds 3 --no-write)
	@$(PY) benchmarks/memory.py $(if $(BENCH_ARGS),--no-peak --no-write)

bench-gpu: $(VENV)/.parity $(VENV)/.package
	@$(PY) benchmarks/gpu.py $(BENCH_ARGS)

# Each build is apart from the package: a copy of it with an extension of its own, found first.
sanitize: $(VENV)/.dev $(VENV)/.package
	@$(call build-with,SANITIZE=address$(comma)undefined,build/sanitize,driver _native)
	@$(call build-with,SANITIZE=thread,build/sanitize-threads,driver)
	build/sanitize/driver
	TSAN_OPTIONS="halt_on_error=1" build/sanitize-threads/driver 12 without-forks
	@$(call beside-sources,build/sanitize)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitize $(PY) -m pytest -q tests/engines $(PYTEST_ARGS)

# One error after the other, each in a copy of the package; tests/mutants/__init__.py says what MUTANTS_ARGS may hold.
mutants: $(VENV)/.dev $(VENV)/.package
	@PYTHONPATH=tests $(PY) -m mutants.run $(MUTANTS_ARGS)

comma := ,
build-with = $(VENV)/bin/cmake -S . -B $(2) -G Ninja -DLAYERWISE_$(1) \
  -DPython_EXECUTABLE="$(abspath $(PY))" -DCMAKE_MAKE_PROGRAM="$(abspath $(VENV)/bin/ninja)" >/dev/null && \
  $(VENV)/bin/cmake --build $(2) --target $(3)
beside-sources = rm -rf $(1)/layerwise && cp -r src/layerwise $(1)/ && cp $(1)/_native*.so $(1)/layerwise/

# Fronts and tables of the pages, made of what the rules declare, and the lists of public names and of messages.
generate: $(VENV)/.dev $(VENV)/.package
	@$(PY) tools/generate.py
	@$(PY) tools/public.py
	@$(PY) tools/messages.py

stub: $(VENV)/.dev $(VENV)/.package
	@$(call write-stub,src/layerwise/_native.pyi)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

write-stub = $(PY) -m nanobind.stubgen -q -m layerwise._native -o $(1) && \
  $(PY) -m ruff check -q --fix --select I $(1) && $(PY) -m ruff format -q $(1)

# Stamps. The first of them install packages, the last the library itself, again whenever its sources have changed.

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "layerwise needs Python 3.10 or newer: make PYTHON=...")'
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: | $(PY)
	@echo "Installing what builds layerwise"
	@$(PIP) install -qq -c $(CONSTRAINTS) 'pip>=22.3' scikit-build-core nanobind cmake ninja numpy build
	@touch $@

# What `make test` needs but for the library, so that one can be installed while the other is compiled.
$(VENV)/.needed: $(NEEDS)
	@echo "Installing what layerwise[dev] needs into $(VENV)"
	@$(PY) tools/requirements.py dev >$@.txt
	@touch $@.begun && $(INSTALL) -r $@.txt && { $(COMPILE); }
	@touch $@

# How far an installation is.
progress = echo "  $$(ls -d $(VENV)/lib/python*/site-packages/*.dist-info | wc -l) packages installed," \
  "$$(find build/here -name '*.o' 2>/dev/null | wc -l) of $$(grep -c '^build .*\.o:' build/here/build.ninja 2>/dev/null || echo '?') files compiled"

# Where nothing else has been installed, the extension is compiled for this machine's processor alone, beside other packages.
ifeq ($(wildcard $(VENV)/.package),)
$(VENV)/.demo: $(SOURCES) $(NEEDS)
	@echo "Installing PyTorch, scikit-learn and matplotlib, and compiling for this processor: about a minute on two cores"
	@$(PY) tools/requirements.py demo >$@.txt
	@(while sleep 5; do $(progress); done) & shown=$$!; trap "kill $$shown" EXIT; { $(INSTALL) -r $@.txt & } && needed=$$! && \
	  $(INSTALL) --no-deps --force-reinstall -C cmake.define.LAYERWISE_HERE=ON -C build-dir=build/here $(PACKAGE) && wait $$needed
	@touch $@
else
$(VENV)/.demo: $(VENV)/.package
	@$(INSTALL) $$($(PY) tools/requirements.py demo)
	@touch $@
endif

$(VENV)/.dev: $(NEEDS)
	@echo "Installing layerwise[dev] into $(VENV); the first time takes some minutes"
	@touch $@.begun && $(INSTALL) '$(PACKAGE)[dev]' && { $(COMPILE); }
	@touch $@ $(VENV)/.package

$(VENV)/.parity: $(NEEDS)
	@echo "Installing layerwise[dev,parity] into $(VENV); the first time takes some minutes"
	@touch $@.begun && $(INSTALL) '$(PACKAGE)[dev,parity]' && { $(COMPILE); }
	@touch $@ $(VENV)/.dev $(VENV)/.package

# It executes what Triton compiles. It is written for a newer Python than some of those that are tested, but needs none.
$(VENV)/.ttsem: $(NEEDS)
	@$(INSTALL) --no-deps --ignore-requires-python ttsem
	@touch $@

$(VENV)/.docs: $(NEEDS)
	@echo "Installing layerwise[docs] into $(VENV)"
	@touch $@.begun && $(INSTALL) '$(PACKAGE)[docs]' && { $(COMPILE); }
	@touch $@ $(VENV)/.package

$(VENV)/.package: $(SOURCES) $(NEEDS)
	@echo "Building layerwise"
	@touch $@.begun && $(INSTALL) --no-deps --force-reinstall $(PACKAGE) && { $(COMPILE); }
	@touch $@
