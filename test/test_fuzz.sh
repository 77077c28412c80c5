#!/usr/bin/env bash
# The fuzz targets (test/fuzz) for some seconds each, without clang: the corpus and mutations of it, with sanitizers; a leak is a finding.
# And the driver itself: it finds planted faults. (F48, F51, F56)
source "$(dirname "$0")/shell.sh"
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1
check 'build' make -j2 --no-print-directory DEVICE=cpu SANITIZE=1 fuzz-short
runs() { # target mutations
    local target=$PWD/build/cpu-sanitize/fuzz/$1 corpus=$PWD/test/fuzz/corpus/${1#fuzz_}
    (cd "$dir" && timeout 120 "$target" "$2" "$corpus"/*)
}
for target in test/fuzz/fuzz_*.c; do
    target=$(basename "$target" .c)
    # Some 3 s each; the two slow ones write files, too.
    case $target in fuzz_state) mutations=1500 ;; fuzz_config) mutations=4000 ;; *) mutations=15000 ;; esac
    check "$target, $mutations mutations" runs "$target" "${FUZZ_MUTATIONS:-$mutations}"
done

# Planted faults: a read past the input, a leak, an exit, a property that fails, an overflow; each needs a first byte that the seed lacks.
printf 'aaaaaaaa' >"$dir/good_seed"
for fault in 'return data[size] == 0' 'return malloc(10) == NULL' 'exit(0)' 'MUST(size == 0, "planted")' \
    'return (int)(INT32_MAX + (int)size)'; do
    cat >"$dir/planted.c" <<C
#include "fuzz.h"
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0 && data[0] == 'A') { $fault; }
    fuzz_accepted++;
    return 0;
}
C
    check "build planted: $fault" gcc -D_GNU_SOURCE -g -O1 -I test/fuzz -fsanitize=address,undefined -fno-sanitize-recover=all \
        "$dir/planted.c" test/fuzz/driver.c -o "$dir/planted"
    check "clean: $fault" bash -c "cd '$dir' && ./planted 0 good_seed"
    check "found: $fault" bash -c "cd '$dir' && ! ./planted 5000 good_seed"
done
closing_line
