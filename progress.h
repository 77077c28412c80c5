// Progress of long work: a line on stderr now and then, none of short work, so that nobody takes the run for dead. And its end by a signal.
#ifndef PROGRESS_H
#define PROGRESS_H

#include "device/comm.h"   // defines: comm_speaks
#include "device/device.h" // defines: device_seconds
#include <signal.h>

enum { PROGRESS_SECONDS = 10 }; // before the first line, and between two lines at least

typedef struct {
    const char *what;
    double began, next; // seconds, on the clock of device_seconds: of the start, and from when on a line is due
    bool all;           // TRAIN_LLAMA_TEST_PROGRESS=1: every call prints
} progress_note;

// what: such as "reading parameters"; stays the caller's.
static inline progress_note progress_start(const char *what) {
    const char *test = getenv("TRAIN_LLAMA_TEST_PROGRESS");
    double now = device_seconds();
    progress_note p = {what, now, now + PROGRESS_SECONDS, test != NULL && strcmp(test, "1") == 0};
    return p;
}
// Call when `done` of `total` equal parts are done (total 0: not known). Rank 0 prints a line if one is due, which gets rarer with time.
static inline void progress_show(progress_note *p, int64_t done, int64_t total) {
    double now = device_seconds(), spent = now - p->began;
    if ((!p->all && now < p->next) || (total > 0 && done == total)) return;
    if (!comm_speaks()) return;
    p->next = now + fmax(PROGRESS_SECONDS, spent / 10);
    if (done > 0)
        fprintf(stderr, "note: %s: %.0f %% after %s, %s to go\n", p->what, 100 * (double)done / (double)total, duration_text(spent).text,
                duration_text(spent * (double)(total - done) / (double)done).text);
    else fprintf(stderr, "note: %s: %s so far\n", p->what, duration_text(spent).text);
}

// SIGTERM or SIGUSR1, once one has come to a run that heeds them (trainer.h); 0: none.
static volatile sig_atomic_t stop_signal;
// Between two pieces of the work before training, on each rank by itself: false where it has failed, or, with an error that ends the run,
// once a signal has come.
static inline bool progress_goes_on(error_text *error) {
    if (stop_signal == 0 || error->text[0] != '\0') return error->text[0] == '\0';
    error_set(error, "stopped by a signal");
    error->number = ERROR_STOPPED;
    return false;
}

#endif
