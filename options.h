// The command line. One table (option_rows) drives the parser, the range checks, --help and the start-up print; an option that is not in
// the table does not exist. `--name value` or `--name=value`; everything unknown, malformed or impossible is refused in one line.
#ifndef OPTIONS_H
#define OPTIONS_H

#include "checkpoint.cuh" // defines: recompute_kind
#include "config.h"       // defines: model_config, config_preset, printable
#include "dataloader.h"   // defines: document_mark
#include "files.h"        // defines: path_same, path_within
#include "grid.h"         // defines: placement_kind
#include "zero_hybrid.cuh" // defines: zero_offload
#include <ctype.h>
#include <limits.h>
#include <stddef.h>

typedef enum { CP_COMM_RING, CP_COMM_ALLGATHER } cp_comm_kind;
typedef enum { DKV_WIRE_F32, DKV_WIRE_BF16 } dkv_wire_kind;
typedef enum { MOMENTS_F32, MOMENTS_BF16 } moments_kind;
typedef enum { LR_COSINE, LR_WSD, LR_CONSTANT } lr_schedule_kind;
typedef enum { EXPORT_AUTO, EXPORT_F32, EXPORT_BF16, EXPORT_F16 } export_dtype_kind; // auto: that of the source folder, f32 without one

enum { OPTION_TEXT_BYTES = 1024, OPTION_ROWS_MAX = 96, ZERO_FULL = -1 };

// Texts point into argv; NULL = not given.
typedef struct {
    // model
    const char *model; // preset or folder
    bool from_scratch;
    int64_t seed;
    double rope_theta;        // 0 = as the model says
    const char *rope_scaling; // as typed: options_model reads it
    // data
    const char *train_data, *val_data; // sources of token files (data_sources.h)
    bool check_data;
    int64_t document_end, document_begin; // token that ends, or begins, a document; both -1 = samples are not packed
    int64_t seq_len, batch_size, grad_accum, steps;
    int64_t global_batch; // 0 = not given
    // grid; after options_check dp, inner_ring and ranks are never 0; hp 0 = auto (planner.h chooses)
    int64_t dp, hp, cp, inner_ring;
    placement_kind placement;
    cp_comm_kind cp_comm;
    dkv_wire_kind dkv_wire;
    int64_t gpus_per_node, nics_per_node; // 0 = not known
    int64_t threads;                      // of a rank; 0 = share the cores
    // memory; after options_check the degrees are numbers of ranks
    int64_t zero_params, zero_grads, zero_optim; // 1 = replica, ZERO_FULL = all ranks, 0 = not given
    recompute_kind recompute;
    double offload_activations; // fraction of the layers
    bool offload_optimizer, offload_gradients, offload_parameters;
    int64_t mlp_tile, loss_tile; // rows; 0 = auto
    int64_t memory_budget;       // bytes of device memory of a rank; 0 = what the device has
    int64_t host_memory;         // bytes of a machine, for all its ranks; 0 = what it has
    // optimizer
    double lr;
    lr_schedule_kind lr_schedule;
    int64_t warmup;           // steps
    bool lr_restart;          // the schedule covers the steps since --new-data alone
    double wsd_decay;         // fraction of the steps
    double min_lr_fraction;   // of lr
    double weight_decay, beta1, beta2, eps;
    moments_kind moments;
    double grad_clip;         // norm; 0 = off
    double skip_spikes;       // standard deviations; 0 = off
    bool stochastic_rounding; // of parameters stored in bf16
    // output
    const char *log, *trace; // files
    const char *out;         // folder of training states
    int64_t save_every, keep; // steps, 0 = at the end only; states
    int64_t keep_every;       // steps, 0 = no state is kept for good
    bool resume, new_data;
    const char *export_to;   // folder
    export_dtype_kind export_dtype;
    int64_t eval_every, eval_steps; // eval_every 0: after the last step only; else also before the first
    int64_t eval_tokens;            // 0: eval_steps says how much
    int64_t eval_needles;           // at each depth; 0 = none
    int64_t sample_every, sample_tokens; // sample_every 0 = never
    const char *sample_prompt;
    double sample_temperature;
    // other
    bool deterministic, verify;
    bool dry_run, plan, calibrate;
    int64_t ranks;
    const char *cluster, *plan_json, *cluster_out;
    bool help, version;
    bool given[OPTION_ROWS_MAX]; // row i of the table stood on the command line
} options;

typedef enum {
    OPTION_TEXT, OPTION_FLAG, OPTION_COUNT, OPTION_BYTES, OPTION_COUNT_OR_AUTO, OPTION_TOKEN, OPTION_REAL, OPTION_CHOICE, OPTION_DEGREE
} option_kind;

typedef struct {
    const char *group, *name, *value; // heading; without "--"; what stands for the value in --help ("" for flags)
    option_kind kind;
    size_t offset;         // of the field
    double low, high;      // legal numbers, both included
    const char *initial;   // the default as it would be typed; "" = not set, and `help` says what happens then
    const char *choices;   // OPTION_CHOICE: "a|b|c" in the order of the enum
    const char *help;
} option_row;

#define ROPE_SCALING_LEGAL                                      \
    "llama3:factor=F,low=X,high=X,original=N, linear:factor=F, " \
    "yarn:factor=F,original=N[,beta_fast=X][,beta_slow=X][,attention_factor=X], none"
