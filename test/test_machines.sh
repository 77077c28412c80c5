#!/usr/bin/env bash
# Ranks on several machines, each with a disk of its own: files that must be equal on all machines are, or the run is refused at once.
# Here a machine is a folder in which its ranks run, and all paths are relative to it.
source "$(dirname "$0")/shell.sh"
export OMP_NUM_THREADS=1
program=$PWD/$binary
mkdir -p "$dir"/{a,b,shared}
seq 1 1000 | tokens_of a/data
head -c "$(($(stat -c %s "$dir/a/data.bin") / 2 - 512))" /dev/zero | tr '\0' '\1' >"$dir/a/data.bin.mask"
cat >"$dir/on" <<'EOF'
#!/usr/bin/env bash
# Ranks 0 and 1 run on machine a, 2 and 3 on b.
cd "$(dirname "$0")/$([ "$OMPI_COMM_WORLD_RANK" -lt 2 ] && echo a || echo b)" && exec "$@"
EOF
chmod +x "$dir/on"
two=(timeout 60 mpirun -np 4 "$dir/on" "$program" --seq-len 100 --hp 2 --cp 2 --zero-params full --zero-grads full --zero-optim full
    --threads 1)
new=("${two[@]}" --model nano --from-scratch --train-data data.bin --steps 2)
files() { (cd "$dir" && find a b -type d | sort && find a b -type f -exec cksum {} + | sort); }
refused() { # name message command...: status 2, this message from rank 2, no file left, none changed
    local name=$1 message=$2 before
    shift 2
    before=$(files)
    check "$name" ends_with 2 "^error: $message.* (rank 2, on .*)$" "$@"
    check "$name: nothing left behind" [ "$before" = "$(files)" ]
}

