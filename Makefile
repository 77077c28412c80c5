# train_llama. `make` builds, `make test` proves, `make demo` trains a small Llama on 4 ranks, `make bench` measures.
#   DEVICE=cpu|cuda|emulated  which device layer (default: cuda when nvcc and a GPU are found, else cpu)
#   MPI=0                     a build for one rank, without Open MPI
#   SANITIZE=1                AddressSanitizer and UndefinedBehaviorSanitizer
#   SANITIZE=races            DEVICE=emulated: a race detector for the kernels (device/cuda/races.cc)
#   WERROR=0                  compiler warnings are no errors (another compiler may warn of more)
#   ARCH=native               -march= of the CPU code
#   CC=clang CXX=clang++      instead of gcc and g++ (package libomp-dev); SANITIZE=races needs g++
#   CUDNN=0                   DEVICE=cuda: without cuDNN; hand-written kernels compute all attention (slower)
#   CUDA_ARCHS="80 90 100"    DEVICE=cuda: compute capabilities of the kernels (device/cuda/cuda.mk says where CUDA is searched)
#   FLOATX=bf16|float         DEVICE=emulated: parameters and activations in bf16, as on a GPU, or in float (to compare with the CPU device)

SHELL := /bin/bash
ifeq ($(origin DEVICE),undefined)
  DEVICE := $(shell if command -v nvcc >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
  $(info DEVICE=$(DEVICE) (picked: $(if $(filter cuda,$(DEVICE)),nvcc and a GPU are here,no nvcc with a GPU here); override with DEVICE=cpu|cuda|emulated))
endif
ifeq ($(filter cpu cuda emulated,$(DEVICE)),)
  $(error DEVICE=$(DEVICE): unknown; legal values are cpu, cuda, emulated)
endif
MPI ?= 1
SANITIZE ?= 0
ARCH ?= native
FLOATX ?= bf16
CUDNN ?= 1
WERROR ?= 1

BUILD := build/$(DEVICE)$(if $(filter emulated-float,$(DEVICE)-$(FLOATX)),-float)$(if $(filter 0,$(MPI)),-single)$(if $(filter cuda-0,$(DEVICE)-$(CUDNN)),-no-cudnn)$(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(filter races,$(SANITIZE)),-races)
CC := gcc
CXX := g++
ERRORS := $(if $(filter 1,$(WERROR)),-Werror)
# The last: clang's warning about loops that it does not vectorize.
WARN := -Wall -Wextra $(ERRORS) -Wc++-compat -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wno-pass-failed
# clang 14 accepts -march=native on x86-64 only; on aarch64 -mcpu=native selects architecture and tuning, for both compilers.
TARGET := $(if $(filter aarch64-native,$(shell uname -m)-$(ARCH)),-mcpu=native,-march=$(ARCH))
OPT := -O3 $(TARGET) -fno-math-errno -fno-trapping-math
ifeq ($(SANITIZE),1)
  OPT := -O1 $(TARGET) -fno-math-errno -fno-trapping-math -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -D__SANITIZE_ADDRESS__=1 # gcc defines the last one itself
endif
# With sanitizers, the host code of the trainer at -O0: compiling it then takes a fifth, and its programs spend their time in the device's objects.
HOST_OPT := $(if $(filter 0,$(SANITIZE)),,-O0)
# -g1: what backtraces, perf and sanitizers name. Variables, too, would take the compiler a third longer, for the emulated kernels half as long again.
# By itself, -std=c11 forbids fused multiply-add, which is half of a CPU's arithmetic.
CFLAGS := -std=c11 -ffp-contract=fast -D_GNU_SOURCE -DOMPI_SKIP_MPICXX=1 -g1 $(OPT) -fopenmp $(WARN) -Ibuild

# We prefer OpenBLAS on OpenMP threads, which shares one thread pool with our own loops; any other OpenBLAS works too.
BLAS_DIR := $(firstword $(wildcard /usr/lib/*/openblas-openmp))
comma := ,
LIBS := $(if $(BLAS_DIR),-L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR)) -lopenblas -lcjson -lm
ifeq ($(MPI),1)
  MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
  LIBS += $(shell mpicc --showme:link 2>/dev/null)
  COMM_SOURCE := device/cpu/comm_mpi.c
else
  COMM_SOURCE := device/cpu/comm_single.c
endif

ifeq ($(DEVICE)-$(SANITIZE),cpu-races)
  $(error SANITIZE=races is for DEVICE=emulated, and DEVICE=cuda over test/fake_cuda.c)
endif

# The sources of the device layer. The kernels (device/cuda/*.cu) are the same source for a GPU and for the emulation on the CPU.
KERNELS := $(sort $(wildcard device/cuda/*.cu))
ifeq ($(DEVICE),cpu)
  DEVICE_SOURCES := $(addprefix device/cpu/,device.c host_memory.c ops.c attention.c) $(COMM_SOURCE)
else ifeq ($(DEVICE),emulated)
  DEVICE_SOURCES := $(KERNELS) $(addprefix device/cuda/,device_emulated.c linear_emulated.c attention_blocks.c attention_emulated.c) device/cpu/host_memory.c $(COMM_SOURCE)
  DEVICE_FLAGS := -DDEVICE_EMULATED $(if $(filter bf16,$(FLOATX)),-DDEVICE_BF16)
  CFLAGS += $(DEVICE_FLAGS)
  KERNEL_COMPILER := $(CXX) -x c++ -std=c++17 -D_GNU_SOURCE -g1 $(OPT) -Wall -Wextra $(ERRORS) -Wno-unknown-pragmas $(DEVICE_FLAGS)
  LIBS += -lstdc++
  ifeq ($(SANITIZE),races)
    DEVICE_SOURCES += device/cuda/races.cc
    CFLAGS += -DEMULATION_RACES
    KERNEL_COMPILER += -DEMULATION_RACES
    INSTRUMENTED := -fsanitize=thread --param tsan-instrument-func-entry-exit=0
    LIBS += -ldl
  endif
else
  include device/cuda/cuda.mk
  DEVICE_SOURCES := $(KERNELS) $(addprefix device/cuda/,device_cuda.c linear_cublaslt.c attention_blocks.c) \
                    $(addprefix device/cuda/,$(if $(filter 0,$(CUDNN)),attention_by_hand.c,attention_graph.c attention_cudnn.c))
  DEVICE_SOURCES += $(if $(filter 1,$(MPI)),device/cuda/comm_nccl.c device/cuda/comm_host.c,$(COMM_SOURCE))
  DEVICE_FLAGS := -DDEVICE_BF16
  CFLAGS += $(DEVICE_FLAGS) $(if $(filter 0,$(CUDNN)),-DWITHOUT_CUDNN) $(CUDA_INCLUDES)
  KERNEL_COMPILER := $(NVCC) -x cu -std=c++17 -O3 -lineinfo $(CUDA_CODE) -Xcompiler -Wall,-Wextra $(if $(ERRORS),-Werror all-warnings -Xcompiler -Werror) \
                     $(DEVICE_FLAGS) $(PTXAS)
  LIBS := $(filter-out -lopenblas -L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR),$(LIBS)) $(CUDA_LIBS)
endif
DEVICE_OBJECTS := $(addprefix $(BUILD)/,$(addsuffix .o,$(basename $(DEVICE_SOURCES))))
HEADERS := $(wildcard *.h *.cuh device/*.h device/cpu/*.h device/cuda/*.h device/cuda/*.cuh test/*.h) build/cluster_texts.h
ON_DEVICE := $(shell grep -l '^// device:' test/test_*.c) # tests of one device: the first lines say "// device: emulated"
ON_THIS := $(filter-out $(if $(filter 0,$(CUDNN)),$(wildcard test/test_cudnn_*.c)),$(shell grep -l '^// device: $(DEVICE)' test/test_*.c))
TESTS := $(patsubst test/%.c,$(BUILD)/test/%,$(filter-out $(ON_DEVICE),$(wildcard test/test_*.c)) $(ON_THIS))

.PHONY: all test demo bench clean tests tools
all: $(BUILD)/train_llama
	@ln -sf $(BUILD)/train_llama train_llama

build/cluster_texts.h: dev/embed_clusters.sh $(wildcard clusters/*.txt)
	@mkdir -p $(@D)
	dev/embed_clusters.sh >$@.$$$$ && mv $@.$$$$ $@

$(BUILD)/train_llama: $(BUILD)/train_llama.o $(DEVICE_OBJECTS)
	$(CC) $(CFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/train_llama.o: train_llama.cu $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(HOST_OPT) -x c -c $< -o $@

$(BUILD)/device/%.o: device/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(MPI_CFLAGS) -c $< -o $@

$(BUILD)/device/%.o: device/%.cu $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) $(INSTRUMENTED) -c $< -o $@
$(BUILD)/device/%.o: device/%.cc $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) -c $< -o $@

# Tests at -O1: most compile the whole trainer, and their time is spent in the device's objects. Benchmarks are built like the product.
TEST_OPT = $(if $(filter bench_%,$*),,-O1) $(if $(shell grep -l '"model_fixture.h"' $<),$(HOST_OPT))
RANKS_OF = $(shell sed -n '1s|^// ranks: \([0-9]\)|-DTEST_RANKS=\1|p' $<) # test/test.h
$(BUILD)/test/%: test/%.c $(DEVICE_OBJECTS) $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(RANKS_OF) $(TEST_OPT) $< $(DEVICE_OBJECTS) -o $@ $(LIBS)

# SANITIZE=races: kernels with races, which it must find.
$(BUILD)/test/emulation_faults: test/emulation_faults.cu $(BUILD)/device/cuda/races.o $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) $(INSTRUMENTED) -c $< -o $@.o
	$(CXX) $@.o $(BUILD)/device/cuda/races.o -o $@ -ldl

tools: $(BUILD)/text_to_tokens
$(BUILD)/text_to_tokens: dev/text_to_tokens.c common.h files.h dataloader.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ -lm

tests: $(TESTS)
test:
	@test/run.sh
demo:
	@scripts/demo.sh
bench:
	@scripts/bench.sh
clean:
	rm -rf build train_llama

# cuDNN's support check needs no driver, but a library with the driver's functions. The toolkit has a placeholder for it.
$(BUILD)/test/test_cudnn_graphs: CFLAGS += -DCUDA_STUB='"$(dir $(CUDART_LIBRARY))stubs/libcuda.so"'

# Programs on the CUDA device without a GPU (device/cuda/cuda.mk), at -O1 like all tests.
.PHONY: emulated-kernels
emulated-kernels: # one make for all programs that need them; without BUILD= a BUILD given to this make would reach it
	$(MAKE) --no-print-directory DEVICE=emulated BUILD=$(EMULATED) $(WITHOUT_GPU_KERNELS)
$(BUILD)/train_llama-without-gpu: $(BUILD)/train_llama.o test/fake_cuda.c $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | emulated-kernels
	$(CC) $(CFLAGS) -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(WITHOUT_GPU_KERNELS) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)
$(BUILD)/test/%-without-gpu: test/%.c test/fake_cuda.c $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | emulated-kernels
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(WITHOUT_GPU_KERNELS) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)

# The same with what nvcc makes of the kernels: its PTX for one GPU becomes C++ (test/ptx_to_cc.py; -w because it is generated), launched by nvcc's own
# host code.
PTX_ARCH ?= 90
PTX := $(BUILD)/ptx-$(PTX_ARCH)
PTX_KERNELS := $(PTX)/ptx_launch.o $(KERNELS:device/cuda/%.cu=$(PTX)/%.o) $(KERNELS:%.cu=$(BUILD)/%.o)
.PRECIOUS: $(PTX)/%.ptx $(PTX)/%.cc
define MAKE_PTX
	@mkdir -p $(@D)
	$(NVCC) -x cu -std=c++17 -O3 -arch=compute_$(PTX_ARCH) -ptx $(DEVICE_FLAGS) $< -o $@
endef
$(PTX)/%.ptx: device/cuda/%.cu $(HEADERS)
	$(MAKE_PTX)
$(PTX)/%.ptx: test/%.cu $(HEADERS)
	$(MAKE_PTX)
$(PTX)/%.cc: $(PTX)/%.ptx test/ptx_to_cc.py
	test/ptx_to_cc.py $< >$@ || { rm $@; exit 1; }
$(PTX)/%.o: $(PTX)/%.cc test/ptx.h
	$(CXX) -std=c++17 -D_GNU_SOURCE -DDEVICE_BF16 -Itest -O1 $(TARGET) -fwrapv -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fno-exceptions -w -c $< -o $@
$(PTX)/ptx_launch.o: test/ptx_launch.cc $(HEADERS)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -D_GNU_SOURCE -DDEVICE_BF16 -g -O2 -Wall -Wextra -Werror -c $< -o $@
$(BUILD)/test/%-ptx$(PTX_ARCH): test/%.c test/fake_cuda.c $(PTX_KERNELS) $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | emulated-kernels
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(PTX_KERNELS) $(filter-out $(KERNELS:%.cu=$(EMULATED)/%.o),$(WITHOUT_GPU_KERNELS)) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)

# Kernels with faults, which it must find.
$(BUILD)/test/emulation_faults-ptx$(PTX_ARCH): test/emulation_faults.cu $(PTX)/emulation_faults.o $(PTX)/ptx_launch.o $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) -c $< -o $@.o
	$(CXX) $@.o $(PTX)/emulation_faults.o $(PTX)/ptx_launch.o -o $@

# Fuzz targets, test/fuzz: `make fuzz` runs each for FUZZ_SECONDS under libFuzzer (clang); test_fuzz.sh runs them briefly with our own driver (gcc).
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := $(patsubst test/fuzz/%.c,%,$(wildcard test/fuzz/fuzz_*.c))
.PHONY: fuzz fuzz-short
fuzz: $(addprefix build/fuzz/,$(FUZZ_TARGETS))
	@test/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)
fuzz-short: $(addprefix $(BUILD)/fuzz/,$(FUZZ_TARGETS))
build/fuzz/%: test/fuzz/%.c test/fuzz/fuzz.h $(HEADERS)
	@mkdir -p $(@D)
	clang -std=c11 -D_GNU_SOURCE -Ibuild -g -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $< -o $@ -lcjson -lm
$(BUILD)/fuzz/%: test/fuzz/%.c test/fuzz/driver.c test/fuzz/fuzz.h $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< test/fuzz/driver.c -o $@ -lcjson -lm

# The schedule is tested against recording fakes of the device layer.
$(BUILD)/test/test_schedule: DEVICE_OBJECTS :=
