// ranks: up to 8
// Communication between ranks, on groups of 1 to 8 ranks, without and with random delays. (F40, F42, F43, F45)
//     test_comm MODE   for test_comm_failures.sh: behaves in the way that MODE says
#include "test.h"
#include <omp.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void pause_seconds(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

// Byte i of message number `what` of rank r.
static unsigned char pattern(int r, int what, size_t i) {
    return (unsigned char)((size_t)r * 89 + (size_t)what * 37 + i * 7 + (i >> 8) * 13 + 1);
}
static void pattern_fill(unsigned char *x, size_t bytes, int r, int what) {
    for (size_t i = 0; i < bytes; i++) x[i] = pattern(r, what, i);
}
static size_t pattern_wrong(const unsigned char *x, size_t bytes, int r, int what) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += x[i] != pattern(r, what, i);
    return wrong;
}
static unsigned char *pattern_new(size_t bytes, int r, int what) {
    unsigned char *x = HOST_NEW(unsigned char, bytes);
    pattern_fill(x, bytes, r, what);
    return x;
}

// A ring in both directions, and every rank with the one n/2 further on. unequal: every other rank sends a third of the bytes.
static void test_sendrecv(comm *g, size_t bytes, bool unequal) {
    int n = comm_size(g), r = comm_rank(g), hops[] = {1, n - 1, n / 2};
    for (int k = 0; k < 3; k++) {
        int to = (r + hops[k]) % n, from = (r + n - hops[k]) % n;
        size_t leave = unequal && r % 2 == 1 ? bytes / 3 : bytes, arrive = unequal && from % 2 == 1 ? bytes / 3 : bytes;
        unsigned char *send = pattern_new(leave, r, k), *recv = pattern_new(bytes, r, 7);
        int64_t sent = comm_count(COMM_KV_INNER).bytes_sent;
        comm_sendrecv_start(g, send, leave, to, recv, arrive, from);
        CHECK(comm_pending(g) == 1, "%d pending", comm_pending(g));
        comm_finish(g);
        CHECK(comm_pending(g) == 0, "%d pending", comm_pending(g));
        sent = comm_count(COMM_KV_INNER).bytes_sent - sent;
        CHECK(sent == (to == r ? 0 : (int64_t)leave), "%d ranks, hop %d: %lld of %zu bytes counted", n, hops[k], (long long)sent, leave);
        CHECK(pattern_wrong(recv, arrive, from, k) == 0,
              "%d ranks, hop %d, %zu bytes: %zu wrong", n, hops[k], arrive, pattern_wrong(recv, arrive, from, k));
        size_t beyond = 0;
        for (size_t i = arrive; i < bytes; i++) beyond += recv[i] != pattern(r, 7, i);
        CHECK(beyond == 0, "%d ranks, hop %d: %zu bytes behind the %zu that arrive were changed", n, hops[k], beyond, arrive);
        CHECK(pattern_wrong(send, leave, r, k) == 0, "%d ranks: send was changed", n);
        free(send);
        free(recv);
    }
}

static void test_alltoall(comm *g, size_t bytes) {
    int n = comm_size(g), r = comm_rank(g);
    unsigned char *send = HOST_NEW(unsigned char, bytes * (size_t)n), *recv = HOST_NEW(unsigned char, bytes * (size_t)n);
    for (int to = 0; to < n; to++) pattern_fill(send + bytes * (size_t)to, bytes, r, to);
    comm_alltoall_start(g, send, recv, bytes);
    comm_finish(g);
    size_t wrong = 0;
    for (int from = 0; from < n; from++) wrong += pattern_wrong(recv + bytes * (size_t)from, bytes, from, r);
    CHECK(wrong == 0, "%d ranks, %zu bytes: %zu wrong", n, bytes, wrong);
    free(send);
    free(recv);
}

