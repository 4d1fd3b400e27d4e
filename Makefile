# The commands of the README. Each sets up what it needs in .venv.
#
#   make chat                       a chat with the default model
#   make chat PROMPT="What is 2+2?" one answer
#   make chat MODEL=./mine.gguf     another model
#   make test                       every feature, on the mock, the reference, the best kernel set and smollm2
#   make test-all                   all tests: matrices of formats and kernel sets, soak, fuzz, browsers, larger models
#   make test-kernels [KERNELS=avx2] those with a real model, by the kernel set of a smaller machine
#   make asan [ASAN_TESTS=tests/fuzz] the native core's tests under sanitizers (gcc), or some of them
#   make fuzz [SECONDS=60]          mutated files, images, grammars, templates and bodies, so long for each target
#   make check-threads              the thread pool under the thread sanitizer
#   make check-arm                  the ARM kernels, run here or by qemu, and the cycles of their loops
#   make check-compilers            the native core with every compiler there is, without warnings
#   make wheel                      a wheel in dist/ for pip, pipx and uvx, tried out where there is no compiler
#   make wheels                     those of a release, for every Python that is here; docs/reference/wheels.md
#   make check-wheel                the same, and nothing is kept
#   make check-triton               the kernels for GPUs, in Triton's interpreter; needs torch and triton
#   make check-cuda [PART=2]        the suites of engine, cache and parallel tokens on a GPU
#   make check-clients [CLIENTS=…]  real client packages against the server, each with its main job
#   make check-onnx [ONNX=1.24.4]   ONNX models on the oldest, a middle and the newest ONNX Runtime; about ten minutes
#   make check-ray                  replicas on a live Ray cluster: faults, scaling, listeners; a few minutes
#   make bench-kernels              what each kernel set's matrix products reach
#   make bench-instructions         cycles of vector instructions of a 64-bit ARM core
#   make docs                       the documentation site in build/site, with warnings as errors

# The Python of .venv: python3, or the first one from 3.10 on (scripts/find_python.sh).
PYTHON ?=
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard csrc/* csrc/*/* csrc/*/*/*)

# These reach the command as they were typed: no shell and no make looks for $ or quotes in them.
unexport PROMPT MODEL
chat: export STRETTO_PROMPT := $(value PROMPT)
chat: export STRETTO_MODEL  := $(or $(value MODEL),$(value STRETTO_MODEL))
chat: PULL := --pull

# Kernel sets that are compiled: those of this machine, or all with STRETTO_KERNEL_SETS=all, as in wheels and CI. What has all
# of them serves both.
KERNEL_SETS := $(or $(STRETTO_KERNEL_SETS),$(if $(wildcard $(VENV)/.core-all),all,native))
CORE := $(VENV)/.core-$(KERNEL_SETS)

.PHONY: chat test test-all test-kernels check format bench fuzz asan check-threads check-arm check-compilers \
        wheel wheels check-wheel check-triton check-cuda check-clients check-onnx check-ray bench-kernels bench-instructions docs clean

chat: $(VENV)/.installed
	@if [ -n "$$STRETTO_PROMPT" ]; \
	then printf '%s\n' "$$STRETTO_PROMPT" | $(BIN)/stretto run; \
	else exec $(BIN)/stretto chat; \
	fi

# Two workers: about half of the tests keep one core busy, the others two. Files keep the order of
# tests/conftest.py; by their numbers of tests, the longest would come last.
test: SELECTED := -m "not full"
test test-all: $(VENV)/.test
	$(BIN)/python -m pytest --durations=25 --numprocesses=2 --dist=loadfile --no-loadscope-reorder $(SELECTED)

# A text depends on the kernel set, and no test may depend on one text. AMX has the bits of AVX-512, and I8MM those
# of NEON: the next smaller set that computes others is taken. Files are found by the fixtures of tests/conftest.py;
# tests of many cases run one, and files that compute nothing with a model, or with every kernel set, are left out.
KERNELS ?= $(shell $(BIN)/python -c 'from stretto.hardware.kernel_sets import available as sets; \
    print(next((one for one in sets()[1:] if one in ("avx2", "portable")), "portable"))')
