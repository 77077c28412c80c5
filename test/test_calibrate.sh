#!/usr/bin/env bash
# --calibrate on the CPU device writes a cluster file that --plan accepts, with the figures that one rank, or several, can measure.
source "$(dirname "$0")/shell.sh"
for ranks in 1 4; do
    file=$dir/here$ranks.txt
    check "$ranks ranks measure" mpirun -np $ranks "$binary" --calibrate --model nano --cluster-out "$file"
    measured=$(grep -c '# measured:' "$file")
    check "$ranks ranks: $measured figures are measured" [ "$measured" -ge $((ranks == 1 ? 16 : 22)) ]
    for key in peak hbm_rate attention_forward_efficiency attention_backward_efficiency step_launch linear_efficiency weight_bytes; do
        check "$ranks ranks: $key is measured" grep -qE "^$key .*# measured:" "$file"
    done
    check "$ranks ranks: the plan stands on them" bash -c "
        '$binary' --plan --model tiny --ranks $ranks --cluster '$file' | grep -q '^figures of the cluster: $measured measured'"
done
# The file's notes give the measurements behind its figures: rates by size, links with one flow and with two, alltoall at two sizes.
number='[0-9.]+(e[-+][0-9]+)?'
for ranks in 1 4; do
    file=$dir/here$ranks.txt rows='blocks of (256|1024) rows x (128|512) keys'
    check "$ranks ranks: linear layers at three sizes" \
        [ "$(grep -cE "^# linear layers: (64|128|256) rows at $number GFLOP/s a rank$" "$file")" = 3 ]
    check "$ranks ranks: attention at two sizes, forward and backward" \
        [ "$(grep -cE "^# attention (for|back)ward: $rows at $number GFLOP/s a rank$" "$file")" = 4 ]
    links="^# links: one flow a rank $number GB/s, two at once $number GB/s; "
    links+="alltoall of $number bytes a rank $number us, of $number bytes $number us$"
    check "$ranks ranks: links" [ "$(grep -cE "$links" "$file")" = $((ranks > 1)) ]
done
for key in p2p_rate hop_latency nvlink_rate alltoall_latency alltoall_pack overlap_cost collective_efficiency; do
    check "4 ranks: $key is measured" grep -qE "^$key .*# measured:" "$dir/here4.txt"
    check "1 rank: $key is not" grep -qE "^$key .*# estimate:" "$dir/here1.txt"
done
check 'the number type is that of this build' bash -c "'$binary' --calibrate --model nano --cluster h100 | grep '^element_bytes *4 '"
check 'a rate that a processor can have' awk '$1 == "peak" {ok = $2 > 1e8 && $2 < 1e14} END {exit !ok}' "$dir/here1.txt"
# A run prints what was predicted for it from the measured figures.
seq 1 20000 | tokens_of data
sent='sent by a rank ([0-9.]+ [KM]iB) a step, measured \1$' # exactly what was predicted
check 'a run predicts with the file' bash -c "
    mpirun -np 4 '$binary' --model nano --from-scratch --train-data '$dir/data.bin' --seq-len 256 --hp 2 --cp 2 --steps 5 \
        --cluster '$dir/here4.txt' |
    grep -qE '^predicted for .*here4.txt: [0-9.]+ ms a step, measured [0-9.]+ \| memory .*, measured .* \| $sent'"
# With other machines than the file's, here four ranks on one where it has one, the plan and the prediction assume the same ones.
check 'a run is predicted for its own machines' bash -c "
    mpirun -np 4 '$binary' --model nano --from-scratch --train-data '$dir/data.bin' --seq-len 256 --hp auto --global-batch 4 --steps 5 \
        --cluster '$dir/here1.txt' |
    awk '/^planned for/ { planned = 1000 * \$(NF - 3) } /^predicted for/ { predicted = \$4; difference = predicted - planned }
         END { exit !(predicted > 0 && difference < 1 && difference > -1) }'" # the plan is rounded to 1 ms
for wrong in '--calibrate --cluster-out /no/such/folder/x' '--model nano --dry-run --cluster-out x'; do
    "$binary" $wrong >"$dir/out" 2>"$dir/err"
    check "refused: $wrong" [ "$? $(grep -c '^error: --cluster-out' "$dir/err")" = '2 1' ]
done
check 'a full disk: status 1' ends_with 1 '^error: --cluster-out /dev/full: cannot be written: No space left on device' \
    "$binary" --calibrate --model nano --cluster-out /dev/full
cp "$dir/here1.txt" "$dir/before.txt"
check 'over a cluster file: status 1' \
    ends_with 1 '^error: --cluster-out .*/here1.txt: cannot be written: No space left on device' \
    on_full_disk "$binary" --calibrate --model nano --cluster-out "$dir/here1.txt"
check 'which stays' bash -c "cmp '$dir/before.txt' '$dir/here1.txt' && [ ! -e '$dir/here1.txt.unfinished' ]"
echo 'not a cluster' >"$dir/other.txt"
check 'refused: over a file of another kind' ends_with 2 '^error: --cluster-out .*/other.txt: is a file of another kind' \
    "$binary" --calibrate --model nano --cluster-out "$dir/other.txt"
check 'which stays' [ "$(cat "$dir/other.txt")" = 'not a cluster' ]
check 'refused: what has no effect' ends_with 2 '^error: --seq-len has no effect with --calibrate; legal with it are --model' \
    "$binary" --calibrate --model nano --seq-len 1K

closing_line