static void test_allgather(comm *g, size_t bytes, bool in_place) {
    int n = comm_size(g), r = comm_rank(g);
    unsigned char *recv = HOST_NEW(unsigned char, bytes * (size_t)n), *own = pattern_new(bytes, r, 5), *send = own;
    if (in_place) {
        send = recv + bytes * (size_t)r;
        pattern_fill(send, bytes, r, 5);
    }
    comm_allgather_start(g, send, recv, bytes);
    comm_finish(g);
    size_t wrong = 0;
    for (int from = 0; from < n; from++) wrong += pattern_wrong(recv + bytes * (size_t)from, bytes, from, 5);
    CHECK(wrong == 0, "%d ranks, %zu bytes, in place %d: %zu wrong", n, bytes, in_place, wrong);
    free(own);
    free(recv);
}

// Element i of rank r. Magnitudes differ so much that another order of the sum gives other bits.
static float addend(int r, size_t i) { return (float)(test_random((uint64_t)r, i) * pow(10, (r * 5 + (int)(i % 3)) % 3)); }

// Bit-equal to the loop over ranks 0, 1, ...
static void test_reduce_scatter(comm *g, size_t count, bool in_place) {
    int n = comm_size(g), r = comm_rank(g);
    float *send = HOST_NEW(float, count * (size_t)n), *apart = HOST_NEW(float, count);
    float *recv = in_place ? send + count * (size_t)r : apart;
    size_t scratch_bytes = comm_reduce_scatter_scratch(n, count);
    void *scratch = HOST_NEW(char, scratch_bytes);
    for (size_t i = 0; i < count * (size_t)n; i++) send[i] = addend(r, i);
    comm_reduce_scatter_start(g, send, recv, count, scratch);
    comm_finish(g);
    size_t wrong = 0, reversed_differs = 0, touched = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = count * (size_t)r + i;
        float sum = addend(0, at), reversed = addend(n - 1, at);
        for (int k = 1; k < n; k++) {
            sum += addend(k, at);
            reversed += addend(n - 1 - k, at);
        }
        wrong += memcmp(&sum, &recv[i], sizeof sum) != 0;
        reversed_differs += sum != reversed;
    }
    for (size_t i = 0; i < count * (size_t)n; i++) touched += i / count != (size_t)r && send[i] != addend(r, i);
    CHECK(wrong == 0, "%d ranks, %zu floats, in place %d: %zu wrong", n, count, in_place, wrong);
    CHECK(touched == 0, "%d ranks, %zu floats, in place %d: %zu of send changed", n, count, in_place, touched);
    if (n >= 3 && count > 1000) CHECK(reversed_differs > count / 10, "the order of the sum makes no difference in this test");
    free(send);
    free(apart);
    free(scratch);
}

// Many transfers in flight on several comms of the same ranks. Every rank finishes the comms in an order of its own (over fake_cuda.c all
// in the same order, because one thread does all transfers there).
static void test_in_flight(comm *lanes[3], int delayed) {
    enum { DEPTH = 5 };
    int n = comm_size(lanes[0]), r = comm_rank(lanes[0]), next = (r + 1) % n, previous = (r + n - 1) % n;
    size_t bytes[DEPTH] = {70001, 0, 1, 4096, 333};
    unsigned char *send[3][DEPTH], *recv[3][DEPTH];
    for (int k = 0; k < DEPTH; k++)
        for (int lane = 0; lane < 3; lane++) {
            send[lane][k] = pattern_new(bytes[k], r, lane * DEPTH + k);
            recv[lane][k] = HOST_NEW(unsigned char, bytes[k]);
            bool back = lane == 1;
            comm_sendrecv_start(lanes[lane], send[lane][k], bytes[k], back ? previous : next, recv[lane][k], bytes[k],
                                back ? next : previous);
        }
    double sum = r; // a small sum on a comm with transfers in flight
    comm_sum_double(lanes[0], &sum, 1);
    CHECK(sum == n * (n - 1) / 2, "sum %g beside transfers", sum);
    int finished[3] = {0, 0, 0}, own = r;
#ifdef DEVICE_BF16
    own = 0;
#endif
    for (int step = 0; step < 3 * DEPTH; step++) {
        int lane = (step * (1 + own % 2) + own + delayed) % 3;
        while (finished[lane] == DEPTH) lane = (lane + 1) % 3;
        comm_finish(lanes[lane]);
        int k = finished[lane]++, from = lane == 1 ? next : previous;
        size_t wrong = pattern_wrong(recv[lane][k], bytes[k], from, lane * DEPTH + k);
        CHECK(wrong == 0, "%d ranks, lane %d, transfer %d: %zu bytes wrong", n, lane, k, wrong);
        CHECK(comm_pending(lanes[lane]) == DEPTH - finished[lane], "lane %d: %d pending", lane, comm_pending(lanes[lane]));
    }
    for (int k = 0; k < DEPTH; k++)
        for (int lane = 0; lane < 3; lane++) {
            free(send[lane][k]);
            free(recv[lane][k]);
        }
}

