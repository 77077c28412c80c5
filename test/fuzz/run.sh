#!/usr/bin/env bash
# Runs the fuzz targets under libFuzzer, one by one: `make fuzz`. In build/fuzz, findings go to found-TARGET, the log to TARGET.log,
# inputs that reach new code to grown-TARGET (into the corpus: build/fuzz/TARGET -merge=1 test/fuzz/corpus/NAME build/fuzz/grown-TARGET).
#   test/fuzz/run.sh SECONDS TARGET...
set -u
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/../.."
seconds=$1 status=0
shift
for target in "$@"; do
    grown=build/fuzz/grown-$target found=build/fuzz/found-$target
    mkdir -p "$grown" "$found"
    if build/fuzz/"$target" -max_total_time="$seconds" -timeout=20 -print_final_stats=1 -artifact_prefix="$found/" \
        "$grown" "test/fuzz/corpus/${target#fuzz_}" >"build/fuzz/$target.log" 2>&1; then
        printf '%-18s no finding  ' "$target"
    else
        printf '%-18s FOUND       ' "$target"
        status=1
    fi
    grep -E 'cov: [0-9]+' "build/fuzz/$target.log" | tail -1
done
exit $status
