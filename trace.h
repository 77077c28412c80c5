// Chrome trace events (open the file in Perfetto or chrome://tracing). Compute has one track, and the waits for transfers another. Each
// kind of transfer has a track of its own, with events from the start of a transfer to the end of the wait for it. Times are by the host's
// clock: on CUDA they show when work was queued. There a track "kernels" shows what the GPU did, and how long it waited for each kind of
// transfer (dev/trace_sum.py sums it up). Off, and free of cost, unless trace_start is called.
// One global trace per process, because events come from every module.
#ifndef TRACE_H
#define TRACE_H

#include "device/comm.h"
#include "files.h" // defines: file_finish

typedef struct {
    const char *name;
    int track, index; // index: step, layer, ring step or -1
    double begin, end;
} trace_event;

typedef struct {
    comm *group;
    const char *name;
    int index;
    double begin;
} trace_open_transfer;

enum { TRACE_IN_FLIGHT = 64 };
typedef struct {
    bool on;
    trace_event *events;
    int64_t count, capacity;
    double zero; // time of trace_start
    trace_open_transfer open[TRACE_IN_FLIGHT];
    int open_count;
} trace_state;

static trace_state trace_global; // one per process: see above

enum { TRACE_COMPUTE = 0, TRACE_WAIT = 1, TRACE_KIND = 2, TRACE_KERNELS = TRACE_KIND + (int)COMM_KINDS }; // tracks; TRACE_KIND + kind

static inline void trace_start(void) {
    trace_global.on = true;
    trace_global.zero = device_seconds();
    device_trace_start();
}
static inline void trace_add(const char *name, int track, int index, double begin, double end) {
    trace_state *t = &trace_global;
    if (t->count == t->capacity) {
        t->capacity = t->capacity == 0 ? 4096 : 2 * t->capacity;
        t->events = (trace_event *)realloc(t->events, sizeof(trace_event) * (size_t)t->capacity);
        if (t->events == NULL) comm_abort("out of host memory for the trace");
    }
    trace_event e = {name, track, index, begin, end};
    t->events[t->count++] = e;
}

// Compute: double began = trace_now(); ...; trace_compute("attention", layer, began);
static inline double trace_now(void) { return trace_global.on ? device_seconds() : 0; }
static inline void trace_compute(const char *name, int index, double began) {
    if (trace_global.on) trace_add(name, TRACE_COMPUTE, index, began, device_seconds());
}

// Call trace_transfer before each comm_*_start, and transfer_finish in place of comm_finish. Transfers of a comm finish in order.
static inline void trace_transfer(comm *group, const char *name, int index) {
    trace_state *t = &trace_global;
    if (!t->on) return;
    if (t->open_count == TRACE_IN_FLIGHT) comm_abort("more than %d transfers in flight", TRACE_IN_FLIGHT);
    trace_open_transfer o = {group, name, index, device_seconds()};
    t->open[t->open_count++] = o;
}
static inline void transfer_finish(comm *group) {
    trace_state *t = &trace_global;
    double began = trace_now();
    comm_finish(group);
    double ended = trace_now();
    if (!t->on) return;
    for (int i = 0; i < t->open_count; i++) {
        if (t->open[i].group != group) continue;
        trace_open_transfer o = t->open[i];
        memmove(&t->open[i], &t->open[i + 1], sizeof(o) * (size_t)(t->open_count - i - 1));
        t->open_count--;
        trace_add(o.name, TRACE_KIND + (int)comm_kind_of(group), o.index, o.begin, ended);
        trace_add(o.name, TRACE_WAIT, o.index, began, ended);
        return;
    }
}

// Writes what was recorded as JSON. `rank`: the process number in the trace. False with a message when not all can be written, and no file.
static inline bool trace_write(const char *path, int rank, error_text *error) {
    FILE *f = fopen(path, "w");
    if (f == NULL) return file_finish("--trace", path, path, f, error);
    fprintf(f, "[\n");
    for (int track = 0; track < TRACE_KERNELS; track++)
        fprintf(f, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", rank, track,
                track == TRACE_COMPUTE ? "compute" : track == TRACE_WAIT ? "wait" : comm_kind_name((comm_kind)(track - TRACE_KIND)));
    for (int64_t i = 0; i < trace_global.count; i++) {
        const trace_event *e = &trace_global.events[i];
        fprintf(f, "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"index\":%d}},\n",
                e->name, rank, e->track, 1e6 * (e->begin - trace_global.zero), 1e6 * (e->end - e->begin), e->index);
    }
    const device_span *spans;
    int64_t span_count = device_trace_spans(&spans);
    if (span_count > 0)
        fprintf(f, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"kernels\"}},\n", rank, TRACE_KERNELS);
    for (int64_t i = 0; i < span_count; i++)
        fprintf(f, "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f},\n", spans[i].name, rank, TRACE_KERNELS,
                1e6 * (spans[i].begin - trace_global.zero), 1e6 * (spans[i].end - spans[i].begin));
    fprintf(f, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}\n]\n", rank, rank);
    return file_finish("--trace", path, path, f, error);
}

#endif
