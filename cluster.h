// The description of a cluster: machines that predictions and plans are for, which need not be at hand. clusters/*.txt are built in;
// --calibrate writes such a file of the machines that are. Units: seconds, bytes, FLOP, bytes/s, FLOP/s.
#ifndef CLUSTER_H
#define CLUSTER_H

#include "cluster_texts.h" // defines: cluster_texts, the text of every clusters/*.txt (build/cluster_texts.h, which make writes)
#include "common.h"        // defines: printable
#include <stddef.h>

typedef enum { FIGURE_MEASURED, FIGURE_DATASHEET, FIGURE_ESTIMATE, FIGURE_KINDS } figure_kind;
enum { CLUSTER_FIGURES = 29 };

// One cluster: identical nodes, and what one GPU and its kernels reach. Every figure is a line of the cluster's file.
typedef struct {
    char name[96];
    // a node
    double gpus_per_node, nics_per_node; // GPU g of a node uses NIC floor(g nics / gpus)
    double ranks_sharing;                // 0: every rank has its own GPU; n: ranks share a machine (CPUs), and the figures are those of n
    double nic_rate;                     // bytes/s of one NIC, each way
    double nvlink_rate;                  // bytes/s of a GPU inside its node, each way
    double host_link_rate;               // bytes/s between a GPU and host memory, in either direction; both at once share it
    double host_memory;                  // bytes per node
    // a GPU
    double memory;                       // bytes
    double peak;                         // FLOP/s of matrix products in the training type
    double hbm_rate;                     // bytes/s
    double element_bytes;                // of a parameter or activation: 2 (bf16), 4 (float)
    // attention kernels
    double attention_forward_efficiency, attention_backward_efficiency; // of peak; where softmax_width is not 0, with heads of 128
    double softmax_width;                // elements of a head whose products take as long as the softmax of a score does on top of them
    double merge_bytes;                  // bytes of memory traffic per Q element and ring step: out and lse, dQ, dK, dV accumulate
    double step_launch;                  // s: constant cost of a ring step, forward and backward together
    double attention_launch;             // s: constant cost of an attention operation, forward and backward together
    double overlap_cost;                 // compute is slowed by this fraction of the time of the transfers that it hides
    // transfers
    double nic_efficiency;               // of nic_rate, one flow of a ring
    double p2p_rate;                     // bytes/s of one send/receive lane inside a node
    double hop_latency;                  // s per ring hop of any size; includes waiting where ranks share cores
    double alltoall_latency;             // s
    double alltoall_pack;                // s per byte: transposes and copies
    double alltoall_efficiency;          // of nic_rate; above 1 when a part is hidden
    double alltoall_congestion;          // slowdown (fraction) per doubling of hp
    // everything else
    double linear_efficiency;            // of peak: projections, MLP, head, with norms and loss
    double weight_bytes;                 // bytes of memory traffic per parameter and micro-step that the matrix products do not hide
    double collective_efficiency;        // of nic_rate and nvlink_rate: all-gather, reduce-scatter
    double optimizer_efficiency;         // of hbm_rate
    figure_kind kinds[CLUSTER_FIGURES];
} cluster;

typedef struct {
    const char *key;
    size_t at; // offset in cluster
    double low, high; // legal values, both included
    bool whole;
} cluster_figure;

// The table behind the parser: every figure a cluster has, with its legal values.
#define FIGURE(name, low, high, whole) {#name, offsetof(cluster, name), low, high, whole}
static const cluster_figure cluster_figures[CLUSTER_FIGURES] = {
    FIGURE(gpus_per_node, 1, 1024, true),
    FIGURE(nics_per_node, 1, 1024, true),
    FIGURE(ranks_sharing, 0, 1024, true),
    FIGURE(nic_rate, 1e3, 1e18, false),
    FIGURE(nvlink_rate, 1e3, 1e18, false),
    FIGURE(host_link_rate, 1e3, 1e18, false),
    FIGURE(host_memory, 1e6, 1e18, false),
    FIGURE(memory, 1e6, 1e18, false),
    FIGURE(peak, 1e6, 1e18, false),
    FIGURE(hbm_rate, 1e3, 1e18, false),
    FIGURE(element_bytes, 2, 4, true),
    FIGURE(attention_forward_efficiency, 1e-6, 1, false),
    FIGURE(attention_backward_efficiency, 1e-6, 1, false),
    FIGURE(softmax_width, 0, 1e4, false),
    FIGURE(merge_bytes, 0, 1e6, false),
    FIGURE(step_launch, 0, 1e3, false),
    FIGURE(attention_launch, 0, 1e3, false),
    FIGURE(overlap_cost, 0, 1, false),
    FIGURE(nic_efficiency, 1e-6, 1, false),
    FIGURE(p2p_rate, 1e3, 1e18, false),
    FIGURE(hop_latency, 0, 1e3, false),
    FIGURE(alltoall_latency, 0, 1e3, false),
    FIGURE(alltoall_pack, 0, 1, false),
    FIGURE(alltoall_efficiency, 1e-6, 4, false),
    FIGURE(alltoall_congestion, 0, 10, false),
    FIGURE(linear_efficiency, 1e-6, 1, false),
    FIGURE(weight_bytes, 0, 1e6, false),
    FIGURE(collective_efficiency, 1e-6, 1, false),
    FIGURE(optimizer_efficiency, 1e-6, 1, false),
};
#undef FIGURE
// Its place in the table; CLUSTER_FIGURES if there is no such figure.
static inline int cluster_find(const char *key) {
    int i = 0;
    while (i < CLUSTER_FIGURES && strcmp(cluster_figures[i].key, key) != 0) i++;
    return i;
}
static inline double *cluster_value(cluster *c, const cluster_figure *f) { return (double *)(void *)((char *)c + f->at); }
static inline const char *figure_kind_name(figure_kind kind) {
    return kind == FIGURE_MEASURED ? "measured" : kind == FIGURE_DATASHEET ? "datasheet" : "estimate";
}