#define AT(field) offsetof(options, field)
static const option_row option_rows[] = {
    {"Model", "model", "NAME|DIR", OPTION_TEXT, AT(model), 0, 0, "", "",
     "preset name, or a Hugging Face folder that holds a Llama or Mistral (required)"},
    {"Model", "from-scratch", "", OPTION_FLAG, AT(from_scratch), 0, 0, "", "",
     "start from random parameters; required for presets, which have no weights"},
    {"Model", "seed", "N", OPTION_COUNT, AT(seed), 0, 4503599627370495.0, "42", "",
     "seed of the initial parameters and of the order of samples"},
    {"Model", "rope-theta", "X", OPTION_REAL, AT(rope_theta), 1.001, 1e15, "", "",
     "base of the RoPE frequencies; replaces the model's and is written to states and exports"},
    {"Model", "rope-scaling", "KIND:NAME=X,...", OPTION_TEXT, AT(rope_scaling), 0, 0, "", "",
     "how RoPE is stretched to a longer context; replaces the model's scaling and is written to states and exports: " ROPE_SCALING_LEGAL
     "; factor: ratio of new to old length; original: tokens before scaling"},

    {"Data", "train-data", "GLOB[:WEIGHT],...", OPTION_TEXT, AT(train_data), 0, 0, "", "",
     "token files (.bin) to train on; quote the pattern: 'data/train*.bin'; a mixture: '[NAME=]a/*.bin:0.7,[NAME=]b/*.bin:0.3', with "
     "relative weights (required unless --dry-run, --plan or --steps 0)"},
    {"Data", "val-data", "[NAME=]GLOB,...", OPTION_TEXT, AT(val_data), 0, 0, "", "",
     "token files to evaluate on; several sets: 'code=c/*.bin,prose=p/*.bin'"},
    {"Data", "check-data", "", OPTION_FLAG, AT(check_data), 0, 0, "", "",
     "before the run, read all of --train-data and --val-data, and check every token and loss mask (otherwise: when it is used)"},
    {"Data", "document-end", "ID|none", OPTION_TOKEN, AT(document_end), 0, 2147483646, "none", "",
     "packed documents: number of the token that ends a document; within a sample, attention and labels do not cross into the next "
     "document, as if positions restarted there"},
    {"Data", "document-begin", "ID|none", OPTION_TOKEN, AT(document_begin), 0, 2147483646, "none", "",
     "the same, with the token that begins a document, such as 128000 of Llama-3, whose chats hold tokens that end turns"},
    {"Data", "seq-len", "N", OPTION_COUNT, AT(seq_len), 1, 1099511627776.0, "1K", "",
     "sequence length in tokens, over all ranks that share it: 128K = 131072, 1M = 1048576"},
    {"Data", "batch-size", "N", OPTION_COUNT, AT(batch_size), 1, 1048576, "1", "", "sequences per dp rank and micro-step"},
    {"Data", "grad-accum", "N", OPTION_COUNT, AT(grad_accum), 1, 1048576, "1", "",
     "micro-steps per optimizer step; with --plan and --hp auto, --batch-size x --grad-accum is the --global-batch"},
    {"Data", "global-batch", "N", OPTION_COUNT, AT(global_batch), 1, 1073741824.0, "", "",
     "sequences per optimizer step over all ranks; sets --grad-accum to N / (dp x batch-size) "
     "(if absent: dp x batch-size x grad-accum; with --plan and --hp auto: batch-size x grad-accum)"},
    {"Data", "steps", "N", OPTION_COUNT, AT(steps), 0, 1000000000000.0, "100", "",
     "optimizer steps of the run; 0 = no training: only evaluate, sample or export"},

    {"Grid", "dp", "N", OPTION_COUNT, AT(dp), 1, 1048576, "", "", "data-parallel degree (if absent: ranks / (hp x cp))"},
    {"Grid", "hp", "N|auto", OPTION_COUNT_OR_AUTO, AT(hp), 1, 4096, "1", "",
     "head-parallel degree: ranks of a SeqAlltoAll; must divide the number of query heads; auto: the planner chooses all degrees, "
     "--recompute, --offload-activations and, where they help, --offload-optimizer, --offload-gradients and --offload-parameters"},
    {"Grid", "cp", "N", OPTION_COUNT, AT(cp), 1, 1048576, "1", "", "context-parallel degree: ranks of a Double-Ring-Attention"},
    {"Grid", "inner-ring", "N", OPTION_COUNT, AT(inner_ring), 1, 1048576, "", "",
     "ranks of a window of the double ring; must divide cp; 1 and cp: one ring "
     "(if absent: one ring; with --nics-per-node, where cp needs several nodes: as many as use all NICs of a node)"},
    {"Grid", "placement", "", OPTION_CHOICE, AT(placement), 0, 0, "head-first", "head-first|context-first",
     "which ranks are neighbours: those of a head-parallel group or those of a context-parallel group"},
    {"Grid", "cp-comm", "", OPTION_CHOICE, AT(cp_comm), 0, 0, "ring", "ring|allgather",
     "how K and V are exchanged within a context-parallel group"},
    {"Grid", "dkv-wire", "", OPTION_CHOICE, AT(dkv_wire), 0, 0, "f32", "f32|bf16",
     "number type in which gradients of K and V are sent within a context-parallel group; every rank sums in float; bf16 halves the bytes "
     "and rounds before each hop"},
    {"Grid", "gpus-per-node", "N", OPTION_COUNT, AT(gpus_per_node), 1, 4096, "", "",
     "ranks per node, to spread the windows over its NICs (if absent: windows are neighbouring ranks)"},
    {"Grid", "nics-per-node", "N", OPTION_COUNT, AT(nics_per_node), 1, 4096, "", "", "network cards per node; requires --gpus-per-node"},
    {"Grid", "threads", "N", OPTION_COUNT, AT(threads), 1, 4096, "", "",
     "CPU threads per rank, CPU device only (if absent: the machine's cores divided among its ranks)"},

    {"Memory", "zero-params", "N|full|replica", OPTION_DEGREE, AT(zero_params), 1, 1048576, "replica", "",
     "shard parameters over this many ranks"},
    {"Memory", "zero-grads", "N|full|replica", OPTION_DEGREE, AT(zero_grads), 1, 1048576, "", "",
     "shard gradients over this many ranks; a multiple of --zero-params (if absent: the same)"},
    {"Memory", "zero-optim", "N|full|replica", OPTION_DEGREE, AT(zero_optim), 1, 1048576, "", "",
     "shard optimizer states over this many ranks; a multiple of --zero-grads (if absent: full, which sends no more than replicas)"},
    {"Memory", "recompute", "", OPTION_CHOICE, AT(recompute), 0, 0, "auto", "none|selective|full|auto",
     "what the backward pass recomputes; selective keeps the attention output (Selective Checkpoint++); auto: the fastest choice that fits "
     "in memory, layer by layer"},
    {"Memory", "offload-activations", "FRACTION", OPTION_REAL, AT(offload_activations), 0, 1, "0", "",
     "fraction of the layers whose saved activations are kept in host memory"},
    {"Memory", "offload-optimizer", "", OPTION_FLAG, AT(offload_optimizer), 0, 0, "", "", "keep optimizer states in host memory"},
    {"Memory", "offload-gradients", "", OPTION_FLAG, AT(offload_gradients), 0, 0, "", "",
     "keep gradients in host memory, too; requires --offload-optimizer, and --zero-grads and --zero-optim full"},
    {"Memory", "offload-parameters", "", OPTION_FLAG, AT(offload_parameters), 0, 0, "", "",
     "keep parameters in host memory, too; requires --offload-gradients, and --zero-params full"},
    {"Memory", "mlp-tile", "N|auto", OPTION_COUNT_OR_AUTO, AT(mlp_tile), 1, 1099511627776.0, "auto", "",
     "rows per tile of the MLP, and of Q, K and V before they are sent (on GPUs the next even number); "
     "where N is given, gate and up are never kept, but computed again tile by tile"},
    {"Memory", "loss-tile", "N|auto", OPTION_COUNT_OR_AUTO, AT(loss_tile), 1, 1099511627776.0, "auto", "",
     "rows per tile of logits and loss (on GPUs the next even number)"},
    {"Memory", "memory-budget", "BYTES", OPTION_BYTES, AT(memory_budget), 1048576, 1125899906842624.0, "", "",
     "device memory a rank may use, such as 40GiB; on CPUs, all of its memory (if absent: what the device has)"},
    {"Memory", "host-memory", "BYTES", OPTION_BYTES, AT(host_memory), 1048576, 1125899906842624.0, "", "",
     "host memory of a machine that its ranks may use together, on GPUs "
     "(if absent: 95 % of what the machine or its container has; for --plan and --dry-run --cluster, the cluster's)"},

    {"Optimizer", "lr", "X", OPTION_REAL, AT(lr), 0, 100, "3e-4", "", "peak learning rate, reached after the warm-up"},
    {"Optimizer", "lr-schedule", "", OPTION_CHOICE, AT(lr_schedule), 0, 0, "cosine", "cosine|wsd|constant",
     "how the learning rate falls; wsd = constant, then linear decay at the end"},
    {"Optimizer", "warmup", "N", OPTION_COUNT, AT(warmup), 0, 1000000000000.0, "0", "",
     "steps over which the learning rate rises linearly"},
    {"Optimizer", "lr-restart", "", OPTION_FLAG, AT(lr_restart), 0, 0, "", "",
     "with --new-data: warm-up and schedule cover the steps from the new data to --steps, not those before; "
     "for a context that grows in stages"},
    {"Optimizer", "wsd-decay", "FRACTION", OPTION_REAL, AT(wsd_decay), 0, 1, "0.1", "",
     "fraction of the steps, at the end, over which wsd decays"},
    {"Optimizer", "min-lr-fraction", "FRACTION", OPTION_REAL, AT(min_lr_fraction), 0, 1, "0.1", "",
     "final learning rate of cosine and wsd, as a fraction of --lr"},
    {"Optimizer", "weight-decay", "X", OPTION_REAL, AT(weight_decay), 0, 100, "0.1", "", "AdamW weight decay; applies to matrices only"},
    {"Optimizer", "beta1", "X", OPTION_REAL, AT(beta1), 0, 0.999999, "0.9", "", "AdamW: decay rate of the first moment"},
    {"Optimizer", "beta2", "X", OPTION_REAL, AT(beta2), 0, 0.999999, "0.95", "", "AdamW: decay rate of the second moment"},
    {"Optimizer", "eps", "X", OPTION_REAL, AT(eps), 1e-30, 1, "1e-8", "", "AdamW: added to the square root of the second moment"},
    {"Optimizer", "moments", "", OPTION_CHOICE, AT(moments), 0, 0, "f32", "f32|bf16",
     "how both moments of AdamW are stored, on the device, the host and in states; bf16 takes 4 bytes a parameter less: "
     "they are computed with in float, and rounded up or down at random, unbiased"},
    {"Optimizer", "grad-clip", "X", OPTION_REAL, AT(grad_clip), 0, 1e9, "1", "", "clip the gradient to this norm; 0 = no clipping"},
    {"Optimizer", "skip-spikes", "Z", OPTION_REAL, AT(skip_spikes), 0, 1e9, "0", "",
     "a step whose loss or gradient norm is more than Z standard deviations above the mean of the 128 steps before it "
     "changes no parameter (6 is usual); 0 = every step does"},
    {"Optimizer", "stochastic-rounding", "", OPTION_FLAG, AT(stochastic_rounding), 0, 0, "", "",
     "round bf16 parameters up or down at random, unbiased, instead of to nearest; the float master weights do not change, but forward and "
     "backward then see small updates before these add up to half a bf16 step"},

    {"Output", "out", "DIR", OPTION_TEXT, AT(out), 0, 0, "", "",
     "save training states to DIR/step-N: at the end, every --save-every steps, and on SIGTERM or SIGUSR1, which end the run"},
    {"Output", "save-every", "N", OPTION_COUNT, AT(save_every), 1, 1000000000000.0, "", "",
     "steps between saved states (if absent: save only at the end)"},
    {"Output", "keep", "N", OPTION_COUNT, AT(keep), 1, 1000, "2", "",
     "number of saved states to keep; the oldest is removed when a new one is complete"},
    {"Output", "keep-every", "N", OPTION_COUNT, AT(keep_every), 1, 1000000000000.0, "", "", "never remove the states of every N-th step"},
    {"Output", "resume", "", OPTION_FLAG, AT(resume), 0, 0, "", "",
     "continue from the newest complete state in --out, also on another grid or with other ZeRO degrees; start from the beginning if there "
     "is none"},
    {"Output", "new-data", "", OPTION_FLAG, AT(new_data), 0, 0, "", "",
     "with --resume: where --train-data, --seq-len, --seed or the token between documents is not the state's, "
     "go on from its parameters, moments and step with the first sample of the new data "
     "(for a longer context, or past data that made training diverge); RoPE may change, too"},
    {"Output", "export", "DIR", OPTION_TEXT, AT(export_to), 0, 0, "", "",
     "at the end, write a Hugging Face folder: config.json, safetensors, and the tokenizer files of the --model folder; "
     "DIR must not exist (where it is taken while the run trains, the model is written beside it, as DIR-2)"},
    {"Output", "export-dtype", "", OPTION_CHOICE, AT(export_dtype), 0, 0, "auto", "auto|f32|bf16|f16",
     "number type of exported tensors; auto: for each tensor the one it has in the --model folder, f32 if there is none"},
    {"Output", "log", "FILE", OPTION_TEXT, AT(log), 0, 0, "", "",
     "write JSON lines: one for the run, then one per step, evaluation, sample and saved state; "
     "a run that trains from the beginning replaces the file, others append"},
    {"Output", "trace", "FILE", OPTION_TEXT, AT(trace), 0, 0, "", "",
     "write Chrome trace events of this run, for Perfetto (several ranks: FILE.rank0, FILE.rank1, ...); "
     "for runs of a few steps: every event is kept in memory"},
    {"Output", "eval-every", "N", OPTION_COUNT, AT(eval_every), 1, 1000000000000.0, "", "",
     "evaluate on --val-data before the first step, every N steps and after the last (if absent: only after the last)"},
    {"Output", "eval-steps", "N", OPTION_COUNT, AT(eval_steps), 1, 1000000000000.0, "10", "",
     "evaluate on the first N x (sequences of an optimizer step) sequences of each set"},
    {"Output", "eval-tokens", "N", OPTION_COUNT, AT(eval_tokens), 1, 1000000000000000.0, "", "",
     "in place of --eval-steps: evaluate on the first sequences of each set that hold N tokens, the same whatever the batch; "
     "more than a set has: on all of it"},
    {"Output", "eval-needles", "N", OPTION_COUNT, AT(eval_needles), 1, 1000000, "", "",
     "at each evaluation, hide N needles (4 random key tokens, 4 value tokens) at each of 5 depths of the first --val-data set and repeat "
     "the key at the end; report how often the value's tokens are the arg max, and their loss"},
    {"Output", "sample-every", "N", OPTION_COUNT, AT(sample_every), 1, 1000000000000.0, "", "",
     "every N steps and after the last one, print tokens drawn from the model (if absent: never)"},
    {"Output", "sample-prompt", "IDS|TEXT", OPTION_TEXT, AT(sample_prompt), 0, 0, "", "",
     "prompt of the samples: token numbers such as 1,15,42, or text if tokens are bytes (if absent: the first 32 tokens of --val-data or "
     "--train-data)"},
    {"Output", "sample-tokens", "N", OPTION_COUNT, AT(sample_tokens), 1, 1048576, "32", "",
     "tokens to draw, each by a forward pass; prompt and tokens must fit in --seq-len"},
    {"Output", "sample-temperature", "X", OPTION_REAL, AT(sample_temperature), 0, 100, "0", "",
     "draw from softmax(logits / X); 0 = always the most likely token"},

    {"Other", "deterministic", "", OPTION_FLAG, AT(deterministic), 0, 0, "", "",
     "the same command gives the same bits; on CUDA: fixed algorithms instead of the fastest, and the slower backward pass of our own "
     "attention kernels; the CPU device always is, with as many --threads"},
    {"Other", "verify", "", OPTION_FLAG, AT(verify), 0, 0, "", "",
     "before training, run one step of a small model on this grid and on one rank, and refuse to train if their gradients differ: for new "
     "machines, libraries and grids"},
    {"Other", "dry-run", "", OPTION_FLAG, AT(dry_run), 0, 0, "", "",
     "print a rank's memory by category and, with --cluster or --memory-budget, the longest sequence that fits; trains nothing, needs "
     "neither ranks nor a device"},
    {"Other", "plan", "", OPTION_FLAG, AT(plan), 0, 0, "", "",
     "print the fastest configurations for --ranks ranks of --cluster, and the command for the best one; trains nothing"},
    {"Other", "plan-json", "FILE", OPTION_TEXT, AT(plan_json), 0, 0, "", "",
     "write the plan as JSON, with every grid that fits (at most the 256 fastest); requires --plan"},
    {"Other", "cluster", "NAME|FILE", OPTION_TEXT, AT(cluster), 0, 0, "", "",
     "machines that --plan, --dry-run and a run's predictions assume: h100, h200, b200, gb200, a100-4nic, a100-4nic-datasheet, cpu, "
     "or a file such as clusters/h100.txt (if absent: cpu on the CPU device; on GPUs that of the GPU at hand, else h100)"},
    {"Other", "calibrate", "", OPTION_FLAG, AT(calibrate), 0, 0, "", "",
     "measure these machines with the ranks started, and write a file for --cluster; trains nothing; --model sets the shapes (if absent: "
     "tiny)"},
    {"Other", "cluster-out", "FILE", OPTION_TEXT, AT(cluster_out), 0, 0, "", "",
     "file that --calibrate writes (if absent: standard output)"},
    {"Other", "ranks", "N", OPTION_COUNT, AT(ranks), 1, 1073741824, "", "",
     "ranks that --dry-run and --plan assume (if absent: dp x hp x cp; with --plan: the ranks started)"},
    {"Other", "help", "", OPTION_FLAG, AT(help), 0, 0, "", "", "print this text"},
    {"Other", "version", "", OPTION_FLAG, AT(version), 0, 0, "", "", "print the version of this build"},
};
#undef AT
enum { OPTION_ROWS = sizeof option_rows / sizeof option_rows[0] };
// The row of that name, or -1.
static inline int options_find(const char *name, size_t length) {
    for (int i = 0; i < OPTION_ROWS; i++)
        if (strlen(option_rows[i].name) == length && memcmp(option_rows[i].name, name, length) == 0) return i;
    return -1;
}
static inline bool options_given(const options *o, const char *name) {
    int row = options_find(name, strlen(name));
    return row >= 0 && o->given[row];
}