refused 'data on one machine only' '--train-data: no file matches data.bin' "${new[@]}"
cp "$dir"/a/* "$dir/b"
check 'a copy on each machine, states and model on a disk that they share' "${new[@]}" --out "$dir/shared/out" --export "$dir/shared/model"
check 'nothing but these is left there' [ "$(cd "$dir/shared" && echo *; cd out && echo *)" = $'model out\nlock step-00000002' ]
"${new[@]}" --out "$dir/shared/again" >/dev/null 2>&1
check 'and they are the same again' cmp "$dir"/shared/{out,again}/step-00000002/model.safetensors
# Where a rank writes behind the end of a file as its machine knows it, NFS (Linux 6.1) writes zeros before it, to the page's beginning,
# over what others wrote.
preload pages <<'C'
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static off_t known[1024]; // the size of a file
static int first_rank(void) { return strcmp(getenv("OMPI_COMM_WORLD_RANK"), "0") == 0; }
int open(const char *path, int flags, ...) {
    struct stat entry;
    // The others open it before it has a size.
    if (strstr(path, ".safetensors") != NULL && (flags & O_CREAT) && first_rank()) usleep(300000);
    int fd = ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, 0666);
    if (fd >= 0 && fstat(fd, &entry) == 0) known[fd] = entry.st_size;
    return fd;
}
int ftruncate(int fd, off_t bytes) { return ((int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate"))(fd, known[fd] = bytes); }
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    ssize_t (*write)(int, const void *, size_t, off_t) = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    static const char zeros[4096];
    if (known[fd] <= at / 4096 * 4096 && !first_rank()) {
        usleep(600000); // rank 0 writes before
        write(fd, zeros, (size_t)(at % 4096), at / 4096 * 4096);
    }
    if (known[fd] < at + (off_t)bytes) known[fd] = at + (off_t)bytes;
    return write(fd, from, bytes, at);
}
C
LD_PRELOAD="$dir/pages.so" "${new[@]}" --out "$dir/shared/pages" --export "$dir/shared/pages_model" >/dev/null 2>&1
for file in {out/step-00000002,model}/model.safetensors out/step-00000002/optimizer/optimizer.safetensors; do
    check "pages that ranks share: $file" cmp "$dir/shared/$file" "$dir/shared/$(sed 's/^out/pages/; s/^model/pages_model/' <<<"$file")"
done
refused 'states on a disk of each machine' '--out out: a file that rank 0 wrote there is not visible' "${new[@]}" --out out
mkdir "$dir"/{a,b}/mine
refused 'states in a folder that is on each already' '--out mine: a file that rank 0 wrote there is not visible' "${new[@]}" --out mine
refused 'a model that is exported to one' '--export model: a file that rank 0 wrote there is not visible' "${new[@]}" --export model
printf '\2' | dd of="$dir/b/data.bin" bs=1 seek=1100 conv=notrunc status=none
refused 'other tokens' "--train-data: the files differ from rank 0's" "${new[@]}"
refused 'other tokens to validate on' \
    "--val-data: the files differ from rank 0's" "${two[@]}" --model nano --from-scratch --steps 0 --val-data data.bin
cp "$dir/a/data.bin" "$dir/b"
printf '\0' | dd of="$dir/b/data.bin.mask" bs=1 conv=notrunc status=none
refused 'another loss mask' "--train-data: the files differ from rank 0's" "${new[@]}"
cp "$dir/a/data.bin.mask" "$dir/b"

cp -r "$dir/shared/model" "$dir/a" && cp -r "$dir/shared/model" "$dir/b"
old=("${two[@]}" --model model --train-data data.bin --steps 1)
check 'a copy of the model on each machine' "${old[@]}"
printf '\1' | dd of="$dir/b/model/model.safetensors" bs=1 seek=$(($(stat -c %s "$dir/b/model/model.safetensors") - 5)) \
    conv=notrunc status=none
refused 'other parameters' "model: the parameters differ from rank 0's" "${old[@]}"
cp "$dir/a/model/model.safetensors" "$dir/b/model"
sed -i 's/"rope_theta":.*,/"rope_theta": 500000.0,/' "$dir/b/model/config.json"
refused 'another config.json' "--model: the sizes in config.json differ from rank 0's" "${old[@]}"
cp "$dir/a/model/config.json" "$dir/b/model"

# --export takes each tensor's number type from the source, which --resume does not otherwise read.
check 'a state, and the model in 16 bits' "${old[@]}" --out "$dir/shared/state" --export "$dir/shared/model16" --export-dtype bf16
rm -r "$dir/b/model" && cp -r "$dir/shared/model16" "$dir/b/model"
refused 'a source of other number types' \
    "--model: the parameters (--export uses their number types) differ from rank 0's" \
    "${old[@]}" --out "$dir/shared/state" --resume --export "$dir/shared/late"
cp "$program" "$dir/a/program" && cp "$program" "$dir/b/program" && echo >>"$dir/b/program"
refused 'another build' "the bytes of the train_llama program differ from rank 0's" timeout 60 mpirun -np 4 "$dir/on" ./program --help
cp clusters/cpu.txt "$dir/b/cluster.txt"
measures=(timeout 180 mpirun -np 4 "$dir/on" "$program" --calibrate --model nano --cluster cluster.txt --threads 1)
check 'measuring with a cluster that rank 0 has not' \
    ends_with 2 "^error: cluster 'cluster.txt': neither a known cluster" "${measures[@]}"
mv "$dir/b/cluster.txt" "$dir/a"
check 'and with one that only its machine has' "${measures[@]}"
# Two machines of two ranks: --hp auto plans for these, not for the cluster's of eight. Here MPI says so.
preload pairs $(mpicc --showme:compile) <<'C'
#include <mpi.h>
#include <stdlib.h>
int MPI_Comm_split_type(MPI_Comm all, int type, int key, MPI_Info info, MPI_Comm *machine) {
    int rank;
    (void)type, (void)info;
    MPI_Comm_rank(all, &rank);
    return MPI_Comm_split(all, getenv("IN_TURN") != NULL ? rank % 2 : rank / 2, key, machine);
}
C
chosen() { # environment option...: trains on the planner's grid; what was planned goes to $dir/shown
    ends_with 0 '^step *1/1' timeout 60 mpirun -np 4 $1 "$program" --model nano --from-scratch --train-data "$dir/a/data.bin" \
        --seq-len 100 --steps 1 --threads 1 --hp auto "${@:2}"
}
check '--hp auto on two machines' chosen "-x LD_PRELOAD=$dir/pairs.so"
check 'no note on ranks that are consecutive' bash -c "! grep -q '^note: the ranks of a machine' '$dir/shown'"
check 'says how many ranks they have' grep -q '^planning    for 2 ranks a machine, where cpu has [0-9]' "$dir/shown"
check 'ranks dealt to machines in turn' chosen "-x LD_PRELOAD=$dir/pairs.so -x IN_TURN=1"
check 'are noted' grep -q '^note: the ranks of a machine are not consecutive, .*ppr:N:node' "$dir/shown"
# Of a cluster's eight ranks and eight (slow) NICs such a machine has two of each.
slow() { sed -E "s/^(gpus_per_node|nics_per_node|ranks_sharing)( +)[0-9]+/\\1\\2$1/; s/^(nic_rate +)[^ ]+/\\11e6/" clusters/cpu.txt; }
slow 8 >"$dir/eight.txt" && slow 2 | sed -E 's/^ranks_sharing( +)2/ranks_sharing\18/' >"$dir/two.txt"
check '--hp auto where each rank has a NIC' chosen "-x LD_PRELOAD=$dir/pairs.so" --cluster "$dir/eight.txt"
planned=$(sed -n 's/^planned for [^:]*: \(.*\): \(.*\) s a step$/\1 \2/p' "$dir/shown")
best=$("$program" --plan --model nano --seq-len 100 --ranks 4 --cluster "$dir/two.txt" |
    sed -nE '/^1\. /{s///;N;s/\n +step ([0-9.]+) s.*/ \1/p}')