// As many transfers in flight as one comm takes, of three kinds in turn.
static void test_deep(comm *g) {
    enum { DEPTH = 64, BYTES = 20 };
    int n = comm_size(g), r = comm_rank(g);
    unsigned char *send = HOST_NEW(unsigned char, DEPTH * n * BYTES), *recv = HOST_NEW(unsigned char, DEPTH * n * BYTES);
    for (int k = 0; k < DEPTH; k++) {
        unsigned char *s = send + k * n * BYTES, *to = recv + k * n * BYTES;
        for (int b = 0; b < n; b++) pattern_fill(s + b * BYTES, BYTES, r, k);
        if (k % 3 == 0) comm_sendrecv_start(g, s, BYTES, (r + 1) % n, to, BYTES, (r + n - 1) % n);
        if (k % 3 == 1) comm_alltoall_start(g, s, to, BYTES);
        if (k % 3 == 2) comm_allgather_start(g, s, to, BYTES);
    }
    for (int k = 0; k < DEPTH; k++) comm_finish(g);
    size_t wrong = 0;
    for (int k = 0; k < DEPTH; k++) {
        unsigned char *to = recv + k * n * BYTES;
        if (k % 3 == 0) wrong += pattern_wrong(to, BYTES, (r + n - 1) % n, k);
        else
            for (int b = 0; b < n; b++) wrong += pattern_wrong(to + b * BYTES, BYTES, b, k);
    }
    CHECK(wrong == 0, "%d ranks: %zu bytes wrong", n, wrong);
    free(send);
    free(recv);
}

static void check_count(comm_kind kind, int64_t bytes, int64_t messages, const char *what, int n) {
    comm_counters c = comm_count(kind);
    CHECK(c.bytes_sent == bytes && c.messages == messages, "%d ranks, %s: %lld bytes in %lld messages, expected %lld in %lld", n, what,
          (long long)c.bytes_sent, (long long)c.messages, (long long)bytes, (long long)messages);
    CHECK(c.wait_seconds >= 0 && c.wait_seconds < 60, "%d ranks, %s: waited %g s", n, what, c.wait_seconds);
    comm_count_reset();
    c = comm_count(kind);
    CHECK(c.bytes_sent == 0 && c.messages == 0 && c.wait_seconds == 0, "counters after a reset");
}

// Bytes and messages sent to other ranks; a message that goes in pieces counts once.
static void test_counters(comm *g, comm_kind kind) {
    int n = comm_size(g);
    int64_t others = n - 1;
    comm_count_reset();
    test_sendrecv(g, 1000, false); // three hops; only with n == 1 do they go to the rank itself
    check_count(kind, n > 1 ? 3000 : 0, n > 1 ? 3 : 0, "sendrecv", n);
    test_sendrecv(g, 0, false);
    check_count(kind, 0, 0, "sendrecv of nothing", n);
    test_alltoall(g, 77);
    check_count(kind, 77 * others, others, "alltoall", n);
    test_allgather(g, 33, true);
    check_count(kind, 33 * others, others, "allgather", n);
    test_reduce_scatter(g, 1025, false);
    check_count(kind, 4100 * others, others, "reduce_scatter", n);
}