// ---- values ----

// Decimal digits and a suffix (K, M; `bytes`: KiB to TiB): the whole text, and no overflow.
static inline bool option_parse_whole(const char *text, bool bytes, int64_t *value) {
    static const struct {
        const char *suffix;
        bool bytes;
        int shift;
    } suffixes[] = {{"", true, 0},     {"", false, 0},    {"K", false, 10},  {"M", false, 20},
                    {"KiB", true, 10}, {"MiB", true, 20}, {"GiB", true, 30}, {"TiB", true, 40}};
    int64_t n = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (n > (INT64_MAX - 9) / 10) return false;
        n = n * 10 + (*at - '0');
    }
    if (at == text) return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (suffixes[i].bytes == bytes && strcmp(at, suffixes[i].suffix) == 0) {
            if (n > INT64_MAX >> suffixes[i].shift) return false;
            *value = n << suffixes[i].shift;
            return true;
        }
    return false;
}
static inline bool option_parse_real(const char *text, double *value) {
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) return false; // no nan, inf, hexadecimal, blanks
    char *end = NULL;
    errno = 0;
    *value = strtod(text, &end);
    return *end == '\0' && end != text && errno == 0; // ERANGE: too large, or so small that it would be 0
}
// The place of `text` in "a|b|c", or -1; and the text at a place.
static inline int option_choice_find(const char *choices, const char *text) {
    size_t length = strlen(text);
    int place = 0;
    for (const char *at = choices;; place++) {
        size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, text, n) == 0) return place;
        if (at[n] == '\0') return -1;
        at += n + 1;
    }
}
static inline void option_choice_text(const char *choices, int place, char *text, size_t size) {
    const char *at = choices;
    for (; place > 0; place--) at += strcspn(at, "|") + 1;
    snprintf(text, size, "%.*s", (int)strcspn(at, "|"), at);
}

