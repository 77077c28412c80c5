#!/usr/bin/env bash
# Building: libraries that are missing, or in a place of their own (DEPS); host code as C++.
source "$(dirname "$0")/shell.sh"
build() { make -s DEVICE=cpu BUILD="$dir/build" "$@"; }

printf '#!/bin/bash\n[[ $* == *"-include $HIDES "* ]] && exit 1; exec gcc "$@"\n' >"$dir/gcc" && chmod +x "$dir/gcc"
export HIDES
for HIDES in cjson/cJSON.h cblas.h mpi.h; do
    check "$HIDES that is missing is named" ends_with 2 "error: $HIDES not found" build CC="$dir/gcc" "$dir/build/train_llama"
done
# Host code is the part of C that C++ shares.
make -s DEVICE=cpu build/cluster_texts.h
check 'a C++ compiler takes the trainer, too' g++ -x c++ -std=c++17 -Werror=narrowing -D_GNU_SOURCE -Ibuild \
    ${DEPS:+-I${DEPS// //include -I}/include} -fsyntax-only train_llama.cu
check 'one rank needs no MPI' build CC="$dir/gcc" MPI=0 "$dir/build/found"
# What was compiled otherwise, or for another CPU, is compiled anew; nothing else is.
printf '#!/bin/bash\nexec gcc $MORE "$@"\n' >"$dir/cc" && chmod +x "$dir/cc"
tools() { MORE=${1:-} build CC="$dir/cc" "${@:2}" tools && stat -c %y "$dir/build/text_to_tokens"; }
first=$(tools)
check 'nothing is compiled twice' test -n "$first" -a "$(tools)" = "$first"
check 'nor for what warnings do' test "$(tools '' WERROR=0)" = "$first"
anew() { local now && now=$(tools "$@") && [ "$now" != "$first" ]; }
check 'another CPU' anew -D__CPU__
first=$(tools)
check 'another release of a library, in the same place' anew '' NCCL_VERSION=2.99.9
first=$(tools)
check 'other options' anew '' SANITIZE=1
check 'make train_llama is make' bash -c 'cmp <(make -n DEVICE=cpu train_llama) <(make -n DEVICE=cpu all)'

mkdir -p "$dir"/deps/{include/cjson,lib}
library=$dir/deps/lib/libcjson.so
cp "$(gcc -print-file-name=libcjson.so)" "$library" && cp "$library" "$library.1"
program=$dir/build/fuzz/fuzz_index
check 'build with DEPS' build SANITIZE=1 DEPS="$dir/none $dir/deps" "$program"
check 'it takes the library from there' bash -c "ldd '$program' | grep '$library'"
echo '#error' >"$dir/deps/include/cjson/cJSON.h"
rm "$dir/build/found"
check 'and the header of DEPS' ends_with 2 'error: cjson/cJSON.h not found' build DEPS="$dir/none $dir/deps" "$dir/build/train_llama"
check 'as does setup.sh' env DEPS="$dir/none $dir/deps" bash -c 'scripts/setup.sh --check | grep "missing: cJSON"'

# ./train_llama is what the user has built last, for GPUs perhaps; `make all` sets it.
check 'tests, demo and benchmark leave ./train_llama as it is' bash -c "! grep -nE 'DEVICE=cpu [a]ll( |$)' {scripts,test}/*.sh"

for script in setup demo bench prepare_text gpu_check; do # and does nothing else
    check "scripts/$script.sh --help" \
        bash -c "timeout 5 scripts/$script.sh --help 2>'$dir/err' | grep -q 'scripts/$script.sh\|make $script' && [ ! -s '$dir/err' ]"
done
check 'a benchmark of unknown options' ends_with 2 'error: unknown argument' timeout 5 scripts/bench.sh 2
mkdir -p "$dir/elsewhere/scripts"
export CDPATH=$dir/elsewhere # as in some users' shells: cd goes there first
check 'a long run with a CDPATH' ends_with 0 "^$PWD$" env LAUNCH=pwd MODEL=a DATA=b scripts/run_llama3_8b_128k.sh
export CDPATH=.:/tmp # and prints where it goes
check 'the texts of clusters with a CDPATH' cmp <(dev/embed_clusters.sh) build/cluster_texts.h
check 'and a data set' \
    bash -c 'root=$PWD && cd "$1" && "$root/scripts/prepare_text.sh" data/set "$root/README.md" && test -s data/set/val.bin' - "$dir"
unset CDPATH
if localedef -i de_DE -f UTF-8 "$dir/de_DE.UTF-8" 2>"$dir/err"; then
    median() { { sed -n '/^export LC_ALL/p; /^median()/p' scripts/bench.sh && echo median; } >"$dir/median" && bash "$dir/median"; }
    check "a benchmark's median where the decimal sign is a comma" \
        test "$(printf '%s\n' 995.5 1120.25 87.125 | LOCPATH=$dir LC_ALL=de_DE.UTF-8 median)" = 995.5
else
    skip "a benchmark's median where the decimal sign is a comma: localedef cannot make such a language here"
fi
sources=(*.h *.cu *.cuh device/*.h device/*/*.* {dev,test,test/fuzz}/*.[ch]* {dev,test}/*.py
    {scripts,test,test/fuzz}/*.sh Makefile test/*.mk)
check 'no source line has more than 140 columns' \
    awk 'length > 140 { print FILENAME ":" FNR; n++ } END { exit n > 0 || NR < 40000 }' "${sources[@]}"
closing_line
