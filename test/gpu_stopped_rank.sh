#!/usr/bin/env bash
# Is a rank that stops answering named, and does the job end? For scripts/gpu_check.sh and test_cuda.sh: over NCCL a kernel waits for the
# peer, not the host.
#     test/gpu_stopped_rank.sh COMMAND...   the command of a rank that trains for long; its environment is kept
# Starts 2 ranks, stops rank 1 (SIGSTOP) after the second step, and passes if rank 0 then says after TRAIN_LLAMA_TIMEOUT seconds (10 unless
# it is set) which transfer it waits for, and mpirun ends with status 1 and leaves no rank behind. Where rank 1 was stopped before it came
# to the end of that step, the host of rank 0 waits for it there, by MPI: then once more, at most twice. Exit status: 0 or 1.
set -u
source "$(dirname "$0")/../scripts/mpi_env.sh"
dir=$(mktemp -d) || exit 1
job=
trap 'kill $job 2>/dev/null; rm -rf "$dir"' EXIT
export TRAIN_LLAMA_TIMEOUT=${TRAIN_LLAMA_TIMEOUT:-10}
left() { grep -lsE '^State:[[:space:]]+[^ZX]' $(sed 's|.*|/proc/&/status|' "$dir"/rank-*) | tr -dc '0-9\n'; } # ranks, but no zombies
for attempt in 1 2 3; do
    rm -f "$dir"/*
    mpirun -np 2 bash -c 'echo $$ >"$0/rank-$OMPI_COMM_WORLD_RANK"; exec "$@"' "$dir" "$@" >"$dir/log" 2>&1 </dev/null &
    job=$! began=$SECONDS
    until grep -q '^step  *2/' "$dir/log"; do
        kill -0 $job 2>/dev/null || { cat "$dir/log"; echo 'the run ended by itself'; exit 1; }
        sleep 0.1
    done
    kill -STOP "$(cat "$dir/rank-1")"
    echo "rank 1 is stopped, $((SECONDS - began)) s after the start"
    began=$SECONDS
    wait $job
    status=$?
    grep -a 'not done after' "$dir/log"
    echo "mpirun ended with status $status after $((SECONDS - began)) s"
    for second in 1 2 3 4 5; do [ -z "$(left)" ] || sleep 1; done
    [ -z "$(left)" ] || { echo "left behind: $(left)"; kill -KILL $(left); status=left; }
    [ "$status" = 1 ] && grep -qa '^rank 0: control .* waited .* from rank 1' "$dir/log" || break
    echo 'it was before the end of the step'
done
[ "$status" = 1 ] && grep -qa '^rank 0: .* not done after .* s' "$dir/log" || { tail -20 "$dir/log"; exit 1; }