// Which values a row takes, for messages: "numbers from 0 to 1".
static inline void option_legal(const option_row *row, char *text, size_t size) {
    switch (row->kind) {
    case OPTION_TEXT: snprintf(text, size, "text of 1 to %d bytes without control characters", OPTION_TEXT_BYTES - 1); break;
    case OPTION_FLAG: snprintf(text, size, "none (the option takes no value)"); break;
    case OPTION_COUNT: snprintf(text, size, "whole numbers from %.0f to %.0f (K = 1024, M = 1048576)", row->low, row->high); break;
    case OPTION_BYTES: snprintf(text, size, "whole numbers of bytes, or with the suffix KiB, MiB, GiB or TiB, from 1MiB to 1024TiB"); break;
    case OPTION_COUNT_OR_AUTO:
        snprintf(text, size, "auto, and whole numbers from %.0f to %.0f (K = 1024, M = 1048576)", row->low, row->high);
        break;
    case OPTION_TOKEN: snprintf(text, size, "none, and token numbers of the model's vocabulary, from 0"); break;
    case OPTION_REAL: snprintf(text, size, "numbers from %g to %g", row->low, row->high); break;
    case OPTION_CHOICE: {
        size_t used = 0;
        for (const char *at = row->choices; *at != '\0' && used + 3 < size; at++) { // "a|b" -> "a, b"
            text[used++] = *at == '|' ? ',' : *at;
            if (*at == '|') text[used++] = ' ';
        }
        text[used] = '\0';
        break;
    }
    case OPTION_DEGREE: snprintf(text, size, "full, replica, and whole numbers from %.0f to %.0f", row->low, row->high); break;
    }
}

// Stores `text` (which must outlive o) as the value of a row. False: not legal, nothing stored.
static inline bool option_store(options *o, const option_row *row, const char *text) {
    char *field = (char *)o + row->offset;
    int64_t whole = 0;
    double real = 0;
    switch (row->kind) {
    case OPTION_TEXT:
        for (const char *at = text; *at != '\0'; at++)
            if ((unsigned char)*at < 32 || *at == 127) return false;
        if (text[0] == '\0' || strlen(text) >= OPTION_TEXT_BYTES) return false;
        *(const char **)field = text;
        return true;
    case OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_COUNT_OR_AUTO:
    case OPTION_TOKEN:
    case OPTION_DEGREE:
        if (row->kind == OPTION_DEGREE && strcmp(text, "full") == 0) whole = ZERO_FULL;
        else if (row->kind == OPTION_DEGREE && strcmp(text, "replica") == 0) whole = 1;
        else if (row->kind == OPTION_COUNT_OR_AUTO && strcmp(text, "auto") == 0) whole = 0;
        else if (row->kind == OPTION_TOKEN && strcmp(text, "none") == 0) whole = -1;
        else if (!option_parse_whole(text, row->kind == OPTION_BYTES, &whole) || (double)whole < row->low || (double)whole > row->high)
            return false;
        *(int64_t *)field = whole;
        return true;
    case OPTION_REAL:
        if (!option_parse_real(text, &real) || real < row->low || real > row->high) return false;
        *(double *)field = real;
        return true;
    case OPTION_CHOICE: {
        int place = option_choice_find(row->choices, text);
        if (place < 0) return false;
        memcpy(field, &place, sizeof place); // an enum is as large as an int
        return true;
    }
    }
    return false;
}
// The value of a row as text.
static inline void option_format(const options *o, const option_row *row, char *text, size_t size) {
    const char *field = (const char *)o + row->offset;
    int number = 0;
    switch (row->kind) {
    case OPTION_TEXT: snprintf(text, size, "%s", *(const char *const *)field != NULL ? *(const char *const *)field : "-"); return;
    case OPTION_FLAG: snprintf(text, size, "%s", *(const bool *)field ? "yes" : "no"); return;
    case OPTION_REAL: {
        double real = *(const double *)field;
        for (int digits = 6; digits <= 17; digits++) { // as many as it takes: plans are run, and ranks compared, by this text
            snprintf(text, size, "%.*g", digits, real);
            if (strtod(text, NULL) == real) break;
        }
        if (real == 0 && row->low > 0) snprintf(text, size, "-");
        return;
    }
    case OPTION_CHOICE:
        memcpy(&number, field, sizeof number);
        option_choice_text(row->choices, number, text, size);
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_COUNT_OR_AUTO:
    case OPTION_TOKEN:
    case OPTION_DEGREE: {
        int64_t whole = *(const int64_t *)field;
        if (row->kind == OPTION_DEGREE && whole == ZERO_FULL) snprintf(text, size, "full");
        else if (row->kind == OPTION_DEGREE && whole == 1) snprintf(text, size, "replica");
        else if (row->kind == OPTION_COUNT_OR_AUTO && whole == 0) snprintf(text, size, "auto");
        else if (row->kind == OPTION_TOKEN && whole == -1) snprintf(text, size, "none");
        else if (whole == 0 && row->low > 0) snprintf(text, size, "-");
        else snprintf(text, size, "%lld", (long long)whole);
        return;
    }
    }
}

