#!/usr/bin/env bash
# Installs what the CPU build and the tests need on Debian and Ubuntu, if missing: gcc, g++, make, Python, pkill, Open MPI, OpenBLAS, cJSON.
#   scripts/setup.sh            does nothing if nothing is missing (libraries are found by compiling, however they were installed)
#   scripts/setup.sh --check    only says what is missing; exit status 1 if anything is
# DEPS="DIR ..." in the environment, or given to make: libraries are also looked for there (docs/troubleshooting.md).
# The CUDA build also needs the machine's CUDA toolkit, cuDNN and NCCL; this script leaves them alone.
set -euo pipefail
check_only=0
case "${1:-}" in
"") ;;
--check) check_only=1 ;;
--help | -h) sed -n '2,/^set -e/s/^#//p' "$0"; exit 0 ;;
*) echo "error: unknown argument $1; the only argument is --check" >&2; exit 2 ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
have() { command -v "$1" >/dev/null 2>&1; }
links() { # header library: can a program use it?
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" >"$scratch/t.c"
    local place flags=()
    for place in ${DEPS:-}; do flags+=("-I$place/include" "-L$place/lib" "-L$place/lib64"); done
    gcc "${flags[@]}" "$scratch/t.c" -o "$scratch/t" "-l$2" >/dev/null 2>&1
}

missing=()
need() { echo "setup: missing: $1 (package $2)"; missing+=("$2"); }
have gcc && echo 'int main(void) { return 0; }' >"$scratch/t.c" && gcc -fopenmp "$scratch/t.c" -o "$scratch/t" >/dev/null 2>&1 ||
    need "C compiler with OpenMP" gcc
[ ${#missing[@]} -eq 0 ] || missing+=(libc6-dev)
have g++ || need "C++ compiler (CUDA kernels under emulation)" g++
have make || need make make
have python3 && python3 -c 'import json' 2>/dev/null || need "Python (tests and plots; never a run)" python3
have pkill || need "pkill (tests)" procps
have mpicc && mpicc --showme:compile >/dev/null 2>&1 || need "Open MPI, to compile with" libopenmpi-dev
have mpirun || need "mpirun" openmpi-bin
links cblas.h openblas || need OpenBLAS libopenblas-openmp-dev
links cjson/cJSON.h cjson || need cJSON libcjson-dev

if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: nothing is missing: $(gcc -dumpfullversion | sed 's/^/gcc /'), $(mpirun --version 2>/dev/null | head -1), OpenBLAS, cJSON"
    exit 0
fi
[ $check_only -eq 0 ] || exit 1
if ! have apt-get; then
    echo "error: this machine has no apt-get. Install with your system's package manager:" \
        "gcc, g++, make, Python 3, pkill, Open MPI, OpenBLAS and cJSON, each with its headers." >&2
    exit 1
fi
install=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo; then
        echo "error: installing needs root, and there is no sudo. Ask an administrator to run: ${install[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "setup: running ${as_root[*]:-} ${install[*]}"
export DEBIAN_FRONTEND=noninteractive
if ! "${as_root[@]}" "${install[@]}"; then
    echo "setup: that failed; trying again after apt-get update"
    if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" "${install[@]}"; }; then
        echo "error: the packages could not be installed. Try by hand, as root: apt-get update && ${install[*]}" >&2
        exit 1
    fi
fi
exec bash "$0" --check
