// The planner's own time model as a shared library for dev/fit_planner.py, so that what is fitted is what the product computes.
#include "../test/paper_tables.h"

typedef struct {
    const paper_cell *cell;
    bool alltoall; // the cell's SeqAlltoAll column, not its time
} row;

static paper_tables tables_read;
static cluster machines;
static row rows[2 * PAPER_CELLS];
static int row_count;

// Reads the tables and the cluster to start from. Returns the number of rows to predict; 0 with a message.
int planner_open(const char *tables, const char *cluster_name) {
    error_text error = {"", 0};
    if (!paper_read(&tables_read, tables, &error) || !cluster_load(&machines, cluster_name, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 0;
    }
    for (int i = 0; i < tables_read.count; i++) {
        const paper_cell *p = &tables_read.cells[i];
        if (!paper_cell_counts(p)) continue;
        rows[row_count++] = (row){p, false};
        if (p->alltoall > 0) rows[row_count++] = (row){p, true};
    }
    return row_count;
}
// A row as text: table, whether it is a SeqAlltoAll column, whether it is fitted, measured seconds, label.
void planner_row(int i, char *text, int size) {
    const paper_cell *p = rows[i].cell;
    snprintf(text, (size_t)size, "%d %d %d %.17g %s hp %d cp %d w %d %s%s %lldK", p->table, rows[i].alltoall, paper_cell_fitted(p),
             rows[i].alltoall ? p->alltoall : p->measured, p->gqa ? "GQA" : "MHA", p->hp, p->cp, p->w, placement_name(p->placement),
             p->selective ? " selective" : "", (long long)p->S / 1024);
}
// 0 = no such figure.
int planner_set(const char *key, double value) {
    int i = cluster_find(key);
    if (i == CLUSTER_FIGURES) return 0;
    *cluster_value(&machines, &cluster_figures[i]) = value;
    return 1;
}
void planner_predict(double *seconds) {
    for (int i = 0; i < row_count; i++)
        seconds[i] = rows[i].alltoall ? paper_predict_alltoall(rows[i].cell, &machines) : paper_predict(rows[i].cell, &machines);
}