// Options and their values as texts; keeps: which ones, NULL: all. The caller deletes it.
static inline cJSON *options_json(const options *o, bool (*keeps)(const option_row *)) {
    cJSON *json = cJSON_CreateObject();
    for (int i = 0; i < OPTION_ROWS; i++) {
        char value[OPTION_TEXT_BYTES];
        option_format(o, &option_rows[i], value, sizeof value);
        if (keeps == NULL || keeps(&option_rows[i])) json_add_text(json, option_rows[i].name, value);
    }
    return json;
}

// ---- parsing ----

// How many letters must be put in, taken out or changed to make b of a; b shorter than 64.
static inline int option_distance(const char *a, const char *b) {
    int row[64], length = (int)strlen(b);
    for (int j = 0; j <= length; j++) row[j] = j;
    for (; *a != '\0'; a++) {
        int diagonal = row[0]++;
        for (int j = 1; j <= length; j++) {
            int change = diagonal + (*a != b[j - 1]), other = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            diagonal = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[length];
}
// What other programs call options, where the name has none of ours in it.
static const struct {
    const char *name, *ours;
} option_other_names[] = {
    {"h", "help"}, {"learning-rate", "lr"}, {"peak-lr", "lr"}, {"max-grad-norm", "grad-clip"}, {"clip-grad", "grad-clip"},
    {"data-path", "train-data"}, {"val-file", "val-data"}, {"sequence-length", "seq-len"}, {"train-iters", "steps"},
    {"save-steps", "save-every"}, {"gradient-accumulation-steps", "grad-accum"}, {"data-parallel", "dp"}, {"head-parallel", "hp"},
    {"ulysses", "hp"}, {"context-parallel", "cp"}, {"sequence-parallel", "cp"}, {"checkpoint-dir", "out"},
};
// Suggests the option of nearly the same letters, by either name; else the one that shares most of them, one name being part of the other.
static inline bool options_unknown(const char *argument, error_text *error) {
    const char *at = argument + strspn(argument, "-"), *best = NULL;
    char name[48];
    int length = 0, most = 0;
    for (; *at != '\0' && *at != '=' && length < (int)sizeof name - 1; at++)
        name[length++] = *at == '_' ? '-' : (char)tolower((unsigned char)*at);
    name[length] = '\0';
    for (size_t i = 0; i < OPTION_ROWS + sizeof option_other_names / sizeof option_other_names[0]; i++) {
        const char *known = i < OPTION_ROWS ? option_rows[i].name : option_other_names[i - OPTION_ROWS].name;
        int wrong = option_distance(name, known), shared = (int)min_i64(length, (int64_t)strlen(known)), score = 0;
        if (wrong == 0 || (length > 2 && wrong <= 1 + length / 5)) score = 100 - wrong;
        else if (shared > 2 && (strstr(known, name) != NULL || strstr(name, known) != NULL)) score = shared;
        if (score <= most) continue;
        most = score;
        best = i < OPTION_ROWS ? known : option_other_names[i - OPTION_ROWS].ours;
    }
    if (best != NULL)
        return error_set(error, "unknown option %s; did you mean --%s? (--help lists every option)", printable(argument).text, best);
    return error_set(error, "unknown option %s; --help lists every option", printable(argument).text);
}

// last: the row of the option before it, or NULL.
static inline bool options_stray(const char *argument, const option_row *last, error_text *error) {
    bool flag = last != NULL && last->kind == OPTION_FLAG;
    bool patterns = last != NULL && (strcmp(last->name, "train-data") == 0 || strcmp(last->name, "val-data") == 0);
    return error_set(error, "stray argument \"%s\"%s%s%s; options are --name value or --name=value, and --help lists them%s",
                     printable(argument).text, flag ? ": --" : "", flag ? last->name : "", flag ? " takes no value" : "",
                     patterns ? ". A pattern of several files must be in quotes: 'data/train*.bin'" : "");
}

// Every option at its default.
static inline void options_default(options *o) {
    memset(o, 0, sizeof *o);
    for (int i = 0; i < OPTION_ROWS; i++)
        if (option_rows[i].initial[0] != '\0') option_store(o, &option_rows[i], option_rows[i].initial);
}

// *o = the command line argv[1], ... argv[argc-1] over the defaults; argv must outlive it. --help and --version end the parsing: the rest
// is not looked at. Returns false with a one-line message: unknown option, missing or illegal value, given twice, stray argument, required
// one absent. What depends on the model or on the number of ranks is options_check's.
static inline bool options_parse(options *o, int argc, char **argv, error_text *error) {
    options_default(o);
    const option_row *row = NULL; // of the last option
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (argument[0] != '-' || argument[1] == '\0') return options_stray(argument, row, error);
        size_t length = strncmp(argument, "--", 2) == 0 ? strcspn(argument + 2, "=") : 0;
        int at = length > 0 ? options_find(argument + 2, length) : -1;
        if (at < 0) return options_unknown(argument, error);
        row = &option_rows[at];
        const char *value = argument[2 + length] == '=' ? argument + 2 + length + 1 : NULL;
        char legal[256];
        option_legal(row, legal, sizeof legal);
        if (o->given[at]) return error_set(error, "--%s is given twice; give it once", row->name);
        o->given[at] = true;
        if (row->kind == OPTION_FLAG && value != NULL)
            return error_set(error, "--%s=%s: the option takes no value; write --%s", row->name, printable(value).text, row->name);
        if (row->kind != OPTION_FLAG && value == NULL && i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0) value = argv[++i];
        if (row->kind != OPTION_FLAG && (value == NULL || value[0] == '\0'))
            return error_set(error, "--%s: the value is missing; legal values are %s", row->name, legal);
        if (!option_store(o, row, value != NULL ? value : ""))
            return error_set(error, "--%s: \"%s\" is not legal; legal values are %s", row->name, printable(value).text, legal);
        if (row->kind == OPTION_TEXT && strncmp(value, "~/", 2) == 0)
            return error_set(error, "--%s: the shell has left the ~ of \"%s\" as it is; write --%s ~/... without quotes, or $HOME/...",
                             row->name, printable(value).text, row->name);
        if (o->help || o->version) return true;
    }
    if (o->cluster_out != NULL && !o->calibrate) return error_set(error, "--cluster-out is legal only with --calibrate");
    if (o->calibrate) {
        for (int i = 0; i < OPTION_ROWS; i++)
            if (o->given[i] && !word_listed(" calibrate model cluster cluster-out threads deterministic ", option_rows[i].name))
                return error_set(error, "--%s has no effect with --calibrate; legal with it are "
                                        "--model, --cluster, --cluster-out, --threads and --deterministic", option_rows[i].name);
        return true;
    }
    if (o->plan && o->dry_run)
        return error_set(error, "--plan and --dry-run are two questions; give only one of them "
                                "(--dry-run also takes the command that --plan prints)");
    if (o->plan && o->steps == 0) return error_set(error, "--plan plans training, and --steps 0 trains nothing; give only one of them");
    if (o->model == NULL)
        return error_set(error, "--model is missing; legal values are a Hugging Face folder or one of %s (--help lists every option)",
                         config_preset_names().text);
    if (o->train_data == NULL && !o->dry_run && !o->plan && o->steps > 0)
        return error_set(error, "--train-data is missing; legal values are patterns of token files, such as 'data/train*.bin' "
                                "(not needed with --dry-run, --plan or --steps 0)");
    int64_t sequences = max_i64(o->global_batch, o->batch_size * o->grad_accum);
    if (sequences > ((int64_t)1 << 40) / o->seq_len) // what follows from it is counted in 64 bits
        return error_set(error, "%lld sequences a step x --seq-len %lld is too large; a step may have at most 1099511627776 tokens",
                         (long long)sequences, (long long)o->seq_len);
    return true;
}

// ---- what options change in the model ----

// "yarn:factor=4,original=8K" as Hugging Face's rope_scaling into `json`. Numbers are any that options take. False: not of this form.
static inline bool options_rope_json(const char *text, cJSON *json) {
    static const char *const kinds = "llama3|linear|yarn";
    char word[64];
    size_t n = strcspn(text, ":");
    snprintf(word, sizeof word, "%.*s", (int)min_i64((int64_t)n, 63), text);
    if (option_choice_find(kinds, word) < 0) return false;
    cJSON_AddStringToObject(json, "rope_type", word);
    for (const char *at = text + n; *at != '\0'; at += n) { // at the ':' or ',' before a pair
        at++;
        size_t equals = strcspn(at, "=,");
        n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)min_i64((int64_t)equals, 63), at);
        int i = 0;
        while (i < ROPE_NUMBERS && strcmp(rope_numbers[i].option, word) != 0) i++;
        if (i == ROPE_NUMBERS || equals == n) return false;
        snprintf(word, sizeof word, "%.*s", (int)min_i64((int64_t)(n - equals - 1), 63), at + equals + 1);
        int64_t whole;
        double value;
        if (option_parse_whole(word, false, &whole)) value = (double)whole;
        else if (!option_parse_real(word, &value)) return false;
        cJSON_AddNumberToObject(json, rope_numbers[i].key, value);
    }
    return true;
}
// --rope-theta and --rope-scaling take the place of what the model says, and a model that is trained on longer sequences than it was made
// for is made for these. What is legal is config_read_rope's to say, as for a config.json. False with a one-line message.
static inline bool options_model(const options *o, model_config *c, error_text *error) {
    if (c->HS > DEVICE_HEAD_SIZE_MAX || c->D > DEVICE_HIDDEN_SIZE_MAX)
        return error_set(error, "%s has head size %d and hidden size %d; this build supports up to %d and %d (DEVICE=cpu: 4096 and 262144)",
                         printable(c->name).text, c->HS, c->D, DEVICE_HEAD_SIZE_MAX, DEVICE_HIDDEN_SIZE_MAX);
    if (c->window > 0 && o->seq_len > c->window)
        return error_set(error, "%s has a sliding window of %lld tokens, and sequences that are longer are not supported; "
                                "legal values of --seq-len are 1 to %lld (any, where \"sliding_window\" in config.json is null)",
                         printable(c->name).text, (long long)c->window, (long long)c->window);
    if (o->steps > 0) c->max_position = max_i64(c->max_position, o->seq_len);
    if (o->rope_theta > 0) c->rope_theta = o->rope_theta;
    if (o->rope_scaling == NULL) return true;
    error_text why = {"", 0};
    memset(&c->rope, 0, sizeof c->rope);
    if (strcmp(o->rope_scaling, "none") == 0) return true;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "rope_theta", c->rope_theta);
    bool ok = options_rope_json(o->rope_scaling, cJSON_AddObjectToObject(json, "rope_scaling")) && config_read_rope(c, json, &why);
    cJSON_Delete(json);
    // The length that yarn makes: transformers 4.51 to 4.56 compute the factor from it (its issue 38224). At most 2^40, as in config_read.
    if (ok && c->rope.kind == ROPE_YARN)
        c->max_position = max_i64(c->max_position, (int64_t)fmin(0x1p40, c->rope.factor * c->rope.original_length));
    return ok || error_set(error, "--rope-scaling: \"%s\" is not legal%s%s; legal values are " ROPE_SCALING_LEGAL,
                           printable(o->rope_scaling).text, why.text[0] != '\0' ? ": " : "", why.text);
}

