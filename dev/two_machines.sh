#!/usr/bin/env bash
# Two machines in one: runs a command on machine "nodea", from which mpirun reaches "nodeb". Each has its own name, network and shared memory. The
# cable between them has RATE each way (in tc's notation; none: no limit). Cores and disk are those of this machine.
#   dev/two_machines.sh 1gbit mpirun --host nodea:2,nodeb:2 build/cpu/train_llama ...
#   dev/two_machines.sh 1gbit dev/bench_planner.py --nodes 4
# Needs root (network namespaces) and iproute2. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' dev/two_machines.sh; exit 2; }
source scripts/mpi_env.sh
rate=$1
shift
dir=$(mktemp -d)
here=train_llama_$$ # in the names of the namespaces, so that several runs do not collide
clean() {
    ip netns delete ${here}_nodea 2>/dev/null || true
    ip netns delete ${here}_nodeb 2>/dev/null || true
    rm -rf "$dir"
}
trap clean EXIT
ip netns add ${here}_nodea
ip netns add ${here}_nodeb
ip link add cable netns ${here}_nodea type veth peer name cable netns ${here}_nodeb
printf '127.0.0.1 localhost\n10.9.0.1 nodea\n10.9.0.2 nodeb\n' >"$dir/hosts"
for node in nodea nodeb; do
    ip -n ${here}_$node address add "$(sed -n "s/ $node//p" "$dir/hosts")/24" dev cable
    ip -n ${here}_$node link set lo up
    ip -n ${here}_$node link set cable up
    [ "$rate" = none ] || tc -n ${here}_$node qdisc add dev cable root tbf rate "$rate" burst 256k latency 20ms
done
# on NODE COMMAND...: what mpirun uses in place of ssh
cat >"$dir/on" <<EOF
#!/usr/bin/env bash
node=\$1
shift
exec ip netns exec ${here}_\$node unshare --uts --mount bash -c 'hostname "\$0" && mount --bind "$dir/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && exec bash -c "\$*"' "\$node" "\$@"
EOF
chmod +x "$dir/on"
export OMPI_MCA_plm_rsh_agent=$dir/on
"$dir/on" nodea "cd $(printf %q "$PWD") && $(printf '%q ' "$@")"
