#!/usr/bin/env bash
# shell test: ranks that fail. Every rank ends within seconds, the exit status is not 0, and a message says who and why. (F47)
source "$(dirname "$0")/shell.sh"

# Both builds of the program.
flags="-std=c11 -D_GNU_SOURCE -g -O1 -fopenmp"
gcc $flags $(mpicc --showme:compile) test/test_comm.c device/cpu/comm_mpi.c -o "$dir/test_comm" $(mpicc --showme:link) -lm || exit 1
make --no-print-directory DEVICE=cpu MPI=0 build/cpu-single/test/test_comm >"$dir/make" 2>&1 || { tail -5 "$dir/make"; exit 1; }
cp build/cpu-single/test/test_comm "$dir/test_comm_single"

# ended NAME STATUS PATTERN COUNT: checks the job that has ended. STATUS: a number or "any" (not 0). COUNT lines match PATTERN (or "some").
ended() {
    local name=$1 expected=$2 pattern=$3 count=$4 why=
    local lines=$(grep -cE "$pattern" "$dir/out") seconds=$((SECONDS - began))
    if [ "$expected" = any ] && [ $status -eq 0 ]; then why="exit status 0"; fi
    if [ "$expected" != any ] && [ $status -ne "$expected" ]; then why="exit status $status, expected $expected"; fi
    if [ "$count" = some ] && [ "$lines" -eq 0 ]; then why="$why; no line matches /$pattern/"; fi
    if [ "$count" != some ] && [ "$lines" -ne "$count" ]; then why="$why; $lines lines match /$pattern/, expected $count"; fi
    if [ $seconds -gt 15 ]; then why="$why; took $seconds s"; fi
    if pgrep -f "$dir/test_comm" >/dev/null; then sleep 2; fi
    if pgrep -f "$dir/test_comm" >/dev/null; then why="$why; ranks are left over"; fi
    if [ -z "$why" ]; then
        pass "$name"
    else
        fail "$name: ${why#; }"
        sed 's/^/    /' "$dir/out" | head -12
    fi
}
job() { # command...: runs it; sets status and began; its output goes to $dir/out
    began=$SECONDS
    timeout 60 "$@" >"$dir/out" 2>&1 </dev/null
    status=$?
}

job mpirun -np 4 "$dir/test_comm" abort
ended 'a rank gives up' 1 '^rank 1: no space left on device$' 1

# In these modes the ring runs downwards: rank 2 receives from rank 3 and sends to rank 1.
TRAIN_LLAMA_TIMEOUT=2 job mpirun -np 4 "$dir/test_comm" silent
ended 'a peer never answers' 1 \
    '^rank 0: kv_inner sendrecv \(rank 3 of 4 in its group\) waited 2 s for 50 bytes from rank 1\. .*TRAIN_LLAMA_TIMEOUT' 1
TRAIN_LLAMA_TIMEOUT=2 job mpirun -np 4 "$dir/test_comm" silent-small
ended 'a peer never comes to a barrier' 1 '^rank [023]: control barrier .* waited 2 s for 1 bytes from rank [01]' some
TRAIN_LLAMA_TIMEOUT=2 job mpirun -np 4 "$dir/test_comm" silent-end
ended 'a peer never comes to the end' 1 '^rank [023]: control barrier .* waited 2 s for 1 bytes from rank [01]' some

TRAIN_LLAMA_TEST_START=2 job mpirun -np 1 "$dir/test_comm" : -np 1 sleep 20
ended 'a rank never starts MPI' 1 '^(note: MPI has not started after 1 s|error: MPI has not started within 2 s): .*btl_tcp_if_exclude' 2

job mpirun -np 3 "$dir/test_comm" mismatch
ended 'ranks disagree on the size' 1 '^rank [0-2]: kv_inner sendrecv.*(sent 50 bytes where 100 were expected|truncated)' some
job mpirun -np 2 "$dir/test_comm" too-many
ended 'too many transfers in flight' 1 '^rank [01]: kv_inner sendrecv: 64 transfers are already in flight' some
job "$dir/test_comm" free-early
ended 'a group freed with a transfer under way' 1 '^rank 0: kv_inner: comm_free with 1 unfinished' 1
job "$dir/test_comm" finish-early
ended 'a finish without a start' 1 '^rank 0: kv_inner: comm_finish without a started transfer' 1