// ---- checks between options, model and ranks ----

// Packed documents: whether there are, and how they are told apart.
static inline bool options_packed(const options *o) { return o->document_end >= 0 || o->document_begin >= 0; }
static inline document_mark options_document(const options *o) {
    return (document_mark){(int32_t)max_i64(o->document_end, o->document_begin), o->document_end >= 0};
}
// What of the model states lies on the host.
static inline zero_offload options_offload(const options *o) {
    return o->offload_parameters  ? OFFLOAD_PARAMETERS
           : o->offload_gradients ? OFFLOAD_GRADIENTS
           : o->offload_optimizer ? OFFLOAD_OPTIMIZER
                                  : OFFLOAD_NONE;
}

// "1, 2, 4, 8": the divisors of n >= 1 in order; cut with "..." when there are too many.
static inline list_text options_divisors(int64_t n) {
    list_text list;
    size_t used = 0;
    int64_t root = 1;
    while ((root + 1) * (root + 1) <= n) root++;
    for (int64_t i = 1; i <= 2 * root; i++) { // up to the root, then the other divisor of each pair on the way back
        int64_t small = i <= root ? i : 2 * root + 1 - i, d = i <= root ? small : n / small;
        if (n % small != 0 || (i > root && small * small == n)) continue;
        bool full = used + 32 > sizeof list.text;
        used += (size_t)snprintf(list.text + used, sizeof list.text - used, full ? ", ..." : d > 1 ? ", %lld" : "%lld", (long long)d);
        if (full) break;
    }
    return list;
}
// A degree that shards over ranks and must hold `inner` whole shards of the state before it.
static inline bool options_check_degree(int64_t *degree, const char *name, int64_t ranks, int64_t inner, const char *inner_name,
                                        error_text *error) {
    if (*degree == ZERO_FULL) *degree = ranks;
    if (*degree == 0) *degree = inner;
    if (ranks % *degree != 0)
        return error_set(error, "%s %lld does not divide the %lld ranks; legal values are %s (or full, replica)", name,
                         (long long)*degree, (long long)ranks, options_divisors(ranks).text);
    if (*degree % inner != 0)
        return error_set(error, "%s %lld is not a multiple of %s %lld "
                                "(optimizer shards nest in gradient shards, and these in parameter shards); "
                                "legal values are multiples of %lld among %s",
                         name, (long long)*degree, inner_name, (long long)inner, (long long)inner, options_divisors(ranks).text);
    return true;
}

// The window size where none is given. A ring between nodes leaves each of them over one network card; windows inside nodes, of as many
// ranks as there are cards, use all of them (LoongTrain section 4.5.3). So the largest divisor of cp that is no more than the cards, and
// with which no window lies in two nodes.
static inline int64_t options_inner_ring(const options *o) {
    int64_t apart = o->placement == PLACEMENT_HEAD_FIRST ? o->hp : 1, w = min_i64(o->nics_per_node, o->gpus_per_node / apart);
    if (o->cp_comm == CP_COMM_ALLGATHER || o->cp * apart <= o->gpus_per_node || w <= 1) return o->cp;
    while (w > 1 && (o->cp % w != 0 || o->gpus_per_node % (w * apart) != 0)) w--;
    return w == 1 ? o->cp : w;
}

