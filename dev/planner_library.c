// The planner's own time model as a shared library for dev/fit_planner.py, so that what is fitted is what the product computes.
#include "../test/paper_tables.h"

int planner_open(const char *tables, const char *cluster_name);
int planner_cells(void);
void planner_cell(int i, int *table, int *alltoall, int *fitted, double *measured, char *label, int label_size);
int planner_set(const char *key, double value);
void planner_predict(double *seconds);

typedef struct {
    const paper_cell *cell;
    bool alltoall; // the cell's SeqAlltoAll column, not its time
} row;

static paper_tables tables_read;
static cluster machines;
static row rows[2 * PAPER_CELLS];
static int row_count;

// Reads the tables and the cluster to start from; 0 = well.
int planner_open(const char *tables, const char *cluster_name) {
    error_text error = {""};
    if (!paper_read(&tables_read, tables, &error) || !cluster_load(&machines, cluster_name, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    row_count = 0;
    for (int i = 0; i < tables_read.count; i++) {
        const paper_cell *p = &tables_read.cells[i];
        if (!paper_cell_counts(p)) continue;
        rows[row_count].cell = p;
        rows[row_count++].alltoall = false;
        if (p->alltoall == 0) continue;
        rows[row_count].cell = p;
        rows[row_count++].alltoall = true;
    }
    return 0;
}
int planner_cells(void) { return row_count; }
void planner_cell(int i, int *table, int *alltoall, int *fitted, double *measured, char *label, int label_size) {
    const paper_cell *p = rows[i].cell;
    *table = p->table;
    *alltoall = rows[i].alltoall;
    *fitted = paper_cell_fitted(p);
    *measured = rows[i].alltoall ? p->alltoall : p->measured;
    snprintf(label, (size_t)label_size, "%s hp %d cp %d w %d %s%s %lldK", p->gqa ? "GQA" : "MHA", p->hp, p->cp, p->w,
             placement_name(p->placement), p->selective ? " selective" : "", (long long)p->S / 1024);
}
// 0 = no such figure.
int planner_set(const char *key, double value) {
    int i = cluster_find(key);
    if (i == CLUSTER_FIGURES) return 0;
    *cluster_value(&machines, &cluster_figures()[i]) = value;
    return 1;
}
void planner_predict(double *seconds) {
    for (int i = 0; i < row_count; i++)
        seconds[i] = rows[i].alltoall ? paper_predict_alltoall(rows[i].cell, &machines) : paper_predict(rows[i].cell, &machines);
}
