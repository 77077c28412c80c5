#!/usr/bin/env bash
# Two machines in one: runs a command on machine "nodea", from which mpirun reaches "nodeb". Each has its own name, network and shared memory. The
# cable between them has RATE each way (in tc's notation; none: no limit). Cores and disk are those of this machine.
#   dev/two_machines.sh 1gbit mpirun --host nodea:2,nodeb:2 build/cpu/train_llama ...
#   dev/two_machines.sh 1gbit dev/bench_planner.py --nodes 4
# SLURM=1: both are nodes of a Slurm cluster, with 8 GPUs each by name alone.
#   SLURM=1 dev/two_machines.sh none srun --mpi=pmix -N 2 --ntasks-per-node 4 build/cpu/train_llama ...
#   SLURM=1 dev/two_machines.sh none sbatch --wait --time=10 scripts/run_...
# Needs root (network namespaces), iproute2 and, for Slurm, the Debian packages slurm-wlm and munge. Leaves nothing behind.
set -eu
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' dev/two_machines.sh; exit 2; }
source scripts/mpi_env.sh
rate=$1
shift
dir=$(mktemp -d)
here=train_llama_$$ # in the names of the namespaces, so that several runs do not collide
clean() {
    for file in "$dir"/*.pid; do kill "$(cat "$file" 2>/dev/null)" 2>/dev/null || true; done
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
exec nsenter --net=/run/netns/${here}_\$node unshare --uts --mount bash -c 'hostname "\$0" && mount --bind "$dir/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && exec bash -c "\$*"' "\$node" "\$@"
EOF
chmod +x "$dir/on"

start_slurm() { # a controller on nodea, a daemon on each machine
    for i in {0..7}; do mknod "$dir/gpu$i" c 1 3; done # as /dev/null
    echo "Name=gpu File=$dir/gpu[0-7]" >"$dir/gres.conf"
    echo 'PMIxCliTmpDirBase=/dev/shm' >"$dir/mpi.conf" # in /tmp the two would collide
    cat >"$dir/slurm.conf" <<EOF
ClusterName=two_machines
SlurmctldHost=nodea
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$dir/munge
StateSaveLocation=$dir
SlurmdSpoolDir=$dir/%n
SlurmctldPidFile=$dir/controller.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/controller.log
SlurmdLogFile=$dir/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
NodeName=nodea,nodeb CPUs=8 RealMemory=1000 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES State=UP
EOF
    export SLURM_CONF=$dir/slurm.conf
    (umask 077 && head -c 1024 /dev/urandom >"$dir/key")
    munged --force --socket="$dir/munge" --key-file="$dir/key" --pid-file="$dir/munge.pid" --log-file="$dir/munge.log" --seed-file="$dir/munge.seed"
    "$dir/on" nodea slurmctld -c
    for node in nodea nodeb; do
        mkdir "$dir/$node"
        "$dir/on" $node slurmd -N $node
    done
    for _ in {1..50}; do
        "$dir/on" nodea sinfo -h -t idle -o %D | grep -qx 2 && return
        sleep 0.2
    done
    cat "$dir"/*.log
    echo 'error: the nodes of Slurm do not start' >&2
    exit 1
}
if [ "${SLURM:-0}" = 1 ]; then start_slurm; fi
export OMPI_MCA_plm_rsh_agent=$dir/on
"$dir/on" nodea "cd $(printf %q "$PWD") && $(printf '%q ' "$@")"
