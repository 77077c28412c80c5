// Reads the published tables in test/paper_tables and predicts their cells with the planner's time model.
#ifndef PAPER_TABLES_H
#define PAPER_TABLES_H

#include "../time_model.h"

// A cell. Times in seconds: tables 4 and 5 one attention operation, tables 2 and 6 a step (S / (ranks TGS)).
typedef struct {
    int table;
    bool gqa, selective;
    int hp, cp, w;
    placement_kind placement;
    int64_t S;
    double measured;        // s; tables 2, 4, 5, 6
    double tgs, mfu;        // tables 2, 3, 6; 0: not printed
    double alltoall;        // s; table 4
    bool loongtrain;        // measured with LoongTrain, not with another system
    bool copy;              // repeats another cell: with hp 1, context-first is head-first
} paper_cell;

enum { PAPER_CELLS = 800 };
typedef struct {
    paper_cell cells[PAPER_CELLS];
    int count;
} paper_tables;

// The number in a field, 0 for an empty one; anything else ends the test.
static inline double paper_number(const char *field) {
    char *end;
    if (field[0] == '\0') return 0;
    double value = strtod(field, &end);
    if (end == field || *end != '\0') {
        fprintf(stderr, "\"%s\" in the tables is not a number\n", field);
        exit(EXIT_FAILED);
    }
    return value;
}
static inline int paper_count(const char *field) { return (int)paper_number(field); }

// Splits a line into its fields, in place, and returns how many there are; an empty field is "".
static inline int paper_split(char *line, char **fields, int most) {
    int n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; n < most; at++) {
        fields[n++] = at;
        at += strcspn(at, ",");
        if (*at == '\0') break;
        *at = '\0';
    }
    return n;
}

static inline int paper_cell_ranks(const paper_cell *p) { return p->hp * p->cp; }

static inline bool paper_read_table(paper_tables *t, const char *folder, int table, error_text *error) {
    static const char *const headers[] = {
        "system,hp,cp,attention,seq_tokens,tgs,mfu", "attention,dcp,dhp,placement,scpp,seq_tokens,mfu",
        "attention,dcp,dhp,placement,seq_tokens,overall_ms,seqalltoall_ms", "attention,dcp,dhp,placement,inner_ring,seq_tokens,time_ms",
        "attention,dcp,dhp,placement,scpp,seq_tokens,tgs"};
    char path[1024], line[256], *f[8];
    snprintf(path, sizeof path, "%s/loongtrain_table%d.csv", folder, table);
    FILE *file = fopen(path, "r");
    if (file == NULL) return error_set(error, "%s: cannot be read", path);
    bool ok = fgets(line, sizeof line, file) != NULL && strncmp(line, headers[table - 2], strlen(headers[table - 2])) == 0;
    while (ok && fgets(line, sizeof line, file) != NULL) {
        if (paper_split(line, f, 8) != 7 || t->count == PAPER_CELLS) {
            ok = false;
            break;
        }
        paper_cell *p = &t->cells[t->count++];
        memset(p, 0, sizeof *p);
        p->table = table;
        p->w = 1;
        p->loongtrain = true;
        double value = paper_number(f[6]);
        if (table == 2) {
            p->loongtrain = strcmp(f[0], "LoongTrain") == 0;
            p->hp = paper_count(f[1]);
            p->cp = paper_count(f[2]);
            p->gqa = strcmp(f[3], "gqa") == 0;
            p->placement = PLACEMENT_HEAD_FIRST;
            p->S = atoll(f[4]);
            p->tgs = paper_number(f[5]);
            p->mfu = value;
        } else {
            p->gqa = strcmp(f[0], "gqa") == 0;
            p->cp = paper_count(f[1]);
            p->hp = paper_count(f[2]);
            p->placement = strcmp(f[3], "head_first") == 0 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST;
            p->S = atoll(table == 4 ? f[4] : f[5]);
            p->copy = table != 5 && p->hp == 1 && p->placement == PLACEMENT_CONTEXT_FIRST;
            if (table == 3) p->mfu = value;
            if (table == 3 || table == 6) p->selective = paper_count(f[4]) == 1;
            if (table == 4) {
                p->measured = 1e-3 * paper_number(f[5]);
                p->alltoall = 1e-3 * value;
            }
            if (table == 5) {
                p->w = paper_count(f[4]);
                p->measured = 1e-3 * value;
            }
            if (table == 6) p->tgs = value;
        }
        if (p->tgs > 0) p->measured = (double)p->S / (paper_cell_ranks(p) * p->tgs);
    }
    fclose(file);
    return ok || error_set(error, "%s: not the table it should be", path);
}
static inline bool paper_read(paper_tables *t, const char *folder, error_text *error) {
    t->count = 0;
    for (int table = 2; table <= 6; table++)
        if (!paper_read_table(t, folder, table, error)) return false;
    return true;
}