: >"$dir/out"
timeout 120 mpirun -np 4 "$dir/test_comm" endless >"$dir/out" 2>&1 </dev/null &
until_shown '^pid of rank 2: [0-9]' "$dir/out"
sleep 0.3
began=$SECONDS
kill -9 "$(sed -n 's/^pid of rank 2: //p' "$dir/out")"
wait $!
status=$?
ended 'a rank is killed' any 'rank 2 .*signal 9|signal 9 .*rank 2|process rank 2 .*exited on$' some

# A job that is paused as a whole for longer than the limit goes on: rank 1 stops first, so that rank 0 waits for it.
printf '%0.sabcdefgh ' $(seq 500) | tokens_of data
TRAIN_LLAMA_TIMEOUT=5 timeout 200 mpirun -np 2 "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 64 --cp 2 \
    --steps 1500 --log "$dir/paused.jsonl" >"$dir/out" 2>&1 </dev/null &
until_shown . "$dir/paused.jsonl"
first= second=
for pid in $(pgrep -f "^$binary .*/paused.jsonl"); do
    [ "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')" = 1 ] && second=$pid || first=$pid
done
kill -STOP "$second"
sleep 0.5
kill -STOP "$first"
sleep 6
kill -CONT "$first"
sleep 0.5
kill -CONT "$second"
wait $!
status=$?
began=$SECONDS # how long its steps take depends on the machine
ended 'a job that was paused goes on' 0 '^step +1500/1500' 1

job mpirun -np 2 "$dir/test_comm_single"
ended 'the build without MPI, on 2 ranks of mpirun' 2 "^error: Open MPI's mpirun started 2 ranks.*MPI=1" 1
PMI_SIZE=4 PMI_RANK=0 job "$dir/test_comm_single"
ended 'the build without MPI, by the mpirun of MPICH' 2 '^error: .*MPICH.* started 4 ranks.*MPI=1' 1
SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2 job "$dir/test_comm_single" # rank 2; no launcher ends it, so it prints the message itself
ended 'the build without MPI, by srun' 2 '^error: srun started 3 ranks.*MPI=1' 1
SLURM_NTASKS=8 SLURM_PROCID=0 job "$dir/test_comm_single"
ended 'the build without MPI, in a batch script' 0 '^test_comm: [0-9]+ passed, 0 failed' 1
if mpirun --version | grep -q 'Open MPI) 4'; then # two programs of one rank would make and remove the same folder
    TMPDIR=/proc/none job "$binary" --version
    ended 'one rank needs no folder for temporary files' 0 '^train_llama ' 1
else
    skip 'one rank needs no folder for temporary files: not Open MPI 4'
fi
SLURM_JOBID=1 SLURM_NODELIST=node1 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 job "$binary" --version
ended 'one rank in a shell of salloc' 0 '^train_llama ' 1
SLURM_STEP_NUM_TASKS=8 job mpirun -np 1 "$binary" --version
ended 'one rank of mpirun in a step of several tasks' 0 '^train_llama ' 1
SLURM_STEP_NUM_TASKS=8 job "$binary" --version
ended 'one of several tasks, none of which knows of the others' 2 '^error: srun started 8 ranks' 1
MV2_COMM_WORLD_SIZE=4 job "$dir/test_comm"
ended 'the launcher of another MPI' 2 '^error: .*MVAPICH started 4 ranks.*mpirun of the MPI it was built with' 1
TRAIN_LLAMA_TIMEOUT=soon job mpirun -np 4 "$dir/test_comm"
ended 'a wait limit that is no number, said once' 2 '^error: ' 1
job mpirun -np 1 "$dir/test_comm" : -np 1 env TRAIN_LLAMA_TIMEOUT=soon "$dir/test_comm"
ended 'the wait limit is that of rank 0' 0 '^test_comm: [0-9]+ passed, 0 failed' 1

closing_line
