# Every shell test sources this first: `source "$(dirname "$0")/shell.sh"`. It then runs in the repository's root, has a folder $dir that is
# removed when it ends, counts checks, and closes with `closing_line`, whose status is the test's.
set -u
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.." || exit 1
source scripts/mpi_env.sh
# A job that fails ends at once: by default mpirun (Open MPI 4, 5) gives each of its ranks a second to exit.
export OMPI_MCA_odls_base_sigkill_timeout=0 PRTE_MCA_odls_base_sigkill_timeout=0
binary=${TRAIN_LLAMA:-build/cpu/train_llama}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0 check_began=$SECONDS

pass() { # name: with the seconds since the check before
    passed=$((passed + 1))
    echo "ok   $((SECONDS - check_began)) s   $1"
    check_began=$SECONDS
}
fail() { # name and reason
    failed=$((failed + 1))
    echo "FAIL $((SECONDS - check_began)) s   $1"
    check_began=$SECONDS
}
skip() { # name and reason: of a check, or several, that cannot be made on this machine; test/run.sh lists these lines
    skipped=$((skipped + 1))
    echo "skip $1"
}
check() { # name command...: passes if the command succeeds; its output goes to $dir/why, the counts in it after the name
    local name=$1 reason
    shift
    if "$@" >"$dir/why" 2>&1; then pass "$name   $(grep -aE 'passed, |apart' "$dir/why" | tail -2 | paste -sd ' ')"; else
        fail "$name"
        tail -15 "$dir/why"
    fi
    while read -r reason; do skip "$name: $reason"; done < <(sed -n 's/^skip //p' "$dir/why" | sort -u) # by a test that it runs
}
ends_with() { # status text command...: for use in check: the command ends with this status and prints this text
    local status=$1 text=$2
    shift 2
    "$@" >"$dir/shown" 2>&1 </dev/null
    [ $? -eq "$status" ] && grep -q -- "$text" "$dir/shown" || { cat "$dir/shown" && return 1; }
}
lacks() { # text command...: the command succeeds and does not print this text
    "${@:2}" >"$dir/shown" 2>&1 </dev/null && ! grep -q -- "$1" "$dir/shown" || { cat "$dir/shown" && return 1; }
}
until_shown() { # pattern file: waits until the file has such a line, which must be within a minute
    local end=$((SECONDS + 60))
    until grep -q -- "$1" "$2" 2>/dev/null; do
        [ $SECONDS -lt $end ] || { fail "'$1' is shown within a minute"; tail -5 "$2"; return 1; }
        sleep 0.02
    done
}
tokens_of() { # name: $dir/name.bin holds the bytes of the standard input, ends of lines as blanks
    tr '\n' ' ' | build/cpu/text_to_tokens "$dir/$1.bin" /dev/stdin >/dev/null
}
preload() { # name option...: compiles the C on the standard input to $dir/name.so, for LD_PRELOAD
    gcc -shared -fPIC -D_GNU_SOURCE -O1 "${@:2}" -x c - -o "$dir/$1.so" -ldl || exit 1
}
on_full_disk() { # command...: its files cannot be written
    preload full <<'C'
#include <errno.h>
#include <stdio.h>
int fflush(FILE *f) { return f == NULL || f == stdout || f == stderr ? 0 : (errno = ENOSPC, EOF); }
C
    LD_PRELOAD="$dir/full.so" "$@"
}
closing_line() {
    echo "$(basename "$0" .sh): $passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}
# The faults of emulation_faults.cu are found, with blocks and threads in both orders; an address past shared memory by a program that ends
# with this status and text.
faults_found() { # program, program for addresses past shared memory, its status, its text
    local order fault text
    for order in 0 1; do
        export EMULATION_REVERSE=$order
        check "no fault, order $order" "$1" none
        check "no fault, order $order, addresses" "$2" none
        check "a missing barrier gives wrong numbers, order $order" ends_with 1 'wrong' "$1" no-barrier
        check "an address past shared memory, order $order" ends_with $3 "$4" "$2" too-far
        while read -r fault text; do
            check "$fault, order $order" ends_with 134 "$text" "$1" $fault
        done <<'FAULTS'
half-a-barrier deadlock in .*pass_on_kernel.*, block
lane-left 31 of 32 lanes
lanes-apart lanes of one warp are at
two-barriers threads are at different instructions
two-loads threads are at different instructions
two-products threads are at different instructions
shared-store an address of\|ptx: 
global-rows an address of\|ptx: 
copy-back an address of\|ptx: 
never-waits a thread ends before copies
FAULTS
    done
    unset EMULATION_REVERSE
    check 'a copy used before it was waited for gives wrong numbers' ends_with 1 'wrong' "$1" no-wait
    check 'a warp that runs ahead of the others gives wrong numbers' ends_with 1 'wrong' env EMULATION_REVERSE=1 "$1" run-ahead
}