REAL_MODEL = $(shell grep -rlE --include='*.py' 'smollm2_path|gemma3_path' tests | sed -e 's|/conftest.py||' \
    | grep -vxE 'tests|tests/(weights|text|export|models|deploy)(/.*)?|.*/test_(same_bits|unique|router).py')
test-kernels: $(VENV)/.test
	STRETTO_KERNELS=$(KERNELS) $(BIN)/python -m pytest --durations=10 --numprocesses=2 --dist=loadfile \
	    --first-cases -m 'real_model and not slow' $(REAL_MODEL)

check: $(VENV)/.dev
	$(BIN)/ruff check --no-cache .  # the cache misses modules that moved: their imports are sorted elsewhere
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_imports.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python benchmarks/open_gguf.py
	$(BIN)/python benchmarks/tokenizer.py

# `make test-all` runs them too, for five seconds each.
SECONDS ?= 60
fuzz: $(VENV)/.test
	STRETTO_FUZZ_SECONDS=$(SECONDS) STRETTO_FUZZ_SEED=$$(date +%s) $(BIN)/python -m pytest --quiet \
	    --numprocesses=2 tests/fuzz

# The module is built apart, into build/asan, with the tools of .venv beside it. -S keeps the interpreter from
# reading the .pth files of .venv, one of which leads to the usual module. The C++ library has to be there
# before the sanitizer, which wraps its exceptions; an interpreter never frees all it has, so leaks are not
# looked for. Tests that start a Python of their own, or take away its memory, are left out. All of it takes long:
# ASAN_TESTS chooses files, and STRETTO_KERNELS=portable other kernels.
SAME_BITS  := tests/backends/test_same_bits.py
ASAN_TESTS := tests/backends/test_ops.py tests/backends/test_decoder.py tests/backends/test_fused.py \
              $(SAME_BITS)::test_across_the_borders_of_spans $(SAME_BITS)::test_beside_others \
              $(SAME_BITS)::test_a_cell_that_is_not_the_last_of_its_view tests/backends/test_tiny.py \
              tests/backends/test_probe.py tests/sampling/test_native.py tests/hooks/test_native_hook.py \
              tests/structured/test_mask.py \
              tests/engine/test_save.py tests/engine/test_table.py tests/weights/test_formats.py \
              tests/weights/test_gguf.py tests/weights/test_gguf_fuzz.py tests/vision/test_encoders.py \
              tests/vision/test_mmproj.py tests/adapters/test_native.py tests/adapters/test_llm.py \
              tests/adapters/test_quantized.py tests/adapters/test_merge.py tests/adapters/test_steering.py tests/fuzz
asan: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/asan/site --config-settings \
	    build-dir=build/asan/cmake --config-settings cmake.build-type=RelWithDebInfo \
	    --config-settings cmake.define.STRETTO_SANITIZE=ON --config-settings install.strip=false .
	PYTHONPATH=build/asan/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    $(BIN)/python -S -m pytest --quiet -p no:cacheprovider $(ASAN_TESTS) \
	    -k "not ends_the_process and not more_threads"

check-threads: tests/native/pool_check.cpp $(NATIVE)
	@mkdir -p build
	$(CXX) -std=c++17 -O1 -g -Wall -Wextra -fsanitize=thread -Icsrc $< csrc/threads/pool.cpp -o build/pool_check -pthread
	build/pool_check

check-arm:
	PYTHON=$(or $(PYTHON),python3) scripts/check_arm.sh

check-compilers:
	scripts/check_compilers.sh

wheel: $(BIN)/python
	$(BIN)/python scripts/check_wheel.py --make --out dist

wheels: $(BIN)/python
	$(BIN)/python scripts/check_wheel.py --release --out dist