// A rank that comes late makes the others wait, but does not wait itself.
static void test_wait_seconds(comm *g) {
    int n = comm_size(g), r = comm_rank(g);
    if (n != 2 && n != 3) return;
    char out = 1, in = 0;
    comm_barrier(g);
    comm_count_reset();
    if (r == 0) pause_seconds(0.3);
    comm_sendrecv_start(g, &out, 1, (r + 1) % n, &in, 1, (r + n - 1) % n);
    comm_finish(g);
    double waited = comm_count(COMM_KV_INNER).wait_seconds;
    if (r == 1) CHECK(waited > 0.15, "%d ranks: rank 1 waited %g s for a rank that comes 0.3 s late", n, waited);
    if (r == 0 && n > 2) CHECK(waited < 0.15, "%d ranks: the late rank waited %g s", n, waited);
    // 0: nothing is left to count after a reset; 1: a transfer that is already done costs no waiting.
    for (int asked = 0; asked < 2; asked++) {
        comm_barrier(g);
        comm_count_reset();
        comm_sendrecv_start(g, &out, 1, (r + 1) % n, &in, 1, (r + n - 1) % n);
        if (asked == 1) pause_seconds(0.3);
        comm_finish(g);
        if (asked == 0) comm_count_reset();
        waited = comm_count(COMM_KV_INNER).wait_seconds;
        CHECK(waited < (asked == 1 ? 0.15 : 1e-12), "%d ranks: waited %g s for a transfer that was done", n, waited);
    }
    comm_count_reset();
}

static void test_small(comm *g) {
    int n = comm_size(g), r = comm_rank(g);
    double sums[3] = {addend(r, 1), addend(r, 2), 1.0 / (r + 3)}, expected[3] = {0};
    for (int k = 0; k < n; k++) {
        double of[3] = {addend(k, 1), addend(k, 2), 1.0 / (k + 3)};
        for (int i = 0; i < 3; i++) expected[i] = k == 0 ? of[i] : expected[i] + of[i];
    }
    comm_sum_double(g, sums, 3);
    CHECK(memcmp(sums, expected, sizeof sums) == 0, "%d ranks: sum %.17g %.17g %.17g", n, sums[0], sums[1], sums[2]);

    double largest[3] = {-1.0 - r, r == n / 2 ? 7 : 0, r == n - 1 ? NAN : 1e300};
    comm_max_double(g, largest, 3);
    CHECK(largest[0] == -1 && largest[1] == 7 && isnan(largest[2]), "%d ranks: max %g %g %g", n, largest[0], largest[1], largest[2]);

    int64_t whole[2] = {((int64_t)1 << 53) + r, -r};
    comm_sum_int64(g, whole, 2);
    CHECK(whole[0] == ((int64_t)n << 53) + n * (n - 1) / 2 && whole[1] == -(n * (n - 1) / 2), "%d ranks: int64 sum", n);

    for (int root = 0; root < n; root++) {
        unsigned char data[77];
        pattern_fill(data, sizeof data, r, root);
        comm_broadcast(g, data, sizeof data, root);
        CHECK(pattern_wrong(data, sizeof data, root, root) == 0, "%d ranks: broadcast from %d", n, root);
    }
    comm_broadcast(g, NULL, 0, 0);
    comm_barrier(g);
}