// A line is "key value # kind: comment", a comment "# ...", or empty; it is modified. Sets the figure in *c and marks it in seen
// (CLUSTER_FIGURES). False with a message that names source, line and key.
static inline bool cluster_parse_line(cluster *c, bool *seen, char *line, int number, const char *source, error_text *error) {
    char *hash = strchr(line, '#'), *rest = NULL;
    if (hash != NULL) *hash = '\0';
    char *key = strtok_r(line, " \t\r", &rest);
    if (key == NULL) return true;
    char *text = strtok_r(NULL, " \t\r", &rest), *more = text == NULL ? NULL : strtok_r(NULL, " \t\r", &rest);
    int i = cluster_find(key);
    if (i == CLUSTER_FIGURES) return error_set(error, "%s line %d: unknown key '%s'", source, number, printable(key).text);
    if (seen[i]) return error_set(error, "%s line %d: '%s' is given twice", source, number, key);
    if (text == NULL || more != NULL) return error_set(error, "%s line %d: '%s' needs one value", source, number, key);
    char *end = NULL;
    double value = strtod(text, &end);
    const cluster_figure *f = &cluster_figures[i];
    if (*end != '\0' || !(value >= f->low && value <= f->high) || (f->whole && value != floor(value)))
        return error_set(error, "%s line %d: '%s' is '%s'; it must be a%s number from %g to %g", source, number, key, printable(text).text,
                         f->whole ? " whole" : "", f->low, f->high);
    char *kind = hash == NULL ? NULL : strtok_r(hash + 1, " \t:", &rest);
    int k = 0;
    while (kind != NULL && k < FIGURE_KINDS && strcmp(figure_kind_name((figure_kind)k), kind) != 0) k++;
    if (kind == NULL || k == FIGURE_KINDS)
        return error_set(error, "%s line %d: '%s' does not say where it is from: '# measured:', '# datasheet:' or '# estimate:'",
                         source, number, key);
    *cluster_value(c, f) = value;
    c->kinds[i] = (figure_kind)k;
    seen[i] = true;
    return true;
}

static inline bool cluster_parse(cluster *c, const char *text, const char *source, error_text *error) {
    bool seen[CLUSTER_FIGURES] = {false};
    char line[512];
    int number = 0;
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", source);
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        number++;
        if (n >= sizeof line) return error_set(error, "%s line %d: longer than %zu characters", source, number, sizeof line - 1);
        memcpy(line, text, n);
        line[n] = '\0';
        if (!cluster_parse_line(c, seen, line, number, source, error)) return false;
        text += n + (text[n] == '\n');
    }
    for (int i = 0; i < CLUSTER_FIGURES; i++)
        if (!seen[i]) return error_set(error, "%s: '%s' is missing", source, cluster_figures[i].key);
    if (c->element_bytes != sizeof(float) && c->element_bytes != 2)
        return error_set(error, "%s: 'element_bytes' is %g; legal values are 2 (bf16) and 4 (float)", source, c->element_bytes);
    return true;
}

// Fills *c with a cluster by its name (those of clusters/ are built in) or from a file. False with a message.
static inline bool cluster_load(cluster *c, const char *name_or_file, error_text *error) {
    char known[256] = "", text[16384];
    short_text shown = printable(name_or_file);
    for (int i = 0; i < CLUSTER_TEXTS; i++) {
        if (strcmp(cluster_texts[i].name, name_or_file) == 0)
            return cluster_parse(c, cluster_texts[i].text, name_or_file, error);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i > 0 ? ", " : "", cluster_texts[i].name);
    }
    FILE *f = fopen(name_or_file, "rb");
    if (f == NULL) return error_set_errno(error, "cluster '%s': neither a known cluster (%s) nor a readable file", shown.text, known);
    size_t n = fread(text, 1, sizeof text, f);
    bool ok = ferror(f) == 0 || error_set_errno(error, "cluster '%s': cannot be read", shown.text);
    fclose(f);
    if (!ok) return false;
    if (n == sizeof text || memchr(text, 0, n) != NULL)
        return error_set(error, "cluster '%s': not a cluster file (see clusters/*.txt)", shown.text);
    text[n] = '\0';
    return cluster_parse(c, text, shown.text, error);
}

// The cluster as `ranks` ranks see it: where ranks share a machine, each gets a larger part of it when there are fewer of them.
static inline void cluster_share(cluster *c, int ranks) {
    if (c->ranks_sharing == 0) return;
    double sharing = fmin(ranks, c->gpus_per_node), more = c->ranks_sharing / sharing;
    double *const rates[] = {&c->memory, &c->peak, &c->hbm_rate, &c->nvlink_rate, &c->host_link_rate, &c->p2p_rate};
    double *const times[] = {&c->step_launch, &c->attention_launch, &c->hop_latency, &c->alltoall_latency, &c->alltoall_pack};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] *= more;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) *times[i] /= more;
    c->ranks_sharing = sharing;
}

// Where the figures come from, in one line: "13 measured, 9 datasheet, 3 estimate".
static inline void cluster_basis(const cluster *c, char *text, size_t size) {
    int count[FIGURE_KINDS] = {0, 0, 0};
    for (int i = 0; i < CLUSTER_FIGURES; i++) count[c->kinds[i]]++;
    snprintf(text, size, "%d measured, %d datasheet, %d estimate", count[FIGURE_MEASURED], count[FIGURE_DATASHEET], count[FIGURE_ESTIMATE]);
}

#endif