// Whether warm-up and decay fit into the `steps` steps that the schedule covers (learning_rate.h): those of the run, or with --lr-restart,
// once the state is read, those since the new data.
static inline bool options_check_schedule(const options *o, int64_t steps, error_text *error) {
    if (o->warmup > steps && steps > 0)
        return error_set(error, "--warmup %lld is longer than the %lld steps of the schedule; legal values are 0 to %lld",
                         (long long)o->warmup, (long long)steps, (long long)steps);
    if (o->lr_schedule == LR_WSD && (double)o->warmup > (1 - o->wsd_decay) * (double)steps + 1e-6 && steps > 0)
        return error_set(error, "--warmup %lld reaches into the steps over which wsd decays; "
                                "legal values with --wsd-decay %g are 0 to %lld",
                         (long long)o->warmup, o->wsd_decay, (long long)((1 - o->wsd_decay) * (double)steps + 1e-6));
    return true;
}
// Whether states use a name in the folder of --out (training_state.h).
static inline bool options_state_name(const char *name) {
    return strcmp(name, "lock") == 0 || strncmp(name, "step-", 5) == 0 || strncmp(name, "unfinished-", 11) == 0 ||
           strncmp(name, "damaged-", 8) == 0;
}
// Whether a path lies in a state of the folder `out`, at any depth.
static inline bool options_in_state(const char *path, const char *out) {
    path_text above = path_parent(path);
    if (strcmp(above.text, path) == 0) return false; // "/" or "."
    return (options_state_name(path_last(above.text).text) && path_same(path_parent(above.text).text, out)) ||
           options_in_state(above.text, out);
}
// Options that require or exclude others, or a build.
static inline bool options_check_together(const options *o, error_text *error) {
    if (o->offload_gradients && !o->offload_optimizer)
        return error_set(error, "--offload-gradients requires --offload-optimizer");
    if (o->offload_gradients && (o->zero_grads != o->ranks || o->zero_optim != o->ranks))
        return error_set(error, "--offload-gradients requires --zero-grads full and --zero-optim full: "
                                "a rank keeps no more of the gradients on the host than it updates");
    if (o->offload_parameters && (!o->offload_gradients || o->zero_params != o->ranks))
        return error_set(error, "--offload-parameters requires --offload-gradients and --zero-params full");
    if (!options_check_schedule(o, o->steps, error)) return false;
    if (options_given(o, "wsd-decay") && o->lr_schedule != LR_WSD)
        return error_set(error, "--wsd-decay requires --lr-schedule wsd");
    if (options_given(o, "min-lr-fraction") && o->lr_schedule == LR_CONSTANT)
        return error_set(error, "--min-lr-fraction has no effect with --lr-schedule constant; it requires cosine or wsd");
    if ((options_given(o, "eval-every") || options_given(o, "eval-steps") || o->eval_tokens > 0 || o->eval_needles > 0) &&
        o->val_data == NULL)
        return error_set(error, "--eval-every, --eval-steps, --eval-tokens and --eval-needles require --val-data");
    if (options_given(o, "eval-steps") && o->eval_tokens > 0)
        return error_set(error, "--eval-steps and --eval-tokens both say how much is evaluated; give only one of them");
    if (o->check_data && o->train_data == NULL && o->val_data == NULL)
        return error_set(error, "--check-data requires --train-data or --val-data");
    if (o->check_data && o->dry_run && !o->plan)
        return error_set(error, "--check-data reads data, which --dry-run does not; give only one of them");
    if ((o->sample_prompt != NULL || options_given(o, "sample-tokens") || options_given(o, "sample-temperature")) && o->sample_every == 0)
        return error_set(error, "--sample-prompt, --sample-tokens and --sample-temperature require --sample-every");
    if (o->eval_needles > 0 && o->seq_len < 64)
        return error_set(error, "--eval-needles: --seq-len %lld is too short for a needle, a question and text around them; "
                                "it must be 64 or more", (long long)o->seq_len);
    if (o->steps == 0 && (o->trace != NULL || (o->out != NULL && !o->resume)))
        return error_set(error, "%s cannot be combined with --steps 0, which trains nothing; "
                                "legal with it are --export, and --out with --resume", o->trace != NULL ? "--trace" : "--out");
    if ((o->resume || options_given(o, "save-every") || options_given(o, "keep") || o->keep_every > 0) && o->out == NULL)
        return error_set(error, "--resume, --save-every, --keep and --keep-every require --out DIR");
    if (o->keep_every > 0 && o->save_every == 0) return error_set(error, "--keep-every requires --save-every, of which it is a multiple");
    if (o->keep_every > 0 && o->keep_every % o->save_every != 0)
        return error_set(error, "--keep-every %lld: legal values are multiples of --save-every %lld",
                         (long long)o->keep_every, (long long)o->save_every);
    if (o->keep_every > 0 && o->steps / o->keep_every > 1000)
        return error_set(error, "--keep-every %lld would keep %lld states; the limit is 1000: "
                                "legal values with --steps %lld are from %lld on",
                         (long long)o->keep_every, (long long)(o->steps / o->keep_every), (long long)o->steps,
                         (long long)(o->steps / 1001 + 1));
    if (o->new_data && !o->resume) return error_set(error, "--new-data requires --resume");
    if (o->lr_restart && !o->new_data) return error_set(error, "--lr-restart requires --new-data");
    if (o->out != NULL && o->export_to != NULL && path_same(o->out, o->export_to))
        return error_set(error, "--out and --export are both %s; give two different folders", printable(o->out).text);
    if (o->out != NULL && o->export_to != NULL && path_within(o->out, o->export_to))
        return error_set(error, "--out %s lies in the folder of --export, which must not exist before; give a folder beside it",
                         printable(o->out).text);
    if (o->export_to != NULL && strlen(path_last(o->export_to).text) > NAME_MAX - strlen("-99.unfinished"))
        return error_set(error, "--export %s: its name is longer than %d bytes", printable(o->export_to).text,
                         NAME_MAX - (int)strlen("-99.unfinished"));
    const char *const kept[] = {o->out, o->model}, *const of[] = {"--out", "--model"};
    path_text unfinished = path_unfinished(o->export_to != NULL ? o->export_to : "");
    for (int i = 0; i < 2 && o->export_to != NULL; i++) {
        if (kept[i] != NULL && (path_same(kept[i], unfinished.text) || path_within(kept[i], unfinished.text)))
            return error_set(error, "%s %s: --export is written there until it is whole, and what is there is removed first; "
                                    "give --export another name", of[i], printable(kept[i]).text);
    }
    const char *const outputs[] = {o->export_to, o->log, o->trace}, *const names[] = {"--export", "--log", "--trace"};
    for (int i = 0; i < 3; i++) {
        if (outputs[i] == NULL) continue;
        short_text text = printable(outputs[i]);
        if (o->out != NULL && path_same(path_parent(outputs[i]).text, o->out) && options_state_name(path_last(outputs[i]).text))
            return error_set(error, "%s %s: in the folder of --out, names such as this are those of states; give another name",
                             names[i], text.text);
        if (o->out != NULL && options_in_state(outputs[i], o->out))
            return error_set(error, "%s %s: lies in a state of --out, which the run may remove; give another folder", names[i], text.text);
        if (i > 0 && o->out != NULL && path_same(outputs[i], o->out))
            return error_set(error, "%s %s: --out will be there; give another name", names[i], text.text);
        if (i > 0 && o->export_to != NULL &&
            (path_same(outputs[i], o->export_to) || path_same(outputs[i], unfinished.text) || path_within(outputs[i], unfinished.text)))
            return error_set(error, "%s %s: --export will be there; give another name", names[i], text.text);
    }
    if (options_given(o, "export-dtype") && o->export_to == NULL)
        return error_set(error, "--export-dtype requires --export DIR");
    if (o->stochastic_rounding && sizeof(floatX) == sizeof(float) && !o->dry_run)
        return error_set(error, "--stochastic-rounding: this build stores parameters in float, so nothing is rounded; "
                                "it requires a build with bf16 parameters (DEVICE=cuda, DEVICE=emulated)");
    if (options_given(o, "ranks") && !o->dry_run)
        return error_set(error, "--ranks is legal only with --dry-run and --plan; a run has as many ranks as mpirun -np starts");
    if (o->plan_json != NULL) return error_set(error, "--plan-json is legal only with --plan");
    double sequences = (double)o->dp * (double)o->batch_size * (double)o->grad_accum * fmax((double)o->steps, (double)o->eval_steps);
    if (sequences > 1e18)
        return error_set(error, "--steps and --eval-steps of %.0f sequences each: at most 1e18 sequences in all are counted",
                         (double)o->dp * (double)o->batch_size * (double)o->grad_accum);
    if (o->host_memory > 0 && o->dry_run && o->cluster == NULL)
        return error_set(error, "--host-memory with --dry-run requires --cluster, which says how many ranks a machine has");
    return true;
}