// The model of the tables: "LLaMA2-7B" with the FFN that its MFU formula implies (8 D^2 + 6 r D^2 with r = 3.5).
static inline model_config paper_model(bool gqa) {
    model_config m;
    memset(&m, 0, sizeof m);
    snprintf(m.name, sizeof m.name, "loongtrain-7b");
    m.L = 32;
    m.D = 4096;
    m.H = 32;
    m.Hkv = gqa ? 8 : 32;
    m.HS = 128;
    m.F = 14336;
    m.V = 51200;
    return m;
}

// The query with the schedule of the tables: LoongTrain's, with dKV sent as bf16.
static inline planner_query paper_query(const paper_cell *p, const model_config *m, const cluster *c) {
    planner_query q = planner_query_make(m, c, p->S, 1, paper_cell_ranks(p));
    q.schedule = SCHEDULE_LOONGTRAIN;
    q.dkv_bytes = 2;
    return q;
}

// LoongTrain table 4, "overall": forward and backward of one attention operation.
static inline double paper_attention_seconds(const planner_attention *a) {
    const planner_pass *f = &a->forward, *b = &a->backward;
    return (f->compute + f->inner + f->outer) + (b->compute + b->inner + b->outer) + a->launch + 2 * a->alltoall;
}

// The predicted seconds of the operation or step that the cell measured.
static inline double paper_predict(const paper_cell *p, const cluster *c) {
    model_config m = paper_model(p->gqa);
    planner_query q = paper_query(p, &m, c);
    grid_shape shape = planner_shape(c, 1, p->hp, p->cp, p->w, p->placement);
    planner_attention a = planner_attention_time(&q, &shape, false);
    if (p->table == 4 || p->table == 5) return paper_attention_seconds(&a);
    planner_choice choice = {.shape = shape, .zp = q.ranks, .zg = q.ranks, .zo = q.ranks,
                             .recompute = p->selective ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL};
    planner_step_time(&q, &a, &choice);
    return choice.seconds;
}

// Predicted seconds of SeqAlltoAll in a cell of table 4, forward and backward.
static inline double paper_predict_alltoall(const paper_cell *p, const cluster *c) {
    model_config m = paper_model(p->gqa);
    planner_query q = paper_query(p, &m, c);
    grid_shape shape = planner_shape(c, 1, p->hp, p->cp, p->w, p->placement);
    return 2 * planner_attention_time(&q, &shape, false).alltoall;
}

// Whether a cell was used to fit clusters/a100-4nic.txt: table 4 MHA head-first (both columns), table 5 at 128K and 512K, table 6 MHA
// head-first at 128K and 1M. Everything else is held out. Table 2 (32 GPUs) gave nothing.
static inline bool paper_cell_fitted(const paper_cell *p) {
    bool head_first_mha = !p->gqa && p->placement == PLACEMENT_HEAD_FIRST;
    if (p->table == 4) return head_first_mha;
    if (p->table == 5) return p->S == 131072 || p->S == 524288;
    if (p->table == 6) return head_first_mha && (p->S == 131072 || p->S == 1048576);
    return false;
}
// Whether a cell is a measurement of the schedule that the model describes.
static inline bool paper_cell_counts(const paper_cell *p) { return p->table != 3 && p->loongtrain && !p->copy && p->measured > 0; }

#endif
