# train_llama. `make` builds, `make test` proves, `make demo` trains a small Llama on 4 ranks, `make bench` measures.
#   DEVICE=cpu|cuda|emulated  which device layer (default: cuda when nvcc and a GPU are found, else cpu)
#   MPI=0                     a build for one rank, without Open MPI
#   SANITIZE=1                AddressSanitizer and UndefinedBehaviorSanitizer
#   SANITIZE=races            DEVICE=emulated: a race detector for the kernels (device/cuda/races.cc)
#   WERROR=0                  compiler warnings are no errors (another compiler may warn of more)
#   ARCH=native               -march= of the CPU code
#   CC=clang CXX=clang++      instead of gcc and g++ (package libomp-dev); SANITIZE=races needs g++
#   DEPS="DIR ..."            where else Open MPI, OpenBLAS, cJSON, cuDNN, NCCL are: DIR/include, DIR/lib (no root: docs/troubleshooting.md)
#   CUDNN=0                   DEVICE=cuda: without cuDNN; hand-written kernels compute all attention (slower)
#   CUDA_ARCHS="80 90 100"    DEVICE=cuda: compute capabilities of the kernels (device/cuda/cuda.mk says where CUDA is searched)
#   FLOATX=bf16|float         DEVICE=emulated: parameters and activations in bf16, as on a GPU, or in float (to compare with the CPU device)

