# DEVICE=cuda: finds CUDA, cuDNN and NCCL, says what it found, and fails with the name of what is missing. Included by the Makefile.
#   CUDA_HOME=DIR           the toolkit, if it is not where nvcc is
#   CUDA_ARCHS="80 90 100"  compute capabilities to compile kernels for (100: from CUDA 12.8 on); one alone compiles faster
# Places looked at: CUDA_HOME, DEPS, nvcc's own tree, /usr/local/cuda, /usr, and pip's nvidia-* wheels of the python3 on the path.
NVCC := $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
WHEELS := $(shell python3 -c 'import site; print(*[p + "/nvidia" for p in site.getsitepackages() + [site.getusersitepackages()]])' 2>/dev/null)
CUDA_PLACES := $(CUDA_HOME) $(DEPS) $(patsubst %/bin/nvcc,%,$(NVCC)) /usr/local/cuda /usr $(wildcard $(addsuffix /*,$(WHEELS)))
find_header = $(firstword $(foreach place,$(CUDA_PLACES),$(wildcard $(place)/include/$(1) $(place)/include/*-linux-gnu/$(1))))
find_library = $(firstword $(foreach place,$(CUDA_PLACES),$(foreach lib,lib64 lib lib/x86_64-linux-gnu lib/aarch64-linux-gnu,$(wildcard $(place)/$(lib)/$(1)) $(wildcard $(place)/$(lib)/$(1).*))))
header_version = $(shell sed -nE 's/^\#define +($(2)) +([0-9]+).*/\3/p' $(1) | head -3 | paste -sd .)

ifeq ($(NVCC),)
  $(error DEVICE=cuda: nvcc not found. Install the CUDA toolkit (12.4 or newer), or give CUDA_HOME=DIR; make DEVICE=cpu needs no GPU)
endif
NVCC_RELEASE := $(shell $(NVCC) --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
ifndef CUDA_ARCHS
  CUDA_ARCHS := $(strip 80 90 $(shell printf '12.8\n$(NVCC_RELEASE)\n' | sort -VC && echo 100))
endif
# Each is a header, a library (the name with a version where pip leaves out the plain one), and how to install it.
define need
  $(1)_HEADER := $$(call find_header,$(2))
  $(1)_LIBRARY := $$(call find_library,$(3))
  ifeq ($$($(1)_HEADER),)
    $$(error DEVICE=cuda: $(1) not found: no $(2) under $$(CUDA_PLACES). $(4))
  endif
  ifeq ($$($(1)_LIBRARY),)
    $$(error DEVICE=cuda: $(1) not found: no $(3) under $$(CUDA_PLACES). $(4))
  endif
endef
# Its version, which must be $(2) or newer.
define need_version
  ifneq ($$(shell printf '$(2)\n$$($(1)_VERSION)\n' | sort -VC || echo older),)
    $$(error DEVICE=cuda: $(1) not found: $$($(1)_HEADER) is version $$($(1)_VERSION). $(3))
  endif
endef
$(eval $(call need,CUDART,cuda_runtime_api.h,libcudart.so,It belongs to the CUDA toolkit))
$(eval $(call need,CUBLASLT,cublasLt.h,libcublasLt.so,It belongs to the CUDA toolkit))
CUDA_PARTS := CUDART CUBLASLT
ifeq ($(CUDNN),1)
  CUDNN_HELP := cuDNN 9.10.2 or newer: NVIDIA's packages or pip install nvidia-cudnn-cu13; CUDNN=0 builds with hand-written attention alone
  $(eval $(call need,CUDNN,cudnn_graph.h,libcudnn.so,$(CUDNN_HELP)))
  CUDNN_VERSION := $(call header_version,$(dir $(CUDNN_HEADER))cudnn_version.h,CUDNN_(MAJOR|MINOR|PATCHLEVEL))
  $(eval $(call need_version,CUDNN,9.10.2,$(CUDNN_HELP)))
  CUDA_PARTS += CUDNN
endif
ifeq ($(MPI),1)
  NCCL_HELP := NCCL 2.26.5 or newer: NVIDIA's packages or pip install nvidia-nccl-cu13; MPI=0 builds for one rank without it
  $(eval $(call need,NCCL,nccl.h,libnccl.so,$(NCCL_HELP)))
  NCCL_VERSION := $(call header_version,$(NCCL_HEADER),NCCL_(MAJOR|MINOR|PATCH))
  $(eval $(call need_version,NCCL,2.26.5,$(NCCL_HELP)))
  CUDA_PARTS += NCCL
endif

CUDA_INCLUDES := $(addprefix -isystem ,$(sort $(foreach part,$(CUDA_PARTS),$(dir $($(part)_HEADER)))))
# cuDNN compiles with NVRTC, which it looks for only then; if it finds none, or that of another CUDA, no graph works. So CUDA's own is loaded from the start.
# NVRTC in turn looks for a library of its own (libnvrtc-builtins), and a program's RUNPATH does not count for that, its RPATH does.
NVRTC_LIBRARY := $(if $(CUDNN_LIBRARY),$(call find_library,libnvrtc.so))
CUDA_LIBRARIES := $(foreach part,$(CUDA_PARTS),$($(part)_LIBRARY))
CUDA_LIBS := -Wl$(comma)--disable-new-dtags $(CUDA_LIBRARIES) $(if $(NVRTC_LIBRARY),-Wl$(comma)--no-as-needed $(NVRTC_LIBRARY) -Wl$(comma)--as-needed) \
             $(addprefix -Wl$(comma)-rpath$(comma),$(patsubst %/,%,$(sort $(dir $(CUDA_LIBRARIES) $(NVRTC_LIBRARY))))) -lstdc++ -lpthread -ldl
CUDA_CODE := $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
             -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
$(info CUDA $(NVCC_RELEASE) ($(NVCC)) for sm $(CUDA_ARCHS), $(if $(CUDNN_HEADER),cuDNN $(CUDNN_VERSION) ($(CUDNN_LIBRARY)),no cuDNN)$(if \
    $(NCCL_HEADER),$(comma) NCCL $(NCCL_VERSION) ($(NCCL_LIBRARY))))