// No rank leaves the barrier before the last one has come.
static void test_barrier(comm *g) {
    int n = comm_size(g), r = comm_rank(g);
    struct timespec t;
    double came, left, first_left, last_came;
    if (r == n - 1) pause_seconds(0.02);
    clock_gettime(CLOCK_MONOTONIC, &t);
    came = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    comm_barrier(g);
    clock_gettime(CLOCK_MONOTONIC, &t);
    left = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    first_left = -left;
    last_came = came;
    comm_max_double(g, &first_left, 1);
    comm_max_double(g, &last_came, 1);
    CHECK(-first_left >= last_came, "%d ranks: one left the barrier %g s before the last came", n, last_came + first_left);
}

static void test_agree(comm *g) {
    int n = comm_size(g), r = comm_rank(g);
    error_text error = {"", 0};
    CHECK(comm_agree(g, &error) && error.text[0] == '\0', "%d ranks: no error, yet '%s'", n, error.text);
    for (int lowest = 0; lowest < n; lowest++)
        for (int step = 1; step <= n; step++) { // ranks lowest, lowest + step, ... hold an error
            char expected[64];
            memset(&error, 0, sizeof error);
            if (r >= lowest && (r - lowest) % step == 0) error_set(&error, "trouble of rank %d", r);
            int in_job = comm_rank(comm_world());
            comm_broadcast(g, &in_job, sizeof in_job, lowest);
            snprintf(expected, sizeof expected, "trouble of rank %d (rank %d, on ", lowest, in_job); // and a machine's name
            CHECK(!comm_agree(g, &error), "%d ranks: an error, yet agreement", n);
            if (lowest == 0) CHECK(strcmp(error.text, "trouble of rank 0") == 0, "%d ranks: '%s'", n, error.text);
            else CHECK(strncmp(error.text, expected, strlen(expected)) == 0, "%d ranks: '%s', expected '%s'", n, error.text, expected);
        }
}

static void check_members(comm *g, const int *expected, int n, const char *what) {
    CHECK((g != NULL) == (n > 0), "%s: member %d", what, g != NULL);
    if (g == NULL || n == 0) return;
    CHECK(comm_size(g) == n && expected[comm_rank(g)] == comm_rank(comm_world()), "%s: rank %d of %d", what, comm_rank(g), comm_size(g));
    int me = comm_rank(comm_world()), members[8];
    if (comm_size(g) != n) return;
    comm_allgather_start(g, &me, members, sizeof me);
    comm_finish(g);
    for (int i = 0; i < n; i++)
        CHECK(members[i] == expected[i] && comm_world_rank(g, i) == expected[i],
              "%s: member %d is rank %d, by its table %d, expected %d", what, i, members[i], comm_world_rank(g, i), expected[i]);
}

static void test_split(void) {
    comm *world = comm_world();
    int n = comm_size(world), r = comm_rank(world), expected[8] = {0}, count = 0;
    comm_count_reset();
    comm *reversed = comm_split(world, r % 3, -r, COMM_KV_INNER);
    check_count(COMM_KV_INNER, 0, 0, "a split", n);
    for (int k = n - 1; k >= 0; k--)
        if (k % 3 == r % 3) expected[count++] = k;
    check_members(reversed, expected, count, "colour r % 3, key -r");
    comm_free(reversed);

    comm *ties = comm_split(world, r / 5, r % 2, COMM_KV_OUTER); // even ranks first, by rank
    count = 0;
    for (int odd = 0; odd < 2; odd++)
        for (int k = 0; k < n; k++)
            if (k / 5 == r / 5 && k % 2 == odd) expected[count++] = k;
    check_members(ties, expected, count, "colour r / 5, key r % 2");
    comm *inner = comm_split(ties, comm_rank(ties) % 2, 0, COMM_DKV_INNER); // a group of a group
    int in_inner[8], inner_count = 0;
    for (int i = comm_rank(ties) % 2; i < count; i += 2) in_inner[inner_count++] = expected[i];
    check_members(inner, in_inner, inner_count, "every second rank of a group");
    comm_free(inner);
    comm_free(ties);

    comm *some = comm_split(world, r == 0 || r == 2 ? 1000000 : -1, 7, COMM_PARAM_GATHER);
    int of_some[] = {0, 2};
    check_members(some, of_some, r != 0 && r != 2 ? 0 : n > 2 ? 2 : 1, "ranks 0 and 2");
    comm_free(some);
    comm_free(NULL);
    CHECK(comm_local_rank() == r && comm_local_ranks() == n, "place on the machine: %d of %d", comm_local_rank(), comm_local_ranks());
    CHECK(strcmp(comm_kind_name(COMM_SEQ_ALLTOALL), "seq_alltoall") == 0 && strcmp(comm_kind_name(COMM_DKV_SCATTER), "dkv_scatter") == 0 &&
              strcmp(comm_kind_name(COMM_CONTROL), "control") == 0,
          "names of the kinds");
}