// Checks the options against the model and the number of ranks, and fills in what was left to be derived: dp, inner_ring, ranks, the ZeRO
// degrees. With --dry-run the number of ranks is --ranks, or dp hp cp, and the argument is not looked at. Returns false with a one-line
// message that lists the legal values.
static inline bool options_check(options *o, const model_config *m, int ranks, error_text *error) {
    if (o->hp == 0) return error_set(error, "--hp auto: no plan was made; legal values here are whole numbers");
    if (!o->from_scratch && !o->dry_run && config_preset(o->model) != NULL)
        return error_set(error, "--model %s is a preset and has no weights; add --from-scratch, or name a Hugging Face folder", o->model);
    if (m->H % o->hp != 0)
        return error_set(error, "--hp %lld does not divide the %d query heads of %s; legal values are %s", (long long)o->hp, m->H,
                         printable(m->name).text, options_divisors(m->H).text);

    int64_t sp = o->hp * o->cp, world = o->dry_run ? o->ranks : ranks;
    if (world == 0) world = sp * max_i64(o->dp, 1);
    if (world > 1 << 30) return error_set(error, "--dp x --hp x --cp is %lld ranks; legal values are 1 to %d", (long long)world, 1 << 30);
    if (o->dp == 0 && world % sp != 0)
        return error_set(error, "--hp %lld x --cp %lld = %lld does not divide the %lld rank%s; legal values of the product are %s%s",
                         (long long)o->hp, (long long)o->cp, (long long)sp, (long long)world, plural(world), options_divisors(world).text,
                         world == 1 && !o->dry_run ? " (mpirun -np N starts N ranks)" : "");
    if (o->dp == 0) o->dp = world / sp;
    if (o->dp * sp != world)
        return error_set(error, "--dp %lld x --hp %lld x --cp %lld = %lld, but there %s %lld rank%s; "
                                "the product must equal the number of ranks (%s)",
                         (long long)o->dp, (long long)o->hp, (long long)o->cp, (long long)(o->dp * sp), world > 1 ? "are" : "is",
                         (long long)world, plural(world), o->dry_run ? "--ranks" : "mpirun -np");
    o->ranks = world;
    if (o->global_batch > 0) {
        int64_t micro = o->dp * o->batch_size;
        if (options_given(o, "grad-accum") && options_given(o, "global-batch")) // without the latter it is the planner's
            return error_set(error, "--global-batch sets --grad-accum; give only one of them");
        if (o->global_batch % micro != 0)
            return error_set(error, "--global-batch %lld is not a multiple of dp %lld x --batch-size %lld; "
                                    "legal values are multiples of %lld",
                             (long long)o->global_batch, (long long)o->dp, (long long)o->batch_size, (long long)micro);
        o->grad_accum = o->global_batch / micro;
    }

    if (o->document_end >= 0 && o->document_begin >= 0)
        return error_set(error, "--document-end and --document-begin both tell documents apart; give only one of them");
    if (options_packed(o) && options_document(o).token >= m->V)
        return error_set(error, "--document-%s %d is not a token of %s; legal values are none, and 0 to %d",
                         options_document(o).ends ? "end" : "begin", options_document(o).token, printable(m->name).text, m->V - 1);
    if (o->cp_comm == CP_COMM_ALLGATHER && options_given(o, "inner-ring"))
        return error_set(error, "--inner-ring cannot be combined with --cp-comm allgather, which uses no rings; give only one of them");
    if (o->inner_ring == 0) o->inner_ring = options_inner_ring(o);
    if (o->cp % o->inner_ring != 0)
        return error_set(error, "--inner-ring %lld does not divide --cp %lld; legal values are %s",
                         (long long)o->inner_ring, (long long)o->cp, options_divisors(o->cp).text);
    if ((o->gpus_per_node > 0) != (o->nics_per_node > 0))
        return error_set(error, "--gpus-per-node and --nics-per-node must be given together");

    if (!options_check_degree(&o->zero_params, "--zero-params", world, 1, "", error)) return false;
    if (!options_check_degree(&o->zero_grads, "--zero-grads", world, o->zero_params, "--zero-params", error)) return false;
    if (o->zero_optim == 0) o->zero_optim = ZERO_FULL;
    if (!options_check_degree(&o->zero_optim, "--zero-optim", world, o->zero_grads, "--zero-grads", error)) return false;
    return options_check_together(o, error);
}

// ---- print ----

// --help: every row of the table by group, with its default and choices.
static inline void options_help(FILE *f) {
    enum { TEXT_AT = 42, TEXT_WIDTH = 90 };
    fprintf(f, "train_llama trains Llama-3 models on very long sequences with 2D-Attention.\n\n");
    fprintf(f, "    mpirun -np 4 ./train_llama --model tiny --from-scratch --train-data 'data/train.bin' --seq-len 1K --hp 2 --cp 2\n\n");
    fprintf(f, "Options are written --name value or --name=value; defaults are in [brackets]. "
               "N is a whole number; the suffixes K and M multiply\n"
               "it by 1024 and 1048576.\n");
    fprintf(f, "Presets:\n%s.\n", config_preset_names().text);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const option_row *row = &option_rows[i];
        if (i == 0 || strcmp(row->group, option_rows[i - 1].group) != 0) fprintf(f, "\n%s\n", row->group);
        char left[128], text[512];
        snprintf(left, sizeof left, "  --%s %s", row->name, row->kind == OPTION_CHOICE ? row->choices : row->value);
        bool set = row->initial[0] != '\0';
        snprintf(text, sizeof text, "%s%s%s%s", row->help, set ? " [" : "", row->initial, set ? "]" : "");
        if ((int)strlen(left) + 1 > TEXT_AT) fprintf(f, "%s\n%*s", left, TEXT_AT, "");
        else fprintf(f, "%-*s", TEXT_AT, left);
        const char *at = text;
        while ((int)strlen(at) > TEXT_WIDTH) { // break at the last blank that fits
            int n = TEXT_WIDTH;
            while (n > 0 && at[n] != ' ') n--;
            if (n == 0) n = TEXT_WIDTH;
            fprintf(f, "%.*s\n%*s", n, at, TEXT_AT, "");
            at += n + (at[n] == ' ');
        }
        fprintf(f, "%s\n", at);
    }
    fprintf(f, "\nExit status: 0 success; "
               "1 failure of a rank, disk or network, including a last state, --log, --trace or standard output that could\n"
               "not be written, and a folder --out or --export that another run still holds; "
               "2 an error that a retry would not\n"
               "fix: invalid options, model or data, a loss or gradient norm that is not finite, a last state, --log or --trace that\n"
               "could not be written beside an --export, or an --export whose name was taken meanwhile.\n"
               "Environment: TRAIN_LLAMA_TIMEOUT=SECONDS that a transfer between ranks may wait before the job ends (600, or\n"
               "as long as steps of packed documents need; 0 = no limit).\n");
}

// The table of all values; * marks what was asked for and differs from the default.
static inline void options_print(const options *o, FILE *f) {
    enum { VALUE_WIDTH = 48 };
    options initial;
    options_default(&initial);
    char line[80], value[OPTION_TEXT_BYTES + 8], before[OPTION_TEXT_BYTES + 8];
    memset(line, '-', sizeof line);
    fprintf(f, "+%.*s+\n", 26 + VALUE_WIDTH, line);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const option_row *row = &option_rows[i];
        if (strcmp(row->name, "help") == 0 || strcmp(row->name, "version") == 0) continue;
        option_format(o, row, value, sizeof value);
        option_format(&initial, row, before, sizeof before);
        bool changed = o->given[i] && strcmp(value, before) != 0;
        int width = VALUE_WIDTH; // in bytes, of which a letter that is not ASCII takes several
        for (const char *at = value; *at != '\0'; at++) width += ((unsigned char)*at & 0xC0) == 0x80;
        fprintf(f, "| %-20s  %c %-*s |\n", row->name, changed ? '*' : ' ', width, value);
    }
    fprintf(f, "+%.*s+\n", 26 + VALUE_WIDTH, line);
}

#endif