check 'plans as for a cluster of such machines' [ -n "$planned" -a "$planned" = "$best" ]
check '--hp auto on one machine' chosen ''
check 'has no need to' bash -c "! grep -q '^planning ' '$dir/shown'"
slow 2 >"$dir/few.txt"
check '--hp auto on one machine of more ranks than the cluster has' chosen '' --cluster "$dir/few.txt"
check 'says how many it has' grep -q '^planning    for 4 ranks a machine, where .*few.txt has 2' "$dir/shown"
# The ranks of a machine that see the same files divide them.
preload headers <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int headers; // of token files
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    headers += bytes == 1024;
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, bytes, at);
}
__attribute__((destructor)) static void count(void) {
    if (headers > 0) fprintf(stderr, "rank %s: %d headers\n", getenv("OMPI_COMM_WORLD_RANK"), headers);
}
C
mkdir "$dir/files"
for n in 1 2 3 4 5 6; do cp "$dir/a/data.bin" "$dir/files/$n.bin"; done
reads=("$program" --model nano --from-scratch --train-data "$dir/files/*.bin" --seq-len 100 --steps 1 --threads 1 --cp 4)
divided() { # headers-of-a-rank environment option...
    mpirun -np 4 -x LD_PRELOAD="$dir/headers.so$2" "${reads[@]}" "${@:3}" >"$dir/out" 2>&1
    [ "$(grep -o '^rank .*headers' "$dir/out" | sort | xargs)" = "$1" ]
}
check 'four ranks of a machine read six headers together' \
    divided 'rank 0: 2 headers rank 1: 2 headers rank 2: 1 headers rank 3: 1 headers' ''
check 'two machines of two ranks six each' \
    divided 'rank 0: 3 headers rank 1: 3 headers rank 2: 3 headers rank 3: 3 headers' ":$dir/pairs.so"