// Everything on the first n ranks; the others wait.
static void test_ranks(int n, int delay) {
    comm *world = comm_world(), *lanes[3];
    comm_kind kinds[3] = {COMM_KV_INNER, COMM_KV_OUTER, COMM_DKV_INNER};
    for (int lane = 0; lane < 3; lane++) lanes[lane] = comm_split(world, comm_rank(world) < n ? 0 : -1, comm_rank(world), kinds[lane]);
    if (lanes[0] != NULL) {
        comm *g = lanes[0];
        size_t sizes[] = {0, 1, 3, 64, 1001, 65537, 200001};
        size_t counts[] = {0, 1, 5, 4096, 4097};
        comm_test_delay(delay, 11);
        omp_set_num_threads(n <= 2 ? 2 : 1);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int unequal = 0; unequal < 2; unequal++) test_sendrecv(g, sizes[i], unequal == 1);
            test_alltoall(g, sizes[i] / 2);
            test_allgather(g, sizes[i] / 3, i % 2 == 0);
        }
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int in_place = 0; in_place < 2; in_place++) test_reduce_scatter(g, counts[i], in_place);
        if (!delay) test_reduce_scatter(g, 70001, true); // large enough for several threads
        test_in_flight(lanes, delay > 0);
        for (int k = 0; k < 4; k++) test_deep(g); // with those before, more than an NCCL lane keeps count of at a time (256)
        test_small(g);
        test_agree(g);
        if (!delay) test_barrier(g);
        if (!delay) test_wait_seconds(g);
        test_counters(g, COMM_KV_INNER);
        size_t limits[] = {1, 100, 999};
        for (int k = 0; k < 3; k++) { // small limits stand in for 2^30 bytes: messages go in pieces
            size_t limit = limits[k];
            comm_test_piece_limit(limit);
            size_t bytes[] = {1, limit - 1, limit, limit + 1, 2 * limit, 3 * limit + 1};
            for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) test_sendrecv(g, bytes[i], i % 2 == 1);
            test_alltoall(g, 5 * limit / 2);
            test_allgather(g, 3 * limit, true);
            test_reduce_scatter(g, limit + 1, true);
            if (limit > 1) test_counters(g, COMM_KV_INNER);
            if (limit == 999) test_in_flight(lanes, delay > 0);
            comm_test_piece_limit(0);
        }
        comm_test_delay(0, 0);
    }
    comm_barrier(world);
    for (int lane = 0; lane < 3; lane++) comm_free(lanes[lane]);
}

// Limits: of waiting 600 s, which can only be raised, as TRAIN_LLAMA_TIMEOUT is not set; of open files what the machine allows.
static void test_limits(void) {
    if (comm_size(comm_world()) == 1) return; // a build without MPI has none
    const double asked[] = {0, 599, 600.5, 7, 1e6, 600}, limits[] = {600, 600, 600.5, 600.5, 1e6, 1e6};
    for (int i = 0; i < 6; i++) {
        double limit = comm_wait_at_least(asked[i]);
        CHECK(limit == limits[i], "a limit of at least %g s is %g s", asked[i], limit);
    }
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == files.rlim_max, "a rank may open fewer files than the machine allows");
}

