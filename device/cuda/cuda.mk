# DEVICE=cuda: finds CUDA, cuDNN and NCCL, says what it found, and fails with the name of what is missing. Included by the Makefile.
#   CUDA_HOME=DIR           the toolkit, if it is not where nvcc is
#   CUDA_ARCHS="80 90 100"  compute capabilities to compile kernels for (100: from CUDA 12.8 on); one alone compiles faster
# Looked at: CUDA_HOME, DEPS, nvcc's own tree (in conda its targets/), /usr/local/cuda, /usr, pip's nvidia-* wheels of the path's python3.
NVCC := $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) $(shell command -v nvcc 2>/dev/null) \
        $(wildcard /usr/local/cuda/bin/nvcc))
WHEELS := $(shell python3 -c 'import site; print(*[p + "/nvidia" for p in site.getsitepackages() + [site.getusersitepackages()]])' \
          2>/dev/null)
NVCC_RELEASE := $(if $(NVCC),$(shell $(NVCC) --version | sed -nE 's/.*release ([0-9.]+).*/\1/p'))
# pip's cuDNN may be for another CUDA: its package is then nvidia_cudnn_cu12, say.
CUDA_MAJOR := $(firstword $(subst ., ,$(NVCC_RELEASE)))
other_cuda = $(if $(wildcard $(1)/../nvidia_cudnn_cu$(CUDA_MAJOR)-*),,$(wildcard $(1)/../nvidia_cudnn_cu*))
CUDA_PLACES := $(CUDA_HOME) $(DEPS) $(patsubst %/bin/nvcc,%,$(NVCC)) $(wildcard $(patsubst %/bin/nvcc,%/targets/*-linux,$(NVCC))) \
               /usr/local/cuda /usr \
               $(foreach wheels,$(WHEELS),$(filter-out $(if $(call other_cuda,$(wheels)),%/cudnn),$(wildcard $(wheels)/*)))
header_in = $(firstword $(wildcard $(1)/include/$(2) $(1)/include/*-linux-gnu/$(2)))
library_in = $(firstword $(foreach lib,lib64 lib lib/x86_64-linux-gnu lib/aarch64-linux-gnu,$(wildcard $(1)/$(lib)/$(2)) \
             $(wildcard $(1)/$(lib)/$(2).*)))
places_of = $(foreach place,$(CUDA_PLACES),$(if $(and $(call header_in,$(place),$(1)),$(call library_in,$(place),$(2))),$(place)))
header_version = $(shell sed -nE 's/^\#define +($(2)) +([0-9]+).*/\3/p' $(1) | head -3 | paste -sd .)

ifeq ($(NVCC),)
  $(error DEVICE=cuda: nvcc not found. Install the CUDA toolkit (12.4 or newer), or give CUDA_HOME=DIR; make DEVICE=cpu needs no GPU)
endif
ifndef CUDA_ARCHS
  CUDA_ARCHS := $(strip 80 90 $(shell printf '12.8\n$(NVCC_RELEASE)\n' | sort -VC && echo 100))
endif
# Each is a header, a library (the name with a version where pip leaves out the plain one), how to install it, and the least version, which
# the file $(5) says by the numbers $(6). Header and library are those of one place, the first that has both and is not older: beside the
# machine's own, PyTorch brings newer ones. $(8): a version from which on it is better; then a later place that has it is taken, unless DEPS
# names one.
define need
  $(1)_PLACES := $$(call places_of,$(2),$(3))
  from_version = $$(foreach place,$$($(1)_PLACES),$$(if $$(call not_older,$$(1),$$(call version_in,$$(place),$(5),$(6))),$$(place)))
  $(1)_PLACE := $$(firstword $(if $(7),$$(filter $$(DEPS),$$(call from_version,$(7))) $(if $(8),$$(call from_version,$(8))) \
      $$(call from_version,$(7)),$$($(1)_PLACES)))
  ifeq ($$($(1)_PLACES),)
    $$(error DEVICE=cuda: $(1) not found: no $(2) with $(3) under $$(CUDA_PLACES). $(4))
  endif
  ifeq ($$($(1)_PLACE),)
    $$(error DEVICE=cuda: $(1) not found: $$(call header_in,$$(firstword $$($(1)_PLACES)),$(2)) is version \
      $$(call version_in,$$(firstword $$($(1)_PLACES)),$(5),$(6)). $(4))
  endif
  $(1)_HEADER := $$(call header_in,$$($(1)_PLACE),$(2))
  $(1)_LIBRARY := $$(call library_in,$$($(1)_PLACE),$(3))
  $(1)_VERSION := $(if $(7),$$(call version_in,$$($(1)_PLACE),$(5),$(6)))
endef
version_in = $(call header_version,$(call header_in,$(1),$(2)),$(3))
not_older = $(shell printf '$(1)\n$(2)\n' | sort -VC && echo yes)
$(eval $(call need,CUDART,cuda_runtime_api.h,libcudart.so,It belongs to the CUDA toolkit))
$(eval $(call need,CUBLASLT,cublasLt.h,libcublasLt.so,It belongs to the CUDA toolkit))
CUDA_PARTS := CUDART CUBLASLT
ifeq ($(CUDNN),1)
  CUDNN_HELP := cuDNN 9.10.2 or newer: NVIDIA's packages or pip install nvidia-cudnn-cu13; CUDNN=0 builds with hand-written attention alone
  $(eval $(call need,CUDNN,cudnn_graph.h,libcudnn.so,$(CUDNN_HELP),cudnn_version.h,CUDNN_(MAJOR|MINOR|PATCHLEVEL),9.10.2,9.15.1))
  CUDA_PARTS := CUDNN $(CUDA_PARTS)
endif
ifeq ($(MPI),1)
  NCCL_HELP := NCCL 2.26.5 or newer: NVIDIA's packages or pip install nvidia-nccl-cu13; MPI=0 builds for one rank without it
  $(eval $(call need,NCCL,nccl.h,libnccl.so,$(NCCL_HELP),nccl.h,NCCL_(MAJOR|MINOR|PATCH),2.26.5))
  CUDA_PARTS := NCCL $(CUDA_PARTS)
endif

# Where headers and libraries are looked for: NCCL's and cuDNN's folders before the toolkit's, which may hold older ones, and all of these
# before the system's, which may hold another CUDA. Each once.
each_once = $(if $(1),$(firstword $(1)) $(call each_once,$(filter-out $(firstword $(1)),$(1))))
SYSTEM_FOLDERS := /usr/include/% /usr/lib/% /usr/lib64/%
in_order = $(call each_once,$(filter-out $(SYSTEM_FOLDERS),$(1)) $(filter $(SYSTEM_FOLDERS),$(1)))
CUDA_INCLUDES := $(addprefix -isystem ,$(call in_order,$(foreach part,$(CUDA_PARTS),$(dir $($(part)_HEADER)))))
# cuDNN compiles with NVRTC, which it looks for only then; if it finds none, or that of another CUDA, no graph works. So CUDA's own is
# loaded from the start. NVRTC in turn looks for a library of its own (libnvrtc-builtins); for that, RPATH counts and RUNPATH does not.
NVRTC_LIBRARY := $(if $(CUDNN_LIBRARY),$(firstword $(foreach place,$(CUDA_PLACES),$(call library_in,$(place),libnvrtc.so))))
CUDA_LIBRARIES := $(foreach part,$(CUDA_PARTS),$($(part)_LIBRARY))
CUDA_LIBS := -Wl$(comma)--disable-new-dtags $(CUDA_LIBRARIES) \
             $(if $(NVRTC_LIBRARY),-Wl$(comma)--no-as-needed $(NVRTC_LIBRARY) -Wl$(comma)--as-needed) \
             $(addprefix -Wl$(comma)-rpath$(comma),$(patsubst %/,%,$(call in_order,$(dir $(CUDA_LIBRARIES) $(NVRTC_LIBRARY))))) \
             -lstdc++ -lpthread -ldl
CUDA_CODE := $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
             -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
$(info CUDA $(NVCC_RELEASE) ($(NVCC)) for sm $(CUDA_ARCHS), $(if $(CUDNN_HEADER),cuDNN $(CUDNN_VERSION) ($(CUDNN_LIBRARY)),no cuDNN)$(if \
    $(NCCL_HEADER),$(comma) NCCL $(NCCL_VERSION) ($(NCCL_LIBRARY))))
