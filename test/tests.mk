# Programs of test/, by the Makefile's variables. test/run.sh runs them.

ON_DEVICE := $(shell grep -l '^// device:' test/test_*.c) # tests of one device: the first lines say "// device: emulated"
ON_THIS := $(filter-out $(if $(filter 0,$(CUDNN)),$(wildcard test/test_cudnn_*.c)),$(shell grep -l '^// device: $(DEVICE)' test/test_*.c))
TESTS := $(patsubst test/%.c,$(BUILD)/test/%,$(filter-out $(ON_DEVICE),$(wildcard test/test_*.c)) $(ON_THIS))

.PHONY: tests
tests: $(TESTS)

# Tests at -O1; those that compile the whole trainer at -O0, which takes a third, because their time is spent in the device's objects.
# Benchmarks are built like the product.
TEST_OPT = $(if $(filter bench_%,$*),,$(if $(shell grep -l '"model_fixture.h"' $<),-O0,-O1))
RANKS_OF = $(shell sed -n '1s|^// ranks: \([0-9]\)|-DTEST_RANKS=\1|p' $<) # test/test.h
$(BUILD)/test/%: test/%.c $(DEVICE_OBJECTS) $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(RANKS_OF) $(TEST_OPT) $< $(DEVICE_OBJECTS) -o $@ $(LIBS)

ifeq ($(DEVICE),cuda)
$(BUILD)/test/bench_cuda: $(BUILD)/test/hold_sms.o
$(BUILD)/test/bench_cuda: DEVICE_OBJECTS += $(BUILD)/test/hold_sms.o
$(BUILD)/test/hold_sms.o: test/hold_sms.cu $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) -c $< -o $@
endif

# SANITIZE=races: kernels with races, which it must find.
$(BUILD)/test/emulation_faults: test/emulation_faults.cu $(BUILD)/device/cuda/races.o $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) $(INSTRUMENTED) -c $< -o $@.o
	$(CXX) $@.o $(BUILD)/device/cuda/races.o -o $@ -ldl

# cuDNN's support check needs no driver, but a library with the driver's functions. The toolkit has a placeholder for it.
$(BUILD)/test/test_cudnn_graphs: CFLAGS += -DCUDA_STUB='"$(dir $(CUDART_LIBRARY))stubs/libcuda.so"'

# Programs on the CUDA device without a GPU, at -O1 like all tests: its own host code (memory, streams, products, communication) over
# test/fake_cuda.c, and the emulated kernels (SANITIZE=races: with the race detector).
EMULATED := build/emulated$(if $(filter races,$(SANITIZE)),-races)
WITHOUT_GPU_KERNELS := $(KERNELS:%.cu=$(EMULATED)/%.o) \
    $(addprefix $(EMULATED)/device/cuda/,attention_blocks.o attention_emulated.o $(if $(filter races,$(SANITIZE)),races.o))
WITHOUT_GPU_SOURCES := $(KERNELS) $(addprefix device/cuda/,attention_blocks.c attention_emulated.c races.cc)
WITHOUT_GPU_HOST := $(addprefix $(BUILD)/device/cuda/,device_cuda.o linear_cublaslt.o comm_nccl.o comm_host.o)
WITHOUT_GPU_LIBS := $(BLAS) $(LIBS) -lstdc++ -lpthread
.PHONY: emulated-kernels
emulated-kernels: # one make for all programs that need them; without BUILD= a BUILD given to this make would reach it
	$(MAKE) --no-print-directory DEVICE=emulated BUILD=$(EMULATED) $(WITHOUT_GPU_KERNELS)
$(BUILD)/train_llama-without-gpu: $(BUILD)/train_llama.o test/fake_cuda.c $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | \
    emulated-kernels
	$(CC) $(CFLAGS) -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(WITHOUT_GPU_KERNELS) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)
$(BUILD)/test/%-without-gpu: test/%.c test/fake_cuda.c $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | emulated-kernels
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DWITHOUT_GPU -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(WITHOUT_GPU_KERNELS) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)

# The same with what nvcc makes of the kernels: its PTX for one GPU becomes C++ (test/ptx_to_cc.py; -w because it is generated), launched by
# nvcc's own host code.
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
	$(CXX) -std=c++17 -D_GNU_SOURCE -DDEVICE_BF16 -Itest -O1 $(TARGET) \
	    -fwrapv -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fno-exceptions -w -c $< -o $@
$(PTX)/ptx_launch.o: test/ptx_launch.cc $(HEADERS)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -D_GNU_SOURCE -DDEVICE_BF16 -g -O2 -Wall -Wextra -Werror -c $< -o $@
$(BUILD)/test/%-ptx$(PTX_ARCH): test/%.c test/fake_cuda.c $(PTX_KERNELS) $(WITHOUT_GPU_HOST) $(WITHOUT_GPU_SOURCES) $(HEADERS) | \
    emulated-kernels
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DWITHOUT_GPU -O1 $(MPI_CFLAGS) $< test/fake_cuda.c $(PTX_KERNELS) \
	    $(filter-out $(KERNELS:%.cu=$(EMULATED)/%.o),$(WITHOUT_GPU_KERNELS)) $(WITHOUT_GPU_HOST) -o $@ $(WITHOUT_GPU_LIBS)

# Kernels with faults, which it must find.
$(BUILD)/test/emulation_faults-ptx$(PTX_ARCH): test/emulation_faults.cu $(PTX)/emulation_faults.o $(PTX)/ptx_launch.o $(HEADERS)
	@mkdir -p $(@D)
	$(KERNEL_COMPILER) -c $< -o $@.o
	$(CXX) $@.o $(PTX)/emulation_faults.o $(PTX)/ptx_launch.o -o $@

# Fuzz targets, test/fuzz: `make fuzz` runs each for FUZZ_SECONDS under libFuzzer (clang); test_fuzz.sh, briefly, with our own driver (gcc).
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := $(patsubst test/fuzz/%.c,%,$(wildcard test/fuzz/fuzz_*.c))
.PHONY: fuzz fuzz-short
fuzz: $(addprefix build/fuzz/,$(FUZZ_TARGETS))
	@test/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)
fuzz-short: $(addprefix $(BUILD)/fuzz/,$(FUZZ_TARGETS))
build/fuzz/%: test/fuzz/%.c test/fuzz/fuzz.h $(HEADERS)
	@mkdir -p $(@D)
	clang -std=c11 -D_GNU_SOURCE -Ibuild $(DEPS:%=-I%/include) -g -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas \
	    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $< -o $@ $(DEPS_LIBS) -lcjson -lm
$(BUILD)/fuzz/%: test/fuzz/%.c test/fuzz/driver.c test/fuzz/fuzz.h $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< test/fuzz/driver.c -o $@ $(DEPS_LIBS) -lcjson -lm

# The schedule is tested against recording fakes of the device layer.
$(BUILD)/test/test_schedule: DEVICE_OBJECTS :=