check-wheel: $(BIN)/python
	$(BIN)/python scripts/check_wheel.py --make

# TRITON_INTERPRET runs kernels on the CPU, by NumPy; tests of models then take a few of each kind.
check-triton: $(VENV)/.test
	TRITON_INTERPRET=1 STRETTO_TEST_DEVICE=cpu OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	    $(BIN)/python -m pytest --quiet -p no:cacheprovider --numprocesses=2 --dist=worksteal tests/backends/torch

check-cuda: $(VENV)/.cuda
	$(BIN)/python scripts/check_cuda.py $(addprefix --part ,$(PART))

# Packages that cannot share the environment of the tests are installed into build/clients.
check-clients: $(VENV)/.test
	$(BIN)/python scripts/check_clients.py $(CLIENTS)

# Each is installed beside the environment, into build/onnxruntime. onnxruntime-openvino is 1.24.
ONNX ?= 1.23.2 1.24.4 1.28.0 1.31.1
check-onnx: $(VENV)/.test
	@for version in $(ONNX); do echo "onnxruntime $$version"; \
	    $(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/onnxruntime/$$version \
	        onnxruntime==$$version || exit 1; \
	    PYTHONPATH=build/onnxruntime/$$version $(BIN)/python -m pytest --quiet -p no:cacheprovider \
	        tests/backends/test_onnx_*.py tests/export || exit 1; \
	done

# One cluster at a time: its proxies have fixed ports.
check-ray: $(VENV)/.ray
	STRETTO_RAY=1 $(BIN)/python -m pytest --quiet -s tests/deploy

bench-kernels: $(VENV)/.installed
	@mkdir -p build
	$(CXX) -std=c++17 -O2 -Wall -Wextra -Icsrc benchmarks/kernels.cpp -o build/bench_kernels \
	    "$$(ls -t build/cp*/libstretto_core.a | head -n 1)" -pthread
	build/bench_kernels

bench-instructions:
	@mkdir -p build
	$(CXX) -std=c++17 -O2 -Wall -Wextra -march=armv8.2-a+dotprod benchmarks/instructions.cpp -o build/bench_instructions
	build/bench_instructions

# Generated pages and figures are checked first: the site never shows what the program no longer does.
docs: $(VENV)/.docs
	$(BIN)/python scripts/doc_reference.py --check
	$(BIN)/python scripts/option_types.py --check
	$(BIN)/python scripts/doc_figures.py --check
	$(BIN)/python scripts/doc_pictures.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist

# Nothing is fetched before it is known that the core can be compiled.
$(BIN)/python:
	@python=$$(PYTHON='$(PYTHON)' scripts/find_python.sh) && "$$python" -m venv $(VENV)

# The model is fetched while the core is compiled, if `make chat` wants one.
$(CORE): $(BIN)/python pyproject.toml $(NATIVE)
	@echo 'installing into $(VENV): the native core is compiled, which takes a minute or two' >&2
	@STRETTO_KERNEL_SETS=$(KERNEL_SETS) $(BIN)/python scripts/install.py $(PULL)
	@rm -f $(VENV)/.core-* && touch $@
	@echo 'installed: the command is $(CURDIR)/$(BIN)/stretto' >&2
	@echo '           . $(CURDIR)/$(BIN)/activate   makes it stretto in this shell' >&2

$(VENV)/.installed: $(CORE)
	@touch $@

# What extras ask for; nothing is compiled.
$(VENV)/.test $(VENV)/.docs: $(VENV)/.%: $(VENV)/.installed pyproject.toml
	@$(BIN)/python scripts/install.py --extra $*
	@touch $@

$(VENV)/.cuda $(VENV)/.ray: $(VENV)/.%: $(VENV)/.test
	@$(BIN)/python scripts/install.py --extra $*
	@touch $@

$(VENV)/.dev: $(VENV)/.installed pyproject.toml
	@$(BIN)/python scripts/install.py --extra test --extra dev
	@touch $@ $(VENV)/.test $(VENV)/.docs