SHELL := /bin/bash
ifeq ($(origin DEVICE),undefined)
  DEVICE := $(shell if command -v nvcc >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
  $(info DEVICE=$(DEVICE) (picked: $(if $(filter cuda,$(DEVICE)),nvcc and a GPU are here,no nvcc with a GPU here); \
    override with DEVICE=cpu|cuda|emulated))
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

BUILD := build/$(DEVICE)$(if $(filter emulated-float,$(DEVICE)-$(FLOATX)),-float)$(if $(filter 0,$(MPI)),-single)$(if \
    $(filter cuda-0,$(DEVICE)-$(CUDNN)),-no-cudnn)$(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(filter races,$(SANITIZE)),-races)
CC := gcc
CXX := g++
ERRORS := $(if $(filter 1,$(WERROR)),-Werror)
# Counts and offsets of elements have 64 bits: one that is put into an int, unless it says so by a cast, is a warning. (The last: what
# clang says of enum constants beside doubles.)
NARROW := -Wconversion -Wno-sign-conversion -Wno-float-conversion -Wno-enum-float-conversion
# The last: clang's warning about loops that it does not vectorize.
WARN := -Wall -Wextra $(ERRORS) $(NARROW) -Wc++-compat -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wno-pass-failed
# clang 14 accepts -march=native on x86-64 only; on aarch64 -mcpu=native selects architecture and tuning, for both compilers.
TARGET := $(if $(filter aarch64-native,$(shell uname -m)-$(ARCH)),-mcpu=native,-march=$(ARCH))
OPT := -O3 $(TARGET) -fno-math-errno -fno-trapping-math
ifeq ($(SANITIZE),1)
  # gcc defines the last one itself.
  OPT := -O2 $(TARGET) -fno-math-errno -fno-trapping-math -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
         -D__SANITIZE_ADDRESS__=1
endif
# With sanitizers, the host code of the trainer at -O0: compiling it then takes a fifth, and its programs spend their time in the device's
# objects. In emulation they do, too, and -O1 takes half of -O3.
HOST_OPT := $(if $(filter 0,$(SANITIZE)),$(if $(filter emulated,$(DEVICE)),-O1),-O0)
# -g1: what backtraces, perf and sanitizers name. Variables, too, would take the compiler a third longer, for the emulated kernels half as
# long again. By itself, -std=c11 forbids fused multiply-add, which is half of a CPU's arithmetic.
CFLAGS := -std=c11 -ffp-contract=fast -D_GNU_SOURCE -DOMPI_SKIP_MPICXX=1 -g1 $(OPT) -fopenmp $(WARN) -Ibuild $(DEPS:%=-I%/include)

# We prefer OpenBLAS on OpenMP threads, which shares one thread pool with our own loops; any other OpenBLAS works too.
BLAS_DIR := $(firstword $(wildcard /usr/lib/*/openblas-openmp))
comma := ,
DEPS_LIBS := $(foreach lib,$(wildcard $(DEPS:%=%/lib) $(DEPS:%=%/lib64)),-L$(lib) -Wl$(comma)-rpath$(comma)$(lib))
BLAS := $(if $(BLAS_DIR),-L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR)) -lopenblas
LIBS := $(DEPS_LIBS) $(BLAS) -lcjson -lm
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
  DEVICE_SOURCES := $(addprefix device/cpu/,device.c blas.c host_memory.c ops.c attention.c) $(COMM_SOURCE)
else ifeq ($(DEVICE),emulated)
  DEVICE_SOURCES := $(KERNELS) $(addprefix device/cuda/,device_emulated.c linear_emulated.c attention_blocks.c attention_emulated.c) \
                    device/cpu/blas.c device/cpu/host_memory.c $(COMM_SOURCE)
  DEVICE_FLAGS := -DDEVICE_EMULATED $(if $(filter bf16,$(FLOATX)),-DDEVICE_BF16)
  CFLAGS += $(DEVICE_FLAGS)
  KERNEL_COMPILER := $(CXX) -x c++ -std=c++17 -D_GNU_SOURCE -g1 $(OPT) -Wall -Wextra $(ERRORS) $(NARROW) -Wno-unknown-pragmas \
                     $(DEVICE_FLAGS)
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
  KERNEL_COMPILER := $(NVCC) -x cu -std=c++17 -O3 -lineinfo $(CUDA_CODE) -Xcompiler -Wall,-Wextra \
                     $(if $(ERRORS),-Werror all-warnings -Xcompiler -Werror) $(DEVICE_FLAGS) $(PTXAS)
  LIBS := $(filter-out $(BLAS),$(LIBS)) $(CUDA_LIBS)
endif
DEVICE_OBJECTS := $(addprefix $(BUILD)/,$(addsuffix .o,$(basename $(DEVICE_SOURCES))))
HEADERS := $(wildcard *.h *.cuh device/*.h device/cpu/*.h device/cuda/*.h device/cuda/*.cuh test/*.h) build/cluster_texts.h \
           $(BUILD)/flags

.PHONY: all train_llama test demo bench clean tools
all train_llama: $(BUILD)/train_llama
	@ln -sf $(BUILD)/train_llama train_llama

build/cluster_texts.h: dev/embed_clusters.sh $(wildcard clusters/*.txt)
	@mkdir -p $(@D)
	dev/embed_clusters.sh >$@.$$$$ && mv $@.$$$$ $@

# How the program is compiled and linked, but for what warnings do; releases that paths do not name; the sum is of the macros of the
# compiler and of the CPU it compiles for, which ARCH=native does not name. Where this changes, all is compiled anew.
$(BUILD)/flags: export FLAGS := $(filter-out -Werror all-warnings -Xcompiler $(PTXAS),$(CC) $(CFLAGS) $(HOST_OPT) $(MPI_CFLAGS) \
    $(KERNEL_COMPILER) $(LIBS)) $(NVCC_RELEASE) $(CUDNN_VERSION) $(NCCL_VERSION) \
    $(shell $(CC) $(TARGET) -dM -E -x c /dev/null 2>/dev/null | cksum)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@cmp -s - $@ <<<"$$FLAGS" || echo "$$FLAGS" >$@
.PHONY: FORCE

# Names the first of the other projects' headers that is missing, before a compiler does.
$(BUILD)/found:
	@for header in cjson/cJSON.h $(if $(filter cuda,$(DEVICE)),,cblas.h) $(if $(filter 1,$(MPI)),mpi.h); do \
	    $(CC) $(CFLAGS) $(MPI_CFLAGS) -include $$header -E -x c /dev/null >/dev/null 2>&1 && continue; \
	    echo "error: $$header not found: scripts/setup.sh installs what is missing;" \
	        "DEPS=DIR: it is in DIR/include (docs/troubleshooting.md)" >&2; exit 1; \
	done; mkdir -p $(@D) && touch $@

$(BUILD)/train_llama: $(BUILD)/train_llama.o $(DEVICE_OBJECTS)
	$(CC) $(CFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/train_llama.o: train_llama.cu $(HEADERS) | $(BUILD)/found
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(HOST_OPT) -x c -c $< -o $@

$(BUILD)/device/%.o: device/%.c $(HEADERS) | $(BUILD)/found
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(MPI_CFLAGS) -c $< -o $@

$(BUILD)/device/%.o: device/%.cu $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) $(INSTRUMENTED) -c $< -o $@
$(BUILD)/device/%.o: device/%.cc $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) -c $< -o $@

tools: $(BUILD)/text_to_tokens
$(BUILD)/text_to_tokens: dev/text_to_tokens.c common.h files.h dataloader.h sequence_shard.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ -lm

include test/tests.mk
test:
	@test/run.sh
demo:
	@scripts/demo.sh
bench:
	@scripts/bench.sh
clean:
	rm -rf build train_llama