: >"$dir/files/2.bin"
check 'one that is damaged is refused by the rank that reads it' \
    ends_with 2 '^error: --train-data: .*files/2.bin: has 0 bytes.* (rank 1, on ' mpirun -np 4 "${reads[@]}"
# NFS believes for up to a minute that what a machine has looked for in vain is not there, until the folder above is opened. Here on rank 1.
preload believes <<'C'
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
static char missing[64][4096];
static int count;
static int believed(const char *path) { // not to be there, or the folder that it is in
    for (int i = 0; i < count; i++) {
        size_t n = strlen(missing[i]);
        if (n > 0 && strncmp(path, missing[i], n) == 0 && (path[n] == '\0' || path[n] == '/')) return errno = ENOENT;
    }
    return 0;
}
static int look(const char *call, const char *path, struct stat *entry) {
    if (believed(path)) return -1;
    int result = ((int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, call))(path, entry);
    int late = result != 0 && errno == ENOENT && strncmp(path, "late", 4) == 0 && *getenv("OMPI_COMM_WORLD_RANK") == '1';
    if (late && count < 64) strcpy(missing[count++], path);
    return result;
}
int stat(const char *path, struct stat *entry) { return look("stat", path, entry); }
int lstat(const char *path, struct stat *entry) { return look("lstat", path, entry); }
int open(const char *path, int flags, ...) {
    if (believed(path)) return -1;
    for (int i = 0; i < count && (flags & O_DIRECTORY); i++) {
        const char *slash = strrchr(missing[i], '/');
        size_t above = slash == NULL ? 0 : (size_t)(slash - missing[i]); // bytes of the folder's path
        if (slash == NULL ? strcmp(path, ".") == 0 : strncmp(path, missing[i], above) == 0 && path[above] == '\0') missing[i][0] = '\0';
    }
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, 0666);
}
C
check 'a new folder for states that a rank has looked for before it was made' bash -c "cd '$dir' &&
    timeout 60 mpirun -np 2 -x LD_PRELOAD='$dir/believes.so' '$program' --model nano --from-scratch --train-data a/data.bin --seq-len 100 \
    --cp 2 --steps 1 --threads 1 --out late/states --trace late/states/trace --export late/states/model"
# Other network file systems show a new file some time after it was made.
preload shows_late <<'C'
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
int lstat(const char *path, struct stat *entry) {
    static int asked;
    if (strstr(path, "seen-by-all-ranks-") != NULL && asked++ < 5) return errno = ENOENT, -1;
    return ((int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, "lstat"))(path, entry);
}
C
check 'a file system that shows what is new half a second late' \
    timeout 60 mpirun -np 2 -x LD_PRELOAD="$dir/shows_late.so" "$program" --model nano --from-scratch --train-data "$dir/a/data.bin" \
    --seq-len 100 --cp 2 --steps 1 --threads 1 --out "$dir/shown_late"
part=("$program" --model nano --from-scratch --train-data "$dir/a/data.bin" --seq-len 100 --threads 1)
check 'another command' ends_with 2 '^error: --steps 3 is not what rank 0 was started with.* (rank 1, on .*)$' \
    mpirun -np 1 "${part[@]}" --steps 2 : -np 1 "${part[@]}" --steps 3
beside() { mpirun -np 1 "${part[@]}" --steps 1 : -np 1 env "$1" "${part[@]}" --steps 1; } # environment of rank 1
noted='^note: rank 1 has other NCCL_ variables'
check 'variables of NCCL that a rank alone has are noted' ends_with 0 "$noted" beside NCCL_NCHANNELS_PER_NET_PEER=1
check 'once' [ "$(grep -c 'has other NCCL_ variables' "$dir/shown")" = 1 ]
check 'not those of what it logs' lacks 'has other NCCL_ variables' beside NCCL_DEBUG=INFO
closing_line