// The modes of test_comm_failures.sh and test_cuda.sh.
static int end_as(const char *mode) {
    // Reversed, so that ranks of the group are not those of the job.
    comm *world = comm_world(), *g = comm_split(world, 0, -comm_rank(world), COMM_KV_INNER);
    int n = comm_size(world), r = comm_rank(world), me = comm_rank(g);
    char out[200] = "", in[200] = "";
    if (strcmp(mode, "abort") == 0 && r == 1) comm_abort("no space left on %s", "device");
    if (strncmp(mode, "silent", 6) == 0) comm_wait_at_least(1000); // TRAIN_LLAMA_TIMEOUT counts
    if (strcmp(mode, "silent") == 0 && r == 1) pause_seconds(60);
    if (strcmp(mode, "silent-small") == 0 && r == 1) pause_seconds(60);
    if (strcmp(mode, "silent-small") == 0) comm_barrier(world);
    if (strcmp(mode, "too-many") == 0)
        for (int k = 0; k < 257; k++) comm_sendrecv_start(g, out, 1, me, in, 1, me);
    if (strcmp(mode, "free-early") == 0) {
        comm_sendrecv_start(g, out, 1, me, in, 1, me);
        comm_free(g);
    }
    if (strcmp(mode, "finish-early") == 0) comm_finish(g);
    if (strcmp(mode, "silent-all") == 0) {
        if (r == 1) pause_seconds(60);
        comm_allgather_start(g, out, in, 50);
        comm_sendrecv_start(g, out, 1, me, in, 1, me);
        comm_finish(g);
    }
    if (strcmp(mode, "silent-two") == 0) { // of two comms; the transfer that is started first is the one to report
        comm *other = comm_split(world, 0, r, COMM_KV_OUTER);
        if (r == 1) pause_seconds(60);
        comm_sendrecv_start(other, out, 50, (r + 1) % n, in, 50, (r + n - 1) % n);
        comm_sendrecv_start(g, out + 50, 50, (me + 1) % n, in + 50, 50, (me + n - 1) % n);
        pause_seconds(60);
    }
    if (strcmp(mode, "busy") == 0) { // for longer than the limit, always with a transfer in flight
        for (int k = 0; k < 400; k++) {
            comm_sendrecv_start(g, out, 50, (me + 1) % n, in, 50, (me + n - 1) % n);
            if (k > 0) comm_finish(g);
            pause_seconds(0.01);
        }
        comm_finish(g);
    }
    if (strcmp(mode, "endless") == 0) {
        printf("pid of rank %d: %ld\n", r, (long)getpid());
        fflush(stdout);
    }
    do {
        size_t bytes = strcmp(mode, "mismatch") == 0 && r == 1 ? 100 : 50;
        comm_sendrecv_start(g, out, bytes, (me + 1) % n, in, bytes, (me + n - 1) % n);
        comm_finish(g);
    } while (strcmp(mode, "endless") == 0);
    // Ranks whose transfer is done stay silent, too: only the rank that waits for the silent one reports.
    if (strcmp(mode, "silent") == 0) pause_seconds(60);
    comm_barrier(world);
    printf("mode %s went through\n", mode);
    comm_free(g);
    if (strcmp(mode, "silent-end") == 0 && r == 1) pause_seconds(60);
    comm_finalize();
    return EXIT_OK;
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    if (!comm_init(&argc, &argv, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
#ifdef DEVICE_BF16 // over fake_cuda.c, whose device memory is the host's
    if (!device_start(1, &error)) return EXIT_USER_ERROR;
#endif
    if (argc > 1) return end_as(argv[1]);
    comm *world = comm_world();
    test_split();
    for (int delay = 0; delay <= 200; delay += 200)
        for (int n = 1; n <= comm_size(world) && n <= 8; n++) test_ranks(n, delay);
    test_limits();
    int status = test_finish("test_comm", world);
    comm_finalize();
    return status;
}
