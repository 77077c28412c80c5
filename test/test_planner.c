// ranks: 1
// time_model.h: the time model against LoongTrain's tables 2, 4, 5 and 6 (test/paper_tables; of 3 the MFU), with constants fitted to 80 of
// their cells and with nothing fitted; the choice that follows from it; steps of DistFlashAttn; our own schedule; good and bad cluster
// files; the search against its rules.
// Run from the repository's root. The bounds are the product's goals, not the results that happen to come out; the results are printed.
#include "../planner.h"
#include "paper_tables.h"
#include "test.h"
#include <time.h>

static paper_tables tables;

static cluster load(const char *name) {
    cluster c;
    error_text error = {"", 0};
    bool ok = cluster_load(&c, name, &error);
    CHECK(ok, "%s", error.text);
    if (!ok) exit(EXIT_FAILED);
    return c;
}

// ---- cluster files ----

static void check_embedded_texts(void) {
    for (int i = 0; i < CLUSTER_TEXTS; i++) {
        char path[256];
        snprintf(path, sizeof path, "clusters/%s.txt", cluster_texts[i].name);
        cluster by_name = load(cluster_texts[i].name), by_file = load(path);
        memcpy(by_file.name, by_name.name, sizeof by_name.name);
        CHECK(memcmp(&by_name, &by_file, sizeof by_name) == 0, "%s differs from the built-in cluster", path);
        char basis[128];
        cluster_basis(&by_name, basis, sizeof basis);
        printf("cluster %-20s %s\n", by_name.name, basis);
    }
    const char *const expected[] = {"a100-4nic", "a100-4nic-datasheet", "h100", "h200", "b200", "gb200", "cpu"};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) load(expected[i]);
}

// Parses the text of cluster h100 with the line of `key` replaced (NULL: left out).
static bool parse_with(const char *key, const char *line, error_text *error) {
    static char text[16384];
    const char *from = NULL;
    for (int i = 0; i < CLUSTER_TEXTS; i++)
        if (strcmp(cluster_texts[i].name, "h100") == 0) from = cluster_texts[i].text;
    text[0] = '\0';
    while (from != NULL && *from != '\0') {
        size_t n = strcspn(from, "\n") + 1, length = strlen(key);
        if (strncmp(from, key, length) == 0 && from[length] == ' ') {
            if (line != NULL) strcat(strcat(text, line), "\n");
        } else {
            strncat(text, from, n);
        }
        from += n;
    }
    cluster c;
    error->text[0] = '\0';
    return cluster_parse(&c, text, "file", error);
}

static void check_refused_file(const char *name, const char *says) {
    cluster c;
    error_text error = {"", 0};
    CHECK(!cluster_load(&c, name, &error) && error.text[0] != '\0' && strstr(error.text, says) != NULL,
          "%s: '%s', not '%s'", name, error.text, says);
}
static void check_bad_clusters(void) {
    error_text error = {"", 0};
    CHECK(parse_with("peak", "peak 1e15 # estimate: round", &error), "%s", error.text);
    CHECK(parse_with("peak", "  peak\t1e15   #estimate: round\r", &error), "%s", error.text);
    const struct {
        const char *key, *line, *says;
    } bad[] = {
        {"peak", NULL, "'peak' is missing"},
        {"peak", "", "'peak' is missing"},
        {"peak", "# peak 1e15 # estimate: x", "'peak' is missing"},
        {"peak", "peak", "needs one value"},
        {"peak", "peak 1 2 # estimate: x", "needs one value"},
        {"peak", "peak -1e15 # estimate: x", "must be a number from"},
        {"peak", "peak 0 # estimate: x", "must be a number from"},
        {"peak", "peak nan # estimate: x", "must be a number from"},
        {"peak", "peak inf # estimate: x", "must be a number from"},
        {"peak", "peak 1e999 # estimate: x", "must be a number from"},
        {"peak", "peak fast # estimate: x", "must be a number from"},
        {"peak", "peak 1e15x # estimate: x", "must be a number from"},
        {"peak", "peak 1e15", "does not say where it is from"},
        {"peak", "peak 1e15 # guessed: x", "does not say where it is from"},
        {"peak", "peak 1e15 # estimate: x\npeak 1e15 # estimate: x", "given twice"},
        {"peak", "peek 1e15 # estimate: x", "unknown key 'peek'"},
        {"gpus_per_node", "gpus_per_node 7.5 # estimate: x", "must be a whole number from"},
        {"element_bytes", "element_bytes 3 # estimate: x", "legal values are 2 (bf16) and 4 (float)"},
        {"gpus_per_node", "gpus_per_node 0 # estimate: x", "must be a whole number from"},
        {"merge_bytes", "merge_bytes -1 # estimate: x", "must be a number from 0"},
        {"linear_efficiency", "linear_efficiency 1.5 # estimate: x", "must be a number from"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bool ok = parse_with(bad[i].key, bad[i].line, &error);
        CHECK(!ok && strstr(error.text, bad[i].says) != NULL && strchr(error.text, '\n') == NULL, "'%s': '%s', not '%s'",
              bad[i].line == NULL ? "(left out)" : bad[i].line, error.text, bad[i].says);
    }
    for (int i = 0; i < CLUSTER_FIGURES; i++) // every figure must be there
        CHECK(!parse_with(cluster_figures[i].key, NULL, &error) && strstr(error.text, "is missing") != NULL,
              "%s: '%s'", cluster_figures[i].key, error.text);
    check_refused_file("h1000", "a100-4nic, ");
    check_refused_file("clusters", ""); // a folder
    char path[] = "/tmp/test_planner_XXXXXX", lines[20000]; // lines: more than any cluster file has, all empty
    const char zero_byte[] = "peak 1e15 # estimate: x\n\0more";
    close(mkstemp(path));
    CHECK(file_write(path, zero_byte, sizeof zero_byte, &error), "%s", error.text);
    check_refused_file(path, "not a cluster file");
    memset(lines, '\n', sizeof lines);
    CHECK(file_write(path, lines, sizeof lines, &error), "%s", error.text);
    check_refused_file(path, "not a cluster file");
    unlink(path);
    snprintf(lines, sizeof lines, "peak 1e15 # estimate: %0490d", 0);
    CHECK(!parse_with("peak", lines, &error) && strstr(error.text, "longer than 511 characters") != NULL, "'%s'", error.text);
}

// ---- placement and NICs ----

// planner_nic_flows and planner_hp_outside over all ranks, where the planner counts over those after which their places repeat.
static void check_period(const cluster *c, const grid_shape *g) {
    enum { MOST = 1024 };
    int gpus = (int)c->gpus_per_node, nics = (int)c->nics_per_node, windows = g->cp / g->w, ranks = g->dp * g->hp * g->cp;
    int flows[2] = {0, 0}, outside = 0;
    CHECK(ranks * nics <= MOST, "%d ranks", ranks);
    for (int outer = 0; outer < 2; outer++) {
        int sent[MOST] = {0}, received[MOST] = {0};
        for (int rank = 0; rank < ranks; rank++) {
            grid_place p = grid_place_of(g, rank);
            int next = outer ? grid_context_index(g, (p.window + 1) % windows, p.pos)
                             : grid_context_index(g, p.window, (p.pos + 1) % g->w);
            int to = grid_rank(g, p.d, p.h, next), there = 0;
            for (int h = 0; h < g->hp; h++) there += grid_rank(g, p.d, h, p.c) / gpus != rank / gpus;
            if (there > outside) outside = there;
            if (to / gpus == rank / gpus) continue;
            int out = ++sent[rank / gpus * nics + rank % gpus * nics / gpus], in = ++received[to / gpus * nics + to % gpus * nics / gpus];
            if (out > flows[outer]) flows[outer] = out;
            if (in > flows[outer]) flows[outer] = in;
        }
    }
    CHECK(planner_nic_flows(c, g, false) == flows[0] && planner_nic_flows(c, g, true) == flows[1] &&
          planner_hp_outside(c, g) == (double)outside / g->hp,
          "dp %d hp %d cp %d w %d on nodes of %d: flows %d and %d, not %d and %d; %d of a head-parallel group outside", g->dp, g->hp, g->cp,
          g->w, gpus, planner_nic_flows(c, g, false), planner_nic_flows(c, g, true), flows[0], flows[1], outside);
}

static void check_network(void) {
    cluster c = load("a100-4nic"), fat = load("h100");
    const struct {
        int hp, cp, w;
        placement_kind placement;
        bool outer;
        int flows; // on 4 NICs
        int flows_8; // on 8 NICs
        double outside;
    } cases[] = {
        {1, 64, 1, PLACEMENT_HEAD_FIRST, true, 1, 1, 0},            // one flow leaves a node
        {2, 32, 1, PLACEMENT_HEAD_FIRST, true, 2, 1, 0},            // two neighbours leave together, through one of the 4 NICs
        {4, 16, 1, PLACEMENT_HEAD_FIRST, true, 2, 1, 0},
        {8, 8, 1, PLACEMENT_HEAD_FIRST, true, 2, 1, 0},             // every GPU sends to the next node
        {16, 4, 1, PLACEMENT_HEAD_FIRST, true, 2, 1, 0.5},
        {2, 32, 1, PLACEMENT_CONTEXT_FIRST, true, 1, 1, 0.5},
        {8, 8, 1, PLACEMENT_CONTEXT_FIRST, true, 0, 0, 7.0 / 8},    // each ring inside its node
        {16, 4, 1, PLACEMENT_CONTEXT_FIRST, true, 0, 0, 14.0 / 16}, // two rings inside each node
        {1, 64, 2, PLACEMENT_CONTEXT_FIRST, true, 1, 1, 0},         // windows interleaved, so that GPUs of one NIC are in different ones
        {1, 64, 4, PLACEMENT_CONTEXT_FIRST, true, 1, 1, 0},
        {1, 64, 4, PLACEMENT_CONTEXT_FIRST, false, 0, 0, 0},
        {1, 64, 8, PLACEMENT_CONTEXT_FIRST, true, 2, 1, 0},
        {1, 64, 16, PLACEMENT_CONTEXT_FIRST, false, 1, 1, 0},       // the inner ring leaves the node
        {1, 64, 16, PLACEMENT_CONTEXT_FIRST, true, 2, 1, 0},
        {8, 8, 2, PLACEMENT_HEAD_FIRST, false, 2, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        grid_shape narrow = planner_shape(&c, 1, cases[i].hp, cases[i].cp, cases[i].w, cases[i].placement);
        grid_shape wide = planner_shape(&fat, 1, cases[i].hp, cases[i].cp, cases[i].w, cases[i].placement);
        int flows = planner_nic_flows(&c, &narrow, cases[i].outer), flows_8 = planner_nic_flows(&fat, &wide, cases[i].outer);
        double outside = planner_hp_outside(&c, &narrow);
        CHECK(flows == cases[i].flows && flows_8 == cases[i].flows_8 && fabs(outside - cases[i].outside) < 1e-12,
              "hp %d cp %d w %d %s: %d flows on 4 NICs, %d on 8, %g of an HP group outside", cases[i].hp, cases[i].cp, cases[i].w,
              cases[i].outer ? "outer" : "inner", flows, flows_8, outside);
    }
    // Collectives: NVLink inside a node, all NICs across nodes; groups of the same stride side by side share them.
    CHECK(planner_collective(&c, 1, 1, 1e9) == 0, "a group of one communicates");
    CHECK(fabs(planner_collective(&c, 8, 1, 1e9) * 300e9 * c.collective_efficiency / 1e9 - 1) < 1e-12, "a collective inside a node");
    CHECK(fabs(planner_collective(&c, 64, 1, 1e9) * 100e9 * c.collective_efficiency / 1e9 - 1) < 1e-12, "a collective over nodes");
    CHECK(fabs(planner_collective(&c, 8, 8, 1e9) * 100e9 * c.collective_efficiency / 8e9 - 1) < 1e-12, "eight collectives side by side");
    CHECK(planner_collective(&c, 8, 16, 1e9) == planner_collective(&c, 8, 8, 1e9), "more ranks leave a node than there are");
    CHECK(planner_overlap(2, 1, 0.25) == 2.25 && planner_overlap(1, 2, 0.25) == 2, "a transfer under compute");
    CHECK(planner_overlap(1, 2, 1) == 3, "a transfer that ranks copy themselves, under compute that is shorter");
    cluster cpus = load("cpu"); // 8 of 16 ranks on each node, with one NIC; a rank sends 8 of its 15 blocks through it
    CHECK(fabs(planner_collective(&cpus, 16, 1, 15e6) * cpus.nic_rate * cpus.collective_efficiency / (8 * 8e6) - 1) < 1e-12,
          "a collective of CPUs over nodes");
    CHECK(planner_hop(&cpus, 2e6, 0) == 50e-6 + 2e6 / 2e9 && planner_hop(&cpus, 2e6, 3) == 50e-6 + 3 * 2e6 / (1.25e9 * 0.8),
          "a hop takes its latency, too");
    CHECK(planner_hop(&fat, 1e9, 1) == 1e9 / 45e9 && (fat.nic_rate = 1e12, planner_hop(&fat, 1e9, 1) == 1e9 / 150e9),
          "a hop is as slow as the slower of lane and NIC");
    CHECK(planner_hop_both(&fat, 1e9, 1e9, 0) == 1e9 / 150e9 &&
          (fat.nvlink_rate = 250e9, planner_hop_both(&fat, 1e9, 1e9, 0) == 2e9 / 250e9), "two lanes fill the links");
    // Sequences of 6 ranks on nodes of 8: the first lies inside a node, the second on two nodes.
    grid_shape rings = planner_shape(&c, 4, 1, 6, 1, PLACEMENT_HEAD_FIRST), heads = planner_shape(&c, 4, 6, 1, 1, PLACEMENT_HEAD_FIRST);
    CHECK(planner_nic_flows(&c, &rings, true) == 1 && fabs(planner_hp_outside(&c, &heads) - 4 / 6.0) < 1e-12,
          "the sequences after the first are not looked at");
    static const int nodes[][2] = {{8, 4}, {8, 8}, {6, 2}, {5, 5}, {4, 1}};
    static const int degrees[][3] = {{1, 6, 2}, {2, 3, 1}, {4, 4, 2}, {1, 10, 5}, {3, 1, 1}, {6, 2, 1}, {1, 16, 4}, {2, 12, 3}};
    for (size_t n = 0; n < sizeof nodes / sizeof *nodes; n++)
        for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
            for (int k = 0; k < 6; k++) { // dp 1, 4 and 11
                cluster some = c;
                some.gpus_per_node = nodes[n][0];
                some.nics_per_node = nodes[n][1];
                grid_shape g = planner_shape(&some, k % 3 == 0 ? 1 : k % 3 == 1 ? 4 : 11, degrees[i][0], degrees[i][1], degrees[i][2],
                                             k < 3 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST);
                if (g.dp * g.hp * g.cp * nodes[n][1] <= 1024) check_period(&some, &g);
            }
    // All-gather of KV: of groups of 3, some lie on two nodes, and these send through NICs as a ring does.
    grid_shape astride = planner_shape(&c, 4, 1, 3, 1, PLACEMENT_HEAD_FIRST);
    CHECK(planner_pass_gather(&c, &astride, 1, 1e9, 2e9).home == 2 * planner_hop(&c, 2e9, 1) &&
          planner_hop(&c, 2e9, 1) > planner_hop(&c, 2e9, 0), "groups that straddle nodes");
    // Windows of 16 ranks on nodes of 8, and transfers so slow that nothing hides them: inner hops share the NICs with outer ones.
    cluster slow = c;
    slow.nic_rate = 1e6;
    slow.overlap_cost = 0;
    planner_query far = planner_query_make(config_preset("llama3-8b"), &slow, 1 << 17, 1, 64);
    grid_shape windows = planner_shape(&slow, 1, 1, 64, 16, PLACEMENT_CONTEXT_FIRST);
    planner_attention both = planner_attention_time(&far, &windows, false);
    // hop: KV of a rank, bytes.
    double hop = 2.0 * 8 * 128 * (1 << 17) / 64 * 2, inner = planner_hop(&slow, hop, 1), outer = planner_hop(&slow, hop, 2);
    CHECK(fabs((both.forward.inner + both.forward.outer + both.forward.compute) / (4 * 15 * inner + 3 * outer) - 1) < 0.01,
          "inner and outer hops on one NIC: %g s and %g, hops of %g and %g", both.forward.inner, both.forward.outer, inner, outer);
    // SeqAlltoAll inside a node, where packing is estimated to take less than the links: a rank keeps its own quarter.
    cluster packs = load("a100-4nic");
    packs.alltoall_pack = 0;
    grid_shape quarters = planner_shape(&packs, 1, 4, 2, 1, PLACEMENT_HEAD_FIRST);
    CHECK(fabs((planner_alltoall(&packs, &quarters, 1e9) - packs.alltoall_latency) /
               (0.75e9 / (packs.nvlink_rate * packs.collective_efficiency)) - 1) < 1e-9, "SeqAlltoAll inside a node");
    // --mlp-tile: gate_up is recomputed, once in every layer.
    model_config tiled = *config_preset("llama3-8b");
    planner_query tile = planner_query_make(&tiled, &c, 1 << 17, 8, 8);
    double kept = planner_linear_flop(&tile, 0), all_again = planner_linear_flop(&tile, 1);
    tile.gate_up_again = true;
    CHECK(planner_linear_flop(&tile, 0) == kept + tiled.L * flops_gate_up_per_token(&tiled) && planner_linear_flop(&tile, 1) == all_again,
          "--mlp-tile recomputes gate_up");
    // All-gather of KV, context-first: a CP group of 8 is a node.
    grid_shape inside = planner_shape(&c, 1, 8, 8, 1, PLACEMENT_CONTEXT_FIRST);
    CHECK(fabs(planner_pass_gather(&c, &inside, 0, 1e9, 2e9).outer / (7 * 3e9 / (300e9 * c.collective_efficiency)) - 1) < 1e-12,
          "an all-gather inside a node");
    // The all-gather hides behind the first ring step, the reduce-scatter behind nothing; they keep NICs busy only between nodes.
    planner_pass hidden = planner_pass_gather(&slow, &inside, 1e3, 1e9, 2e9), apart = planner_pass_gather(&slow, &astride, 1e9, 1e9, 2e9);
    CHECK(fabs(hidden.outer / hidden.home - 1) < 1e-9 && hidden.home > 0 && hidden.nic == 0, "a hidden all-gather inside a node");
    CHECK(fabs(apart.outer / apart.home - 1) < 1e-9 && apart.nic == 2 * planner_hop(&slow, 1e9, 1) + 2 * planner_hop(&slow, 2e9, 1),
          "a hidden all-gather between nodes: %g s, %g of a NIC", apart.outer, apart.nic);
}

// Fewer ranks on a machine have a larger share of it each. What lies between machines, and what is relative to the peak, stays.
static void check_share(void) {
    static const char *const rates[] = {"memory", "peak", "hbm_rate", "nvlink_rate", "host_link_rate", "p2p_rate"};
    static const char *const times[] = {"step_launch", "attention_launch", "hop_latency", "alltoall_latency", "alltoall_pack"};
    cluster all = load("cpu"), two = all, many = all, gpus = load("h100"), few_gpus = gpus;
    cluster_share(&two, 2);
    cluster_share(&many, 16);
    cluster_share(&few_gpus, 2);
    CHECK(memcmp(&many, &all, sizeof all) == 0 && memcmp(&few_gpus, &gpus, sizeof gpus) == 0, "full machines, or GPUs, are shared");
    for (int i = 0; i < CLUSTER_FIGURES; i++) {
        const cluster_figure *f = &cluster_figures[i];
        double factor = strcmp(f->key, "ranks_sharing") == 0 ? 0.25 : 1;
        for (int k = 0; k < 6; k++) factor = strcmp(f->key, rates[k]) == 0 ? 4 : factor;
        for (int k = 0; k < 5; k++) factor = strcmp(f->key, times[k]) == 0 ? 0.25 : factor;
        CHECK(*cluster_value(&two, f) == factor * *cluster_value(&all, f),
              "%s of 2 ranks on a machine of 8: %g, of 8 %g", f->key, *cluster_value(&two, f), *cluster_value(&all, f));
    }
}

// The bytes that the planner counts for a layer's kept activations are those that checkpoint.cuh takes.
static void check_kept(void) {
    model_config m = *config_preset("llama3-8b");
    cluster c = load("h100");
    enum { T = 256 };
    for (int hp = 1; hp <= 16; hp *= 4)
        for (int way = 0; way < 6; way++) {
            int kind = way % 3;
            bool tiled = way >= 3; // --mlp-tile: gate_up is not kept
            activation_sizes n = {T * m.D, T * m.H * m.HS, T * m.H, T * 2 * (hp > m.Hkv ? hp : m.Hkv) * m.HS,
                                  tiled ? 0 : T * 2 * m.F, hp == 1};
            arena a;
            memset(&a, 0, sizeof a);
            a.element_bytes = 2;
            checkpoint_take(&a, n, (recompute_kind)kind);
            CHECK(planner_kept_bytes(&m, &c, hp, (recompute_kind)kind, T, tiled) == (double)a.used,
                  "hp %d, kind %d: %g bytes are kept, predicted %g", hp, kind, (double)a.used,
                  planner_kept_bytes(&m, &c, hp, (recompute_kind)kind, T, tiled));
        }
}

// Bytes that each further row of a long sequence takes on a GPU, Llama-3-8B with full recompute and all activations on the host, by hand.
// Two slots of x_in, dx, dout (where x_mid is, too), q, kv, out before SeqAlltoAll, lse, and what is at work at the worst moment: nothing
// of xn, qkv and the MLP, and of what attention sums and sends around a ring only one slice of heads.
static void check_bytes_of_a_row(const model_config *c) {
    enum { X = 2, D = 4096, H = 32, HS = 128, HEAD = HS * X, SUM = HS * 4, KV = 16 * HEAD, LSE = 4 * H, DATA = 2 * 4 + HS * 4 + 4 };
    const int64_t kept = 2 * D * X + 2 * D * X + H * HEAD + KV + H * HEAD + LSE + DATA;
    const struct {
        int hp, cp, w;
        int64_t at_work;
    } cases[] = {
        {1, 1, 1, SUM + 2 * HEAD + 2 * SUM + LSE},                             // a slice of one head: its sum, K and V, dK and dV; delta
        // Of one group: K and V in use and arriving; dK and dV computed, leaving and arriving.
        {1, 8, 8, 4 * SUM + 2 * HEAD + 2 * 2 * HEAD + 3 * 2 * SUM + LSE},
        {1, 8, 1, 4 * SUM + 2 * HEAD + 2 * 2 * HEAD + 3 * 2 * SUM + LSE},      // the same by an outer ring alone
        {8, 1, 1, H * HEAD + H * HEAD},                                        // out, and dout on its way
        // Out; of one group, which is all heads of a rank: sums; two rings.
        {8, 4, 2, H * HEAD + 8 * (4 * SUM + 2 * 2 * HEAD + 5 * 2 * SUM) + LSE},
    };
    recompute_kind kinds[64];
    for (int l = 0; l < c->L; l++) kinds[l] = RECOMPUTE_FULL;
    for (int i = 0; i < 5; i++) {
        grid g;
        memset(&g, 0, sizeof g);
        g.shape.dp = 1;
        g.shape.hp = cases[i].hp;
        g.shape.cp = cases[i].cp;
        g.shape.w = cases[i].w;
        g.ranks = cases[i].hp * cases[i].cp;
        size_t bytes[2];
        for (int longer = 0; longer < 2; longer++) {
            model_setup setup;
            memset(&setup, 0, sizeof setup);
            setup.B = setup.grad_accum = 1;
            setup.shard = (sequence_shard){.T = (int64_t)(1 + longer) << 20, .hp = cases[i].hp, .cp = cases[i].cp};
            setup.zp = setup.zg = setup.zo = g.ranks;
            setup.kinds = kinds;
            setup.offload_layers = c->L;
            setup.element_bytes = X;
            arena device, host;
            model_count(&device, &host, c, &g, &setup);
            bytes[longer] = device.peak;
        }
        // Not quite: tiles are of equal size, which depends on their number.
        double row = (double)(bytes[1] - bytes[0]) / (1 << 20), want = (double)(kept + cases[i].at_work);
        CHECK(fabs(row - want) < 8, "hp %d cp %d w %d: %.1f bytes a row, %.1f by hand", cases[i].hp, cases[i].cp, cases[i].w, row, want);
    }
}

// ---- the paper's MFU ----

// MFU as LoongTrain's tables print it (Megatron-LM's formula, as in InternEvo; with the TGS of table 6 it gives table 3 to the last digit):
//     TGS 3 ((8 + 6 r) D^2 L + 2 S D L + 2 D V) / 312e12,   r = 3.5, L = 32, D = 4096, V = 51200
// Causal attention counts half, recompute does not count, the head counts once, K and V projections count as full-size whatever Hkv is.
static double mfu_loongtrain(double tgs, double S) {
    double D = 4096, L = 32, V = 51200, r = 3.5;
    return tgs * 3 * ((8 + 6 * r) * D * D * L + 2 * S * D * L + 2 * D * V) / 312e12;
}

// Whether a TGS within half a unit of the printed one's first decimal gives an MFU that rounds to the printed one.
static bool mfu_agrees(double tgs, double S, double mfu) {
    return mfu_loongtrain(tgs - 0.05, S) < mfu + 0.0005 + 1e-9 && mfu_loongtrain(tgs + 0.05, S) > mfu - 0.0005 - 1e-9;
}

static void check_mfu(void) {
    int table_3 = 0, right_3 = 0, table_2 = 0, right_2 = 0;
    for (int i = 0; i < tables.count; i++) {
        const paper_cell *p = &tables.cells[i];
        if (p->table == 2 && p->tgs > 0) {
            table_2++;
            bool right = mfu_agrees(p->tgs, (double)p->S, p->mfu);
            right_2 += right;
            if (!right)
                printf("    table 2 hp %d cp %d %s%s %lldK: TGS %.1f gives MFU %.4f, printed %.3f\n", p->hp, p->cp, p->gqa ? "GQA" : "MHA",
                       p->loongtrain ? "" : " (another system)", (long long)p->S / 1024, p->tgs,
                       mfu_loongtrain(p->tgs, (double)p->S), p->mfu);
        }
        for (int j = 0; p->table == 3 && j < tables.count; j++) {
            const paper_cell *t = &tables.cells[j];
            if (t->table != 6 || t->gqa != p->gqa || t->hp != p->hp || t->cp != p->cp || t->placement != p->placement ||
                t->selective != p->selective || t->S != p->S)
                continue;
            table_3++;
            right_3 += mfu_agrees(t->tgs, (double)t->S, p->mfu);
        }
    }
    printf("MFU formula: %d of %d cells of table 3 from table 6, %d of %d of table 2 (the others above)\n",
           right_3, table_3, right_2, table_2);
    CHECK(right_3 == 192 && table_3 == 192, "%d of %d cells of table 3", right_3, table_3);
    CHECK(right_2 == 55 && table_2 == 62, "%d of %d cells of table 2", right_2, table_2);
    for (int gqa = 0; gqa < 2; gqa++) { // our own count is the same for MHA; for GQA it counts the smaller projections
        model_config m = paper_model(gqa == 1);
        double ours = flops_model_per_token(&m, 131072) / 312e12, paper = mfu_loongtrain(1, 131072);
        CHECK(gqa == 1 ? ours < paper && ours > 0.9 * paper : fabs(ours / paper - 1) < 1e-12,
              "model FLOP: ours %g, LoongTrain's %g", ours, paper);
    }
}

// ---- the time model ----

static double predicted[PAPER_CELLS];

typedef struct {
    int n;
    double mape, worst, bias; // relative
} accuracy;

// Over all cells of a table, or over those that nothing was fitted to.
static accuracy table_accuracy(int table, bool held_out) {
    accuracy a = {0, 0, 0, 0};
    for (int i = 0; i < tables.count; i++) {
        const paper_cell *p = &tables.cells[i];
        if (p->table != table || !paper_cell_counts(p) || (held_out && paper_cell_fitted(p))) continue;
        double e = predicted[i] / p->measured - 1;
        a.n++;
        a.mape += fabs(e);
        a.bias += e;
        a.worst = fmax(a.worst, fabs(e));
    }
    a.mape /= a.n;
    a.bias /= a.n;
    return a;
}

typedef struct {
    int columns, same, top_3, pairs, in_order;
    double regret_mean, regret_max;
} choice_quality;

// Whether a user chooses between the two cells: same model, length and checkpointing; in table 5 also the same degrees (the choice is w).
static bool same_column(const paper_cell *a, const paper_cell *b) {
    return a->table == b->table && a->gqa == b->gqa && a->selective == b->selective && a->S == b->S && (a->table != 5 || a->hp == b->hp);
}
static choice_quality table_choice(int table) {
    choice_quality c = {0, 0, 0, 0, 0, 0, 0};
    bool done[PAPER_CELLS] = {false};
    for (int i = 0; i < tables.count; i++) {
        if (tables.cells[i].table != table || !paper_cell_counts(&tables.cells[i]) || done[i]) continue;
        int column[PAPER_CELLS], n = 0, chosen = i, best = i, before = 0;
        for (int j = i; j < tables.count; j++)
            if (paper_cell_counts(&tables.cells[j]) && same_column(&tables.cells[i], &tables.cells[j])) {
                column[n++] = j;
                done[j] = true;
                if (predicted[j] < predicted[chosen]) chosen = j;
                if (tables.cells[j].measured < tables.cells[best].measured) best = j;
            }
        for (int a = 0; a < n; a++) {
            before += predicted[column[a]] < predicted[best];
            for (int b = 0; b < a; b++) {
                double ratio = tables.cells[column[a]].measured / tables.cells[column[b]].measured;
                if (ratio <= 1.02 && ratio >= 1 / 1.02) continue;
                c.pairs++;
                c.in_order += (ratio > 1) == (predicted[column[a]] > predicted[column[b]]);
            }
        }
        double regret = tables.cells[chosen].measured / tables.cells[best].measured - 1;
        c.columns++;
        c.same += regret == 0;
        c.top_3 += before < 3;
        c.regret_mean += regret;
        c.regret_max = fmax(c.regret_max, regret);
    }
    c.regret_mean /= c.columns;
    return c;
}

// Whether docs/planner.md says so; a line's end counts as a blank, several blanks as one.
static bool documented(const char *text) {
    static char document[1 << 17];
    FILE *f = document[0] == '\0' ? fopen("docs/planner.md", "r") : NULL;
    int before = ' ';
    for (size_t n = 0; f != NULL && n < sizeof document - 1;) {
        int c = fgetc(f);
        if (c == EOF) break;
        if (c == '\n') c = ' ';
        if (c != ' ' || before != ' ') document[n++] = (char)c;
        before = c;
    }
    if (f != NULL) fclose(f);
    return strstr(document, text) != NULL;
}

static void check_tables(const char *cluster_name, bool fitted) {
    cluster c = load(cluster_name);
    for (int i = 0; i < tables.count; i++)
        if (paper_cell_counts(&tables.cells[i])) predicted[i] = paper_predict(&tables.cells[i], &c);
    accuracy a[7];
    choice_quality q[7];
    printf("%s: predicted against measured times%s; choice in columns with both placements\n", cluster_name,
           fitted ? ", held-out cells" : ", all cells");
    for (int table = 2; table <= 6; table++) {
        if (table == 3) continue; // the runs of table 6
        a[table] = table_accuracy(table, fitted);
        q[table] = table_choice(table);
        printf("    table %d: %3d cells MAPE %4.2f %% worst %4.1f %% bias %+5.2f %% | %2d columns: "
               "same best %2d, best in top 3 %2d, regret mean %.2f %% max %.2f %%, pairs in order %d of %d (%.1f %%)\n", table, a[table].n,
               100 * a[table].mape, 100 * a[table].worst, 100 * a[table].bias, q[table].columns, q[table].same, q[table].top_3,
               100 * q[table].regret_mean, 100 * q[table].regret_max, q[table].in_order, q[table].pairs,
               100.0 * q[table].in_order / q[table].pairs);
    }
    char said[160];
    if (fitted)
        snprintf(said, sizeof said, "%.1f %% in table 4 (at most %.0f), %.1f %% in table 5 (%.0f), %.1f %% in table 6 (%.0f) and "
                 "%.1f %% in table 2 (%.0f)", 100 * a[4].mape, 100 * a[4].worst, 100 * a[5].mape, 100 * a[5].worst, 100 * a[6].mape,
                 100 * a[6].worst, 100 * a[2].mape, 100 * a[2].worst);
    else
        snprintf(said, sizeof said, "the mean errors are %.1f to %.1f %% (at most %.0f)",
                 100 * fmin(fmin(a[2].mape, a[4].mape), fmin(a[5].mape, a[6].mape)),
                 100 * fmax(fmax(a[2].mape, a[4].mape), fmax(a[5].mape, a[6].mape)), 100 * fmax(fmax(a[2].worst, a[4].worst), a[5].worst));
    CHECK(documented(said), "docs/planner.md does not say \"%s\"", said);
    if (!fitted) {
        CHECK(a[6].n == 176 && a[6].mape <= 0.04, "%s table 6: MAPE %g over %d", cluster_name, a[6].mape, a[6].n);
        CHECK(q[6].columns == 16 && q[6].regret_mean <= 0.005 && q[6].regret_max <= 0.03,
              "%s table 6: regret %g, %g", cluster_name, q[6].regret_mean, q[6].regret_max);
        return;
    }
    CHECK(a[4].n == 64 && a[4].mape <= 0.03 && a[4].worst <= 0.10, "table 4: MAPE %g worst %g over %d", a[4].mape, a[4].worst, a[4].n);
    CHECK(a[5].n == 32 && a[5].mape <= 0.035, "table 5: MAPE %g over %d", a[5].mape, a[5].n);
    CHECK(a[6].n == 152 && a[6].mape <= 0.03 && a[6].worst <= 0.15, "table 6: MAPE %g worst %g over %d", a[6].mape, a[6].worst, a[6].n);
    CHECK(a[2].n == 48 && a[2].mape <= 0.035, "table 2: MAPE %g over %d", a[2].mape, a[2].n);
    CHECK(q[6].columns == 16 && q[6].top_3 == 16 && q[6].regret_mean <= 0.005 && q[6].regret_max <= 0.02,
          "table 6: top 3 %d, regret %g, %g", q[6].top_3, q[6].regret_mean, q[6].regret_max);
    CHECK(q[4].columns == 8 && q[4].regret_max <= 0.015, "table 4: regret %g", q[4].regret_max);
    CHECK(q[2].columns == 8 && q[2].regret_max <= 0.005, "table 2: regret %g", q[2].regret_max);
    CHECK(q[5].columns == 16 && q[5].regret_max <= 0.015, "table 5, choice of w: regret %g", q[5].regret_max);
    const int ordered[] = {4, 6, 2};
    for (int i = 0; i < 3; i++) {
        choice_quality t = q[ordered[i]];
        CHECK(t.in_order >= 0.95 * t.pairs, "table %d: %d of %d pairs in order", ordered[i], t.in_order, t.pairs);
    }
}

// What dev/fit_planner.py minimizes.
static double fit_cost(const cluster *c) {
    double cost = 0;
    for (int i = 0; i < tables.count; i++) {
        const paper_cell *p = &tables.cells[i];
        if (!paper_cell_counts(p) || !paper_cell_fitted(p)) continue;
        cost += hypot(1, log(paper_predict(p, c) / p->measured) / 0.02);
        if (p->alltoall > 0) cost += hypot(1, 0.5 * log(paper_predict_alltoall(p, c) / p->alltoall) / 0.02);
    }
    return cost;
}
// clusters/a100-4nic.txt belongs to the model as it is: a fitted figure that is a fifth of a percent larger or smaller fits worse.
static void check_fit(void) {
    cluster c = load("a100-4nic"), moved;
    for (int way = 0; way < 2 * CLUSTER_FIGURES; way++) {
        const cluster_figure *f = &cluster_figures[way / 2];
        if (c.kinds[way / 2] != FIGURE_MEASURED) continue;
        moved = c;
        *cluster_value(&moved, f) *= way % 2 == 0 ? 1.002 : 0.998;
        CHECK(fit_cost(&moved) > fit_cost(&c), "%s: %g fits better (dev/fit_planner.py --write fits all figures anew)", f->key,
              *cluster_value(&moved, f));
    }
}

// ---- our schedule ----

// The cell of table 5 for MHA, cp 64, w 4, 128K, which took 140.6 ms with LoongTrain's schedule.
static planner_attention long_ring(const cluster *c, planner_schedule schedule, double dkv_bytes) {
    static model_config m;
    m = paper_model(false);
    planner_query q = planner_query_make(&m, c, 131072, 1, 64);
    q.schedule = schedule;
    q.dkv_bytes = dkv_bytes;
    grid_shape shape = planner_shape(c, 1, 1, 64, 4, PLACEMENT_CONTEXT_FIRST);
    return planner_attention_time(&q, &shape, false);
}
static void print_long_ring(const char *what, const planner_attention *a) {
    printf("    %-34s %6.1f ms = compute %.1f + %.1f, launch %.1f, exposed: inner %.1f + %.1f, outer %.1f + %.1f (forward + backward)\n",
           what, 1e3 * paper_attention_seconds(a), 1e3 * a->forward.compute, 1e3 * a->backward.compute, 1e3 * a->launch,
           1e3 * a->forward.inner, 1e3 * a->backward.inner, 1e3 * a->forward.outer, 1e3 * a->backward.outer);
}
static void check_our_schedule(void) {
    const char *const clusters[] = {"a100-4nic-datasheet", "a100-4nic"};
    double late[2], ms[5][2]; // rows and columns of the table in docs/planner.md
    for (int i = 0; i < 2; i++) {
        cluster c = load(clusters[i]);
        planner_attention theirs = long_ring(&c, SCHEDULE_LOONGTRAIN, 2), ours = long_ring(&c, SCHEDULE_LATE_DKV, 2);
        planner_attention wide = long_ring(&c, SCHEDULE_LATE_DKV, 4);
        printf("%s, MHA cp 64 w 4 128K (measured by LoongTrain 140.6 ms):\n", clusters[i]);
        print_long_ring("LoongTrain's schedule, bf16 dKV", &theirs);
        // Our schedule with LoongTrain's backward: a window's KV and dKV share the NIC, and one ring step hides them.
        planner_attention waits = ours;
        waits.backward = theirs.backward;
        print_long_ring("ours, waiting for dKV as they do", &waits);
        print_long_ring("ours, --dkv-wire bf16", &ours);
        print_long_ring("ours, --dkv-wire f32", &wide);
        printf("    late dKV saves %.1f ms of %.1f; without any exposed transfer it would be %.1f ms\n",
               1e3 * (paper_attention_seconds(&waits) - paper_attention_seconds(&ours)), 1e3 * paper_attention_seconds(&waits),
               1e3 * (ours.forward.compute + ours.backward.compute + ours.launch));
        CHECK(paper_attention_seconds(&waits) - paper_attention_seconds(&ours) >= 0.025, "late dKV saves %g s",
              paper_attention_seconds(&waits) - paper_attention_seconds(&ours));
        CHECK(paper_attention_seconds(&wide) >= paper_attention_seconds(&ours) + 0.010, "half of the bytes save %g s",
              paper_attention_seconds(&wide) - paper_attention_seconds(&ours));
        late[i] = paper_attention_seconds(&ours);
        const planner_attention *const rows[] = {&theirs, &waits, &ours, &wide};
        for (int k = 0; k < 4; k++) ms[k][i] = 1e3 * paper_attention_seconds(rows[k]);
        ms[4][i] = 1e3 * (ours.forward.compute + ours.backward.compute + ours.launch);
        printf("    outer transfers behind whole windows save %.1f ms, of them KV (forward) %.1f, KV and dKV (backward) %.1f; "
               "inner rings cost %+.1f\n",
               1e3 * (theirs.forward.outer + theirs.backward.outer - ours.forward.outer - ours.backward.outer),
               1e3 * (theirs.forward.outer - ours.forward.outer), 1e3 * (theirs.backward.outer - ours.backward.outer),
               1e3 * (ours.forward.inner + ours.backward.inner - theirs.forward.inner - theirs.backward.inner));
        CHECK(theirs.forward.compute == ours.forward.compute && theirs.backward.compute == ours.backward.compute,
              "the schedule changes compute");
        CHECK(ours.backward.outer <= 0.25 * theirs.backward.outer, "late dKV hides too little: %g of %g s exposed", ours.backward.outer,
              theirs.backward.outer);
        CHECK(paper_attention_seconds(&theirs) - paper_attention_seconds(&ours) >= 0.035, "our schedule saves %g s",
              paper_attention_seconds(&theirs) - paper_attention_seconds(&ours));
    }
    const char *const names[] = {
        "LoongTrain's schedule, bf16 dKV", "ours, but waiting for dKV after one ring step, as LoongTrain's code does",
        "ours, `--dkv-wire bf16`", "ours, `--dkv-wire f32` (the default)", "without any exposed transfer"};
    for (int k = 0; k < 5; k++) {
        char said[160];
        snprintf(said, sizeof said, "| %s | %.1f ms | %.1f ms |", names[k], ms[k][0], ms[k][1]);
        CHECK(documented(said), "docs/planner.md does not say \"%s\"", said);
    }
    // With kernels and launches counted. The fitted constants are those of LoongTrain's kernels: 76.7 ms without communication.
    CHECK(late[0] <= 0.085, "our schedule, data sheet: %g s", late[0]);
    CHECK(late[1] <= 0.100, "our schedule, constants of LoongTrain's kernels: %g s", late[1]);

    // The ring formulas by hand: slow compute hides everything; with slow transfers only they count; w = cp = 1 communicates nothing.
    planner_ring r;
    memset(&r, 0, sizeof r);
    r.w = 4; r.windows = 16; r.step = 10;
    r.kv_inner = r.dkv_inner = r.both_inner = 1;
    r.kv_outer = r.dkv_outer = 2;
    r.both_outer = 4;
    CHECK(fabs(planner_ring_loongtrain(&r) - 640) < 1e-9, "LoongTrain, all hidden: %g", planner_ring_loongtrain(&r));
    CHECK(fabs(planner_ring_late(&r) - (640 + 1 + 2)) < 1e-9, "ours, only the hops home are exposed: %g", planner_ring_late(&r));
    r.step = 1;
    r.kv_outer = r.dkv_outer = 50;
    r.both_outer = 100;
    CHECK(fabs(planner_ring_late(&r) - (50 + 14 * 100 + 50 + 50 + 1)) < 1e-9, "ours, all network: %g", planner_ring_late(&r));
    CHECK(fabs(planner_ring_loongtrain(&r) - (16 * 3 * 2 + 15 * 100 + 1)) < 1e-9,
          "LoongTrain, all network: %g", planner_ring_loongtrain(&r));
    r.inner_on_nic = true; // the four inner hops of a window share the NIC with its outer hop
    CHECK(fabs(planner_ring_late(&r) - (16 * 4 + 50 + 14 * 100 + 50 + 50 + 1)) < 1e-9,
          "ours, inner and outer hops on one NIC: %g", planner_ring_late(&r));
    // How long a NIC is busy, hidden or not: by all hops, by the outer ones alone, by none.
    r.outer_on_nic = true;
    double all = planner_pass_split(r, SCHEDULE_LATE_DKV).nic;
    r.inner_on_nic = false;
    double outer_alone = planner_pass_split(r, SCHEDULE_LATE_DKV).nic;
    r.outer_on_nic = false;
    CHECK(fabs(all - (16 * 4 + 50 + 14 * 100 + 50 + 50 + 1)) < 1e-9 && fabs(outer_alone - (50 + 14 * 100 + 50 + 50)) < 1e-9 &&
          planner_pass_split(r, SCHEDULE_LATE_DKV).nic == 0, "a NIC is busy for %g, by outer hops for %g", all, outer_alone);
    r.w = r.windows = 1;
    CHECK(planner_ring_late(&r) == 1 && planner_ring_loongtrain(&r) == 1, "a ring of one communicates");
}

// ---- another system, on another machine ----

// Whole steps of DistFlashAttn: LLaMA-7B and its twin with 8 KV heads on the 8 A100 of one node, sequences of 64K to 256K in one ring (its
// own has another schedule, which inside a node hides what ours does). LoongTrain's constants, nothing fitted. Its Triton kernels are
// slower, so what is tested is not their speed but what follows from the model: that steps of all lengths, MHA and GQA, are off by about
// one factor, and what is saved where attention is not recomputed. (Shorter steps wait for the host: 8K take as long as 4K.)
static void check_distflashattn(void) {
    static const struct { const char *table, *row, *model; recompute_kind kind; int length, seconds; } parts[] = {
        {"test/paper_tables/distflashattn_table5.csv", "hf_checkpoint,", "llama2-7b", RECOMPUTE_FULL, 1, 2},
        {"test/paper_tables/distflashattn_table5.csv", "rematerialization_aware,", "llama2-7b", RECOMPUTE_SELECTIVE, 1, 2},
        {"test/paper_tables/distflashattn_table1.csv", "DistFlashAttn,1,", "llama2-7b-gqa", RECOMPUTE_SELECTIVE, 3, 6}};
    enum { FULL, MHA, GQA, LENGTHS = 3 };
    cluster c = load("a100-4nic");
    double measured[3][LENGTHS] = {{0}}, predicted_s[3][LENGTHS] = {{0}};
    for (int k = 0; k < 3; k++) {
        char line[256], *f[8];
        int n = 0;
        const model_config *m = config_preset(parts[k].model);
        FILE *file = fopen(parts[k].table, "r");
        while (file != NULL && n < LENGTHS && fgets(line, sizeof line, file) != NULL) {
            if (strncmp(line, parts[k].row, strlen(parts[k].row)) != 0) continue;
            int fields = paper_split(line, f, 8);
            int64_t S = 8 * (int64_t)paper_count(f[parts[k].length]);
            if (S < 65536 || (fields == 8 && strcmp(f[5], "llama-gqa") != 0)) continue;
            planner_query q = planner_query_make(m, &c, S, 1, 8);
            q.schedule = SCHEDULE_LOONGTRAIN;
            q.dkv_bytes = 2;
            planner_choice choice = {.shape = planner_shape(&c, 1, 1, 8, 8, PLACEMENT_HEAD_FIRST), .zp = 8, .zg = 8, .zo = 8,
                                     .recompute = parts[k].kind};
            planner_attention a = planner_attention_time(&q, &choice.shape, false);
            planner_step_time(&q, &a, &choice);
            measured[k][n] = paper_number(f[parts[k].seconds]);
            predicted_s[k][n++] = choice.seconds;
        }
        if (file != NULL) fclose(file);
        CHECK(n == LENGTHS, "%s: %d rows %s", parts[k].table, n, parts[k].row);
        printf("    DistFlashAttn, %-24s 64K %.2f s, measured %.2f; 128K %.2f, %.2f; 256K %.2f, %.2f\n", parts[k].row, predicted_s[k][0],
               measured[k][0], predicted_s[k][1], measured[k][1], predicted_s[k][2], measured[k][2]);
    }
    double least = INFINITY, most = 0, gain_least = INFINITY, gain_most = 0;
    for (int n = 0; n < LENGTHS; n++) {
        for (int k = MHA; k <= GQA; k++) {
            least = fmin(least, measured[k][n] / predicted_s[k][n]);
            most = fmax(most, measured[k][n] / predicted_s[k][n]);
        }
        double gain = predicted_s[FULL][n] / predicted_s[MHA][n] / (measured[FULL][n] / measured[MHA][n]);
        gain_least = fmin(gain_least, gain);
        gain_most = fmax(gain_most, gain);
    }
    CHECK(least > 1 && most < 1.1 * least, "steps take %g to %g times what is predicted", least, most);
    CHECK(gain_least > 0.9 && gain_most < 1.02, "the gain of selective is %g to %g of the measured one", gain_least, gain_most);
    char said[160];
    snprintf(said, sizeof said, "take %.2f to %.2f times as long as predicted; how many times that full recompute takes comes out %.0f to "
             "%.0f %% too small", least, most, 100 * (1 - gain_most), 100 * (1 - gain_least));
    CHECK(documented(said), "docs/planner.md does not say \"%s\"", said);
}

// ---- memory of other systems ----

// Peak bytes of a rank in systems that keep the logits of all local tokens at once, as torchtitan and Megatron-CP do (ours tiles them, and
// counts its own buffers: run_memory.h). Parameters in bf16 in `sp` shards, gradients of `grad_bytes` each in sg shards, 12 bytes of Adam
// in so shards; a checkpoint per layer, more with Selective Checkpoint++; and the logits, or one layer's activations if those are larger.
//     N (2/sp + grad/sg + 12/so) + 2 L D T [+ L (2 H HS + 4 H) T] + max(T V logit_bytes, a layer)
static double untiled_bytes(const model_config *m, double T, int sp, int sg, int so, double grad_bytes, bool selective,
                            double logit_bytes) {
    double N = (double)config_parameters(m), width = (double)m->H * m->HS;
    double layer = 2 * (2.0 * m->D + 2 * width + 2.0 * m->Hkv * m->HS + 2.0 * m->F);
    double kept = 2.0 * m->L * m->D * T + (selective ? m->L * (2 * width + 4.0 * m->H) * T : 0);
    return N * (2.0 / sp + grad_bytes / sg + 12.0 / so) + kept + T * fmax(m->V * logit_bytes, layer);
}

// torchtitan shards all states over all ranks; 15.2 bytes per logit are fitted (float logits and their gradient). LoongTrain's cells
// all ran in 80 GB; Megatron-CP's 1M on 32 GPUs did not. Both are consistency checks only, as 10 and 14 bytes per logit are our choice.
static void check_published_memory(const model_config *llama3_8b) {
    char line[256], *f[8];
    int cells = 0;
    FILE *file = fopen("test/paper_tables/torchtitan_table1.csv", "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL, "torchtitan_table1.csv cannot be read");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (paper_split(line, f, 8) != 6) continue;
        int n = paper_count(f[2]);
        double S = paper_number(f[1]), gib = untiled_bytes(llama3_8b, S / n, n, n, n, 2, false, 15.2) / 1073741824.0;
        double error = gib / paper_number(f[3]) - 1;
        printf("    torchtitan %-9s %4.0fK on %2d: %.1f GiB, measured %s (%+.1f %%)\n", f[0], S / 1024, n, gib, f[3], 100 * error);
        CHECK(fabs(error) <= 0.08, "torchtitan %s %s: %g GiB, measured %s", f[0], f[1], gib, f[3]);
        cells++;
    }
    if (file != NULL) fclose(file);
    CHECK(cells == 6, "%d cells of torchtitan", cells);
    double largest = 0;
    for (int i = 0; i < tables.count; i++) {
        const paper_cell *p = &tables.cells[i];
        if ((p->table != 2 && p->table != 6) || !p->loongtrain || p->tgs == 0) continue;
        model_config m = paper_model(p->gqa);
        int ranks = paper_cell_ranks(p);
        double bytes = untiled_bytes(&m, (double)p->S / ranks, 1, 1, ranks, 2, p->selective, 10);
        largest = fmax(largest, bytes);
        CHECK(bytes <= 80e9, "table %d hp %d cp %d %lldK ran in 80 GB, predicted %g", p->table, p->hp, p->cp,
              (long long)p->S / 1024, bytes);
    }
    model_config m = paper_model(false);
    printf("    LoongTrain's largest cell: %.1f GB; Megatron-CP-like, MHA on 32 GPUs (float gradients, 14 bytes a logit):", 1e-9 * largest);
    for (int64_t S = 131072; S <= 1048576; S *= 2) { // ran at 128K to 512K, out of memory at 1M
        double bytes = untiled_bytes(&m, (double)S / 32, 1, 1, 32, 4, false, 14);
        printf(" %.1f GB at %lldK;", 1e-9 * bytes, (long long)S / 1024);
        CHECK((bytes <= 80e9) == (S < 1048576), "Megatron-CP-like %lldK: %g bytes", (long long)S / 1024, bytes);
    }
    printf("\n");
}

// ---- the search ----

static bool fits_nothing(void *context, planner_choice *choice) {
    (*(int64_t *)context)++;
    choice->memory = 1e15;
    return false;
}
static bool fits_table_6(void *context, planner_choice *choice) {
    (void)context;
    choice->memory = 1;
    return choice->shape.w == 1 && !choice->cp_allgather && choice->recompute == RECOMPUTE_FULL;
}
// A rough memory rule: the states, what every layer keeps (nothing of either if offloaded), and one whole layer.
typedef struct {
    const model_config *m;
    double limit;
    int64_t S;
} memory_rule;
static bool fits_rule(void *context, planner_choice *p) {
    const memory_rule *r = (const memory_rule *)context;
    double N = (double)config_parameters(r->m), T = (double)r->S / ((double)p->shape.hp * p->shape.cp);
    cluster c;
    memset(&c, 0, sizeof c);
    c.element_bytes = 2;
    double kept = planner_kept_sum(r->m, &c, p, r->m->L, T, false) -
                  planner_kept_sum(r->m, &c, p, checkpoint_offloaded(p->offload, r->m->L), T, false);
    double states = (p->offload_states < OFFLOAD_PARAMETERS ? 2.0 / p->zp : 0) + (p->offload_states < OFFLOAD_GRADIENTS ? 4.0 / p->zg : 0) +
                    (p->offload_states < OFFLOAD_OPTIMIZER ? 12.0 / p->zo : 0);
    p->memory = N * states + kept + planner_kept_bytes(r->m, &c, p->shape.hp, RECOMPUTE_NONE, T, false);
    return p->memory <= r->limit;
}

// Times a step of this choice, and its attention.
static planner_attention time_step(const planner_query *q, planner_choice *p) {
    planner_attention a = planner_attention_time(q, &p->shape, p->cp_allgather);
    planner_step_time(q, &a, p);
    return a;
}

static model_config preset(const char *name) {
    CHECK(config_preset(name) != NULL, "no preset %s", name);
    return *config_preset(name);
}

// From how many tokens on a packed document is cut over the ring: two chunks a rank of 1024 tokens (CPUs: 64), or more with fewer than 16
// query heads a rank.
static void check_long_documents(void) {
    // hp of 32 heads, cp, tokens: GPUs, CPUs.
    static const int of[][4] = {{1, 2, 4096, 256}, {2, 2, 4096, 256}, {4, 2, 8192, 256}, {8, 4, 32768, 512}, {32, 2, 65536, 256}};
    cluster machines[2] = {load("h100"), load("cpu")};
    model_config llama = preset("llama3-8b");
    for (size_t i = 0; i < 2 * sizeof of / sizeof of[0]; i++) {
        options o;
        options_default(&o);
        o.hp = of[i / 2][0];
        o.cp = of[i / 2][1];
        o.document_end = 1;
        int64_t tokens = run_shard(&o, &llama, 1 << 20, 0, 0, &machines[i % 2]).long_document;
        CHECK(tokens == of[i / 2][2 + i % 2], "hp %lld cp %lld, %s: long from %lld tokens on", (long long)o.hp, (long long)o.cp,
              machines[i % 2].name, (long long)tokens);
    }
    CHECK(device_long_document(1, 16, true) == 2048 && device_long_document(1, 15, true) == 2184 &&
          device_long_document(3, 17, true) == 6144, "16, 15 and 17 heads");
}

static double parts_sum(const planner_choice *p) {
    planner_part parts[PLANNER_PARTS];
    double sum = 0;
    planner_parts(p, parts);
    for (int i = 0; i < PLANNER_PARTS; i++) {
        CHECK(parts[i].seconds >= 0, "%s: %g s", parts[i].name, parts[i].seconds);
        sum += parts[i].seconds;
    }
    return sum;
}

static void check_choices(const planner_query *q, const planner_choice *best, int n) {
    for (int i = 0; i < n; i++) {
        const planner_choice *p = &best[i];
        const grid_shape *s = &p->shape;
        CHECK(s->dp * s->hp * s->cp == q->ranks && s->cp % s->w == 0 && q->model->H % s->hp == 0 &&
              q->global_batch % (s->dp * q->batch) == 0 && p->zg % p->zp == 0 && p->zo % p->zg == 0 && q->ranks % p->zo == 0,
              "illegal choice: dp %d hp %d cp %d w %d ZeRO %d %d %d", s->dp, s->hp, s->cp, s->w, p->zp, p->zg, p->zo);
        CHECK(p->seconds > 0 && fabs(parts_sum(p) / p->seconds - 1) < 1e-12, "parts sum to %g of %g s", parts_sum(p), p->seconds);
        CHECK(fabs(p->tgs * p->seconds * q->ranks / ((double)q->S * (double)q->global_batch) - 1) < 1e-12,
              "TGS %g in %g s", p->tgs, p->seconds);
        CHECK(p->mfu > 0 && p->mfu <= p->hfu && p->hfu <= 1, "MFU %g HFU %g", p->mfu, p->hfu);
        if (i > 0) CHECK(planner_cost(&best[i - 1]) <= planner_cost(p), "choices are not sorted");
    }
}

static void print_plan(const planner_query *q, const planner_choice *best, int n, double seconds) {
    printf("%s, %lldK tokens x %lld, %d %s: planned in %.2f s\n", q->model->name, (long long)q->S / 1024, (long long)q->global_batch,
           q->ranks, q->machines->name, seconds);
    for (int i = 0; i < n && i < 3; i++) {
        char why[256];
        planner_reason(&best[i], why, sizeof why);
        printf("    dp %d hp %d cp %d w %d %s%s ZeRO %d/%d/%d recompute %d%s: "
               "%.2f s, TGS %.0f, MFU %.1f %%, HFU %.1f %%, %.0f GB (+%.1f %%%s): %s\n",
               best[i].shape.dp, best[i].shape.hp, best[i].shape.cp, best[i].shape.w, placement_name(best[i].shape.placement),
               best[i].cp_allgather ? " allgather" : "", best[i].zp, best[i].zg, best[i].zo, best[i].recompute,
               best[i].offload > 0 ? " offload" : "", best[i].seconds, best[i].tgs, 100 * best[i].mfu, 100 * best[i].hfu,
               1e-9 * best[i].memory, 100 * (best[i].seconds / best[0].seconds - 1),
               i > 0 && best[i].seconds <= (1 + PLANNER_TIE) * best[0].seconds ? ", a tie" : "", why);
    }
}

// The share of the parameters in the embedding and the first `layers` layers.
static double share_of_ends(const model_config *m, int layers) {
    double table = (double)m->V * m->D, N = (double)config_parameters(m);
    return (table + layers * (N - (m->tied ? 1 : 2) * table) / m->L) / N;
}

// No other ZeRO degrees of a choice are faster by more than a thousandth. Those that are no slower save at most a tenth of a GPU's memory,
// or do not fit: a choice shards whatever can be sharded at no cost.
static void check_degrees(const planner_query *q, const planner_choice *best) {
    const int degrees[3] = {1, (int)q->machines->gpus_per_node, q->ranks};
    planner_attention a = planner_attention_time(q, &best->shape, best->cp_allgather);
    for (int i = 0; i < 27; i++) {
        planner_choice p = *best;
        p.zp = degrees[i / 9];
        p.zg = degrees[i / 3 % 3];
        p.zo = degrees[i % 3];
        if (p.zg % p.zp != 0 || p.zo % p.zg != 0) continue;
        planner_step_time(q, &a, &p);
        if (!q->fits(q->context, &p)) continue;
        CHECK(best->seconds <= 1.0010001 * p.seconds,
              "ZeRO %d %d %d takes %g s, %d %d %d %g", p.zp, p.zg, p.zo, p.seconds, best->zp, best->zg, best->zo, best->seconds);
        if (p.seconds > best->seconds) continue;
        CHECK(p.memory > best->memory - 0.1 * q->machines->memory, "ZeRO %d %d %d is no slower and needs %g bytes, %d %d %d %g", p.zp, p.zg,
              p.zo, p.memory, best->zp, best->zg, best->zo, best->memory);
    }
}
// What the planner hides: the all-gather of updated parameters behind the first forward pass, but for those of the embedding and the first
// layer; SeqAlltoAll that selective recompute repeats behind matrix products; the first hop of dKV home behind wo's gradient. All of it
// where that compute is long enough; nothing on CPUs, which copy data themselves.
static void check_hidden(const planner_query *ask) {
    planner_query q = *ask;
    planner_choice p = {.shape = planner_shape(q.machines, 1, 8, q.ranks / 8, 1, PLACEMENT_HEAD_FIRST), .zp = 1, .zg = 1, .zo = q.ranks};
    double update[2], bytes = q.machines->element_bytes * (double)config_parameters(q.model);
    double whole = planner_collective(q.machines, p.zo, 1, bytes * (1 - 1.0 / p.zo));
    for (int i = 0; i < 2; i++) {
        q.S = q.attended = i == 0 ? 1024 : 1048576;
        time_step(&q, &p);
        update[i] = p.update;
    }
    double first = share_of_ends(q.model, 1) * whole, hidden = q.machines->overlap_cost * (whole - first) + first;
    CHECK(update[0] > 0.5 * whole && update[0] <= whole && fabs(update[1] / hidden - 1) < 1e-9,
          "update %g of %g s exposed at 1K, %g at 1M", update[0], whole, update[1]);
    double exchanged[3];
    for (int kind = 0; kind < 3; kind++) {
        p.recompute = (recompute_kind)kind;
        time_step(&q, &p);
        exchanged[kind] = p.alltoall;
    }
    CHECK(fabs(exchanged[RECOMPUTE_FULL] / exchanged[RECOMPUTE_NONE] - 1.5) < 1e-9 &&
          exchanged[RECOMPUTE_SELECTIVE] > exchanged[RECOMPUTE_NONE] && exchanged[RECOMPUTE_SELECTIVE] < 1.1 * exchanged[RECOMPUTE_NONE],
          "SeqAlltoAll exposed: %g s, selective %g, full %g", exchanged[0], exchanged[1], exchanged[2]);
    planner_query theirs = q;
    theirs.schedule = SCHEDULE_LOONGTRAIN;
    p.recompute = RECOMPUTE_SELECTIVE;
    time_step(&theirs, &p);
    CHECK(fabs(p.alltoall / exchanged[RECOMPUTE_NONE] - 1.5) < 1e-9,
          "LoongTrain's schedule hides what selective recompute exchanges again: %g s", p.alltoall);
    CHECK(p.gather == 0 && p.reduce == 0 && p.offloading == 0 && p.optimizer == 0, "LoongTrain's schedule has parts of ours");
    p.recompute = RECOMPUTE_NONE;
    // Outer ring, inner ring, all-gather; and again with two sequences at a time, of which the last is hidden.
    for (int way = 0; way < 6; way++) {
        cluster c = *q.machines;
        q.batch = 1 + way / 3;
        q.machines = &c;
        p.shape.w = way % 3 == 1 ? p.shape.cp : 1;
        p.cp_allgather = way % 3 == 2;
        for (int i = 0; i < 3; i++) {
            c.linear_efficiency = i == 0 ? 1e-6 : ask->machines->linear_efficiency;
            c.overlap_cost = i == 2;
            planner_attention a = time_step(&q, &p);
            double operations = (double)(q.model->L * q.global_batch), home = operations * a.backward.home;
            double exposed = p.ring_inner + p.ring_outer;
            double all = operations * (a.forward.inner + a.forward.outer + a.backward.inner + a.backward.outer);
            double least = i == 2 ? all : all - home / (double)q.batch;
            CHECK(home > 0 && exposed > least - 1e-9 * all && exposed < (i == 1 ? 0.99 * all : least + 1e-9 * all),
                  "way %d, case %d: %g of %g s exposed; %g of them home", way, i, exposed, all, home);
        }
        q.machines = ask->machines;
    }
}

// ZeRO's transfers where passes are long enough to hide all that they can: a step still waits for the parameters of the embedding and the
// first layer (the update of a second one, where a gather follows), and for the gradients of the embedding and one layer, of two layers
// where stages follow. The same with one micro-step and four.
static void check_ends(const model_config *m, const cluster *machines) {
    cluster c = *machines;
    c.overlap_cost = 0;
    double N = (double)config_parameters(m), one = share_of_ends(m, 1), two = share_of_ends(m, 2);
    for (int batch = 2; batch <= 8; batch += 6) {
        planner_query q = planner_query_make(m, &c, 1048576, batch, 64);
        planner_choice p = {.shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST)};
        for (int sharded = 0; sharded < 2; sharded++) {
            p.zp = sharded ? 8 : 1;
            p.zg = 16;
            p.zo = 32;
            time_step(&q, &p);
            double gather = sharded ? one * planner_collective(&c, 8, 1, 2 * N * 7 / 8) : 0;
            double reduce = one * planner_collective(&c, 16, 1, 4 * N * 15 / 16) + two * planner_collective(&c, 2, 16, 4 * N / 16 / 2) +
                            two * planner_collective(&c, 2, 32, 2 * 4 * N / 32 / 2);
            double update = sharded ? two * planner_collective(&c, 4, 8, 2 * N / 8 * 3 / 4)
                                    : one * planner_collective(&c, 32, 1, 2 * N * 31 / 32);
            CHECK(fabs(p.gather - gather) < 1e-9 && fabs(p.reduce / reduce - 1) < 1e-9 && fabs(p.update / update - 1) < 1e-9,
                  "%d sequences, zp %d: exposed %g, %g, %g s; by hand %g, %g, %g", batch, p.zp, p.gather, p.reduce, p.update,
                  gather, reduce, update);
        }
    }
}

// A step by hand, with overlap_cost 1, so that nothing is hidden: 4 micro-steps of 2 sequences on each of 2 groups of 8 x 4 ranks.
static void check_step(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    c.overlap_cost = 1;
    c.weight_bytes = 3;
    planner_query q = planner_query_make(&m, &c, 131072, 16, 64);
    q.batch = 2;
    for (int way = 0; way < 48; way++) {
        int kind = way % 3, states = way / 3 % 4, offloaded = way % 24 < 12 ? 32 : 16;
        m.tied = way % 24 >= 12;
        q.moment_bytes = way < 24 ? 4 : 2;
        recompute_kind kinds[32];
        for (int l = 0; l < 32; l++) kinds[l] = (recompute_kind)kind;
        planner_choice p = {.shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST), .zp = 8, .zg = 16, .zo = 32,
                            .recompute = (recompute_kind)kind, .offload = offloaded / 32.0, .offload_states = (zero_offload)states};
        planner_attention a = time_step(&q, &p);
        int full = kind == RECOMPUTE_FULL, again = kind != RECOMPUTE_NONE;
        double N = (double)config_parameters(&m), T = 131072 / 32, operations = 4 * 2 * 32;
        double flop = flops_hardware_per_token(&m, q.S, kinds, true);
        // activations, parameters: bytes of a pass.
        double activations = 2 * (offloaded - checkpoint_slots(p.recompute)) * planner_kept_bytes(&m, &c, 8, p.recompute, T, false);
        double parameters = states == OFFLOAD_PARAMETERS ? 2 * N / 8 : 0;
        const double updates[] = {0, 24, 28, 30}, narrow[] = {0, 16, 20, 22}; // bytes of a parameter; with moments in bf16
        double update = N / 32 * (way < 24 ? updates : narrow)[states], first = share_of_ends(&m, 3); // the share that is updated at once
        double linear_flop = flop - 32 * (3.5 + full) * flops_attention_per_token(&m, q.S);
        const struct {
            const char *name;
            double seconds, expected;
        } parts[] = {
            {"attention", p.attention, operations * ((1 + full) * a.kernel_f + a.kernel_b)},
            {"linear", p.linear, 4 * (2 * T * linear_flop / (c.linear_efficiency * c.peak) + N * 3 / c.hbm_rate)},
            {"alltoall", p.alltoall, operations * (2 + again) * a.alltoall},
            {"ring", p.ring_inner + p.ring_outer,
             operations * ((1 + full) * (a.forward.inner + a.forward.outer) + a.backward.inner + a.backward.outer)},
            {"gather", p.gather, 4 * 2 * planner_collective(&c, 8, 1, 2 * N * 7 / 8)},
            {"reduce", p.reduce,
             4 * planner_collective(&c, 16, 1, 4 * N * 15 / 16) + planner_collective(&c, 2, 16, 4 * N / 16 / 2) +
                 planner_collective(&c, 2, 32, 2 * 4 * N / 32 / 2)},
            {"update", p.update, planner_collective(&c, 4, 8, 2 * N / 8 * 3 / 4)},
            {"optimizer", p.optimizer, N / 32 * (way < 24 ? 7 * 4 + 2 : 3 * 4 + 5 * 2) / (c.hbm_rate * c.optimizer_efficiency)},
            {"offload", p.offloading,
             (4 * (2 * (activations + parameters) + (states >= OFFLOAD_GRADIENTS ? 7.0 / 4 * 4 * N / 16 : 0)) + update) / c.host_link_rate -
                 (states > OFFLOAD_NONE ? first * p.optimizer : 0)},
            {"HFU", p.hfu, p.tgs * flop / c.peak},
            {"MFU", p.mfu, p.tgs * flops_model_per_token(&m, q.S) / c.peak},
        };
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            CHECK(fabs(parts[i].seconds / parts[i].expected - 1) < 1e-9,
                  "kind %d, %s: %g, by hand %g", kind, parts[i].name, parts[i].seconds, parts[i].expected);
    }
    m.tied = false;
    // Parameters in float, which need no master weights: both moments come and go, or with --moments bf16 half of them.
    for (q.moment_bytes = 4, c.element_bytes = 4; q.moment_bytes >= 2; q.moment_bytes -= 2) {
        planner_choice p = {.shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST), .zp = 8, .zg = 16, .zo = 32,
                            .offload_states = OFFLOAD_OPTIMIZER};
        time_step(&q, &p);
        double expected = (double)config_parameters(&m) / 32 * 4 * q.moment_bytes / c.host_link_rate - share_of_ends(&m, 3) * p.optimizer;
        CHECK(fabs(p.offloading / expected - 1) < 1e-9,
              "float parameters, moments of %g bytes: offload takes %g, by hand %g", q.moment_bytes, p.offloading, expected);
    }
    q.moment_bytes = 4;
    c.element_bytes = 2;
    check_ends(&m, &c);
    // Selective recompute repeats SeqAlltoAll: matrix products hide that of a micro-step's last sequence, here one of two.
    c.overlap_cost = 0;
    planner_choice p = {.shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST), .zp = 64, .zg = 64, .zo = 64,
                        .recompute = RECOMPUTE_SELECTIVE};
    planner_attention a = time_step(&q, &p);
    CHECK(fabs(p.alltoall / (4 * 2 * 32 * 2.5 * a.alltoall) - 1) < 1e-9, "two sequences, selective: %g s of SeqAlltoAll", p.alltoall);
    // So long that the backward pass's products, two thirds of all, hide only their own time of it, for one sequence of two.
    a.alltoall = 10;
    planner_step_time(&q, &a, &p);
    CHECK(fabs((4 * 2 * 32 * 3 * a.alltoall - p.alltoall) / (p.linear * 2 / 3 / 2) - 1) < 1e-9,
          "a long SeqAlltoAll: %g s, products of %g", p.alltoall, p.linear);
}

// A step on one rank whose optimizer states are on the host.
static planner_choice step_with_host_states(const planner_query *q) {
    planner_choice p = {.shape = planner_shape(q->machines, 1, 1, 1, 1, PLACEMENT_HEAD_FIRST), .zp = 1, .zg = 1, .zo = 1,
                        .recompute = RECOMPUTE_FULL, .offload_states = OFFLOAD_OPTIMIZER};
    time_step(q, &p);
    return p;
}
// The update of states on the host: the forward pass of a long sequence hides all but the embedding's and two layers', that of a short one
// nearly nothing.
static void check_hidden_update(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100"), fast = c;
    fast.host_link_rate = 1e18; // the optimizer hides copies that take less time
    for (int way = 0; way < 2; way++) {
        planner_query q = planner_query_make(&m, &c, way == 0 ? 512 << 10 : 1024, 1, 1);
        planner_choice p = step_with_host_states(&q);
        double N = (double)config_parameters(&m), table = 128256.0 * 4096, first = (table + 2 * (N - 2 * table) / 32) / N;
        double exposed = p.offloading + first * p.optimizer;
        double share = exposed / (N * 24 / c.host_link_rate);
        CHECK(way == 0 ? share > first && share < first + 0.1 : share > 0.95 && share < 1.05,
              "way %d: %.3f of the update is exposed, %.3f of it is the first units'", way, share, first);
        q.machines = &fast;
        p = step_with_host_states(&q);
        CHECK(p.offloading >= 0 && p.offloading < 1e-6, "way %d: %g s of copies that take none", way, p.offloading);
    }
    m.L = 1; // fewer layers than the first units have: nothing is left to hide
    planner_query q = planner_query_make(&m, &c, 512 << 10, 1, 1);
    planner_choice p = step_with_host_states(&q);
    double N = (double)config_parameters(&m), first = 1 - 128256.0 * 4096 / N; // all but the output matrix
    CHECK(fabs(p.offloading / (first * (N * 24 / c.host_link_rate - p.optimizer)) - 1) < 0.1,
          "one layer: %g s exposed of %g", p.offloading, N * 24 / c.host_link_rate);
}

// Offloaded layers share as many slots as those need that keep most: here the last 8 of 32 layers keep all, the others are selective.
static void check_mixed_slots(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    c.overlap_cost = 1;
    planner_query q = planner_query_make(&m, &c, 131072, 16, 64);
    for (int offloaded = 16; offloaded <= 32; offloaded += 8) {
        recompute_kind kinds[32];
        for (int l = 0; l < 32; l++) kinds[l] = l < 24 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
        planner_choice p = {.shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST), .zp = 64, .zg = 64, .zo = 64,
                            .recompute = RECOMPUTE_SELECTIVE, .less = 8, .offload = offloaded / 32.0};
        time_step(&q, &p);
        double kept = planner_kept_sum(&m, &c, &p, offloaded, 4096, false);
        double expected = 8 * 2 * kept * checkpoint_leaving(kinds, offloaded) / offloaded / c.host_link_rate;
        CHECK(fabs(p.offloading / expected - 1) < 1e-9, "%d layers of two kinds: %g s, by hand %g", offloaded, p.offloading, expected);
    }
}

// Where recompute, offload and sharding cost no time, because all of it is hidden by transfers: nothing is recomputed or offloaded to save
// memory that is not needed, but states are sharded.
static bool fits_different(void *context, planner_choice *p) {
    int what = *(int *)context; // what saves half of the memory
    bool saves = what == 0   ? p->recompute > RECOMPUTE_NONE
                 : what == 1 ? p->less > 0
                 : what == 2 ? p->offload > 0
                 : what == 3 ? p->offload_states > OFFLOAD_NONE
                             : p->zo > 1;
    p->memory = saves ? 35e9 : 70e9;
    return what != 1 || p->recompute > RECOMPUTE_NONE; // there is nothing less than none
}
static void check_alike(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    c.overlap_cost = 0;
    c.nvlink_rate = c.nic_rate = 1e6;
    c.host_link_rate = c.hbm_rate = 1e18;
    planner_query q = planner_query_make(&m, &c, 131072, 64, 64);
    q.fits = fits_different;
    for (int what = 0; what < 5; what++) {
        planner_choice p = {.shape = planner_shape(&c, 64, 1, 1, 1, PLACEMENT_HEAD_FIRST)};
        q.context = &what;
        CHECK(planner_best_of_grid(&q, &p), "nothing fits");
        CHECK(p.recompute == (what == 1 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE) && p.less == 0 && p.offload == 0 &&
              p.offload_states == OFFLOAD_NONE && (what < 4 || p.memory == 35e9),
              "case %d: recompute %d, less %d, offload %g, states %d, ZeRO %d %d %d", what, (int)p.recompute, p.less, p.offload,
              (int)p.offload_states, p.zp, p.zg, p.zo);
    }
}

// Layers of two kinds: a step with overlap_cost 1, in which nothing is hidden, takes the mean of the two, and keeps as much.
static void check_mix(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    c.overlap_cost = 1;
    planner_query q = planner_query_make(&m, &c, 131072, 16, 64);
    for (int kind = RECOMPUTE_SELECTIVE; kind <= RECOMPUTE_FULL; kind++) {
        planner_choice p[3]; // all layers of that kind, 8 of 32 a kind less, all a kind less
        for (int i = 0; i < 3; i++) {
            memset(&p[i], 0, sizeof p[i]);
            p[i].shape = planner_shape(&c, 2, 8, 4, 1, PLACEMENT_HEAD_FIRST);
            p[i].zp = p[i].zg = p[i].zo = 64;
            p[i].recompute = (recompute_kind)(i == 2 ? kind - 1 : kind);
            p[i].less = i == 1 ? 8 : 0;
            time_step(&q, &p[i]);
        }
        double kept[3], seconds[3], flop[3];
        for (int i = 0; i < 3; i++) {
            kept[i] = planner_kept_sum(&m, &c, &p[i], m.L, 4096, false) / m.L;
            seconds[i] = p[i].seconds;
            flop[i] = p[i].hfu / p[i].tgs;
        }
        CHECK(fabs(seconds[1] / (0.75 * seconds[0] + 0.25 * seconds[2]) - 1) < 1e-12 && seconds[0] > 1.01 * seconds[2],
              "kind %d: %g s, with 8 layers less %g, all less %g", kind, seconds[0], seconds[1], seconds[2]);
        CHECK(fabs(kept[1] / (0.75 * kept[0] + 0.25 * kept[2]) - 1) < 1e-12,
              "kind %d: %g bytes are kept, with 8 layers less %g, all less %g", kind, kept[0], kept[1], kept[2]);
        double first = planner_kept_sum(&m, &c, &p[1], 20, 4096, false), more = planner_kept_sum(&m, &c, &p[1], 30, 4096, false);
        CHECK(fabs(first / (20 * kept[0]) - 1) < 1e-12 && fabs(more / (24 * kept[0] + 6 * kept[2]) - 1) < 1e-12,
              "kind %d: the first 20 layers keep %g bytes, the first 30 %g", kind, first, more); // the last 8 are of a kind less
        CHECK(fabs(flop[1] / (0.75 * flop[0] + 0.25 * flop[2]) - 1) < 1e-12, "kind %d: FLOP", kind);
    }
}

// Where nothing but hidden transfers count, a step takes their time: more compute hides more of them, and the sum of all parts stays.
static void check_hidden_by_compute(void) {
    model_config m = preset("llama3-8b");
    for (int kind = RECOMPUTE_NONE; kind <= RECOMPUTE_FULL; kind++) {
        double seconds[2];
        for (int i = 0; i < 2; i++) {
            cluster c = load("h100");
            c.overlap_cost = 0;
            c.nvlink_rate = c.nic_rate = 1e6;
            c.attention_launch = 0.01 * i;
            planner_query q = planner_query_make(&m, &c, 131072, 64, 64);
            planner_choice p = {.shape = planner_shape(&c, 64, 1, 1, 1, PLACEMENT_HEAD_FIRST), .zp = 64, .zg = 64, .zo = 64,
                                .recompute = (recompute_kind)kind};
            time_step(&q, &p);
            seconds[i] = p.seconds;
        }
        CHECK(fabs(seconds[1] / seconds[0] - 1) < 1e-12, "kind %d: %.9g s with launches, %.9g s without", kind, seconds[1], seconds[0]);
    }
}

// 1M rows a rank with 32 heads are 8 slices of a group: each is launched in every ring step, and the gradient of wo hides the last hop home
// of the last alone.
static void check_runs(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    c.overlap_cost = c.merge_bytes = c.attention_launch = 0;
    c.step_launch = 3;
    c.p2p_rate = 1e9;            // hops are exposed
    c.linear_efficiency = 1e-3;  // products are not
    planner_query q = planner_query_make(&m, &c, 8 << 20, 1, 8);
    planner_choice p = {.shape = planner_shape(&c, 1, 1, 8, 8, PLACEMENT_HEAD_FIRST), .zp = 8, .zg = 8, .zo = 8};
    planner_attention a = time_step(&q, &p);
    double launches = a.forward.compute + a.backward.compute - a.kernel_f - a.kernel_b;
    CHECK(a.slices == 8 && fabs(launches / (8 * 8 * 3) - 1) < 1e-9, "%d slices, %g s of launches", a.slices, launches);
    double exposed = m.L * (a.forward.inner + a.backward.inner), hidden = exposed - p.ring_inner, home = a.backward.home;
    CHECK(home > 0 && fabs(8 * hidden / (m.L * home) - 1) < 1e-9, "%g s of hops home, of which %g are hidden", m.L * home, hidden);
}

// What is faster makes no step slower: time in which a step waits for one link hides what others carry.
static void check_faster(void) {
    static const char *const rates[] = {"peak", "hbm_rate", "linear_efficiency", "attention_backward_efficiency", "nic_rate",
                                        "nvlink_rate", "host_link_rate"};
    static const char *const clusters[] = {"a100-4nic", "b200", "cpu"}, *const models[] = {"llama3-8b", "llama3-70b"};
    static const int grids[][4] = {{8, 8, 2, 1}, {1, 8, 8, 2}, {2, 1, 32, 4}, {4, 1, 4, 2}, {1, 16, 2, 1}, {1, 1, 1, 1}}; // dp, hp, cp, w
    for (int way = 0; way < 1728; way++) {
        const int *g = grids[way % 6], ranks = g[0] * g[1] * g[2], sharded = way / 144 % 3;
        cluster c = load(clusters[way / 6 % 3]);
        model_config m = preset(models[way / 18 % 2]);
        planner_query q = planner_query_make(&m, &c, way / 36 % 2 == 0 ? 32768 : 262144, 2 * g[0], ranks);
        planner_choice p = {.shape = planner_shape(&c, g[0], g[1], g[2], g[3], PLACEMENT_HEAD_FIRST), .zp = sharded > 1 ? ranks : 1,
                            .zg = sharded > 0 ? ranks : 1, .zo = ranks, .recompute = (recompute_kind)(way / 72 % 2),
                            .offload = way / 432 % 2, .offload_states = way / 864 % 2 == 1 ? (zero_offload)(1 + sharded) : OFFLOAD_NONE};
        time_step(&q, &p);
        for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
            cluster fast = c;
            planner_choice faster = p;
            *cluster_value(&fast, &cluster_figures[cluster_find(rates[i])]) *= 1.5;
            q.machines = &fast;
            time_step(&q, &faster);
            CHECK(faster.seconds <= 1.001 * p.seconds,
                  "%s, dp %d hp %d cp %d, offload %g and %d: a step of %g s with a larger %s takes %g s", c.name, g[0], g[1], g[2],
                  p.offload, (int)p.offload_states, p.seconds, rates[i], faster.seconds);
        }
    }
}

// Activations on the host, those of a part of the layers, each kind of states there, and layers of two kinds cost a tie each.
static void check_cost(void) {
    const struct {
        zero_offload states;
        int less, ties;
        double offload;
    } cases[] = {{OFFLOAD_NONE, 0, 0, 0}, {OFFLOAD_NONE, 0, 1, 1}, {OFFLOAD_NONE, 0, 2, 0.25}, {OFFLOAD_NONE, 8, 1, 0},
                 {OFFLOAD_GRADIENTS, 0, 2, 0}, {OFFLOAD_PARAMETERS, 8, 6, 0.75}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        planner_choice p = {.seconds = 3, .offload_states = cases[i].states, .less = cases[i].less, .offload = cases[i].offload};
        CHECK(fabs(planner_cost(&p) / (3 * pow(1 + PLANNER_TIE, cases[i].ties)) - 1) < 1e-12, "case %d costs %g", (int)i, planner_cost(&p));
    }
    planner_choice p;
    memset(&p, 0, sizeof p);
    char text[256];
    p.seconds = 1;
    p.attention = 0.9;
    p.gather = 0.096;
    p.update = 0.004;
    planner_reason(&p, text, sizeof text);
    CHECK(strcmp(text, "attention kernels 90 %, gathering exposed 10 %") == 0, "'%s'", text);
}

// Whatever the only choice that fits, it is found: on one rank all of them, on 16 those of one kind of recompute.
typedef struct {
    planner_choice only;
    int seen, wrong; // tries: of this choice, of what is no choice
} only_choice;
static bool fits_only(void *context, planner_choice *p) {
    only_choice *o = (only_choice *)context;
    const planner_choice *c = &o->only;
    bool it = p->zp == c->zp && p->zg == c->zg && p->zo == c->zo && p->recompute == c->recompute && p->less == c->less &&
              p->offload == c->offload && p->offload_states == c->offload_states;
    o->seen += it;
    o->wrong += p->recompute > RECOMPUTE_FULL || p->zp < 1 || p->zg % p->zp != 0 || p->zo % p->zg != 0;
    p->memory = 1;
    return it;
}
static void check_every_choice(void) {
    model_config m = preset("llama3-8b");
    cluster c = load("h100");
    static const int degrees[] = {1, 8, 16};
    for (int ranks = 1; ranks <= 16; ranks += 15)
        for (int way = 0; way < 27 * 10 * 20; way++) {
            int z = way / 200, kind = way / 20 % 10, quarters = kind > 1 ? (kind - 2) % 4 : 0;
            only_choice o;
            memset(&o, 0, sizeof o);
            planner_choice *only = &o.only;
            only->zp = degrees[z / 9];
            only->zg = degrees[z / 3 % 3];
            only->zo = degrees[z % 3];
            only->recompute = kind == 0 ? RECOMPUTE_NONE : kind < 6 ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL;
            only->less = 8 * quarters;
            only->offload = way % 5 / 4.0;
            only->offload_states = (zero_offload)(way / 5 % 4);
            if (kind == 1 || (ranks == 1 ? z > 0 : kind != 3 || way % 5 != 2) || only->zp > only->zg || only->zg > only->zo) continue;
            bool legal = (only->offload_states < OFFLOAD_GRADIENTS || only->zg == ranks) &&
                         (only->offload_states < OFFLOAD_PARAMETERS || only->zp == ranks);
            planner_query q = planner_query_make(&m, &c, 131072, 16, ranks);
            planner_choice p = {.shape = planner_shape(&c, ranks, 1, 1, 1, PLACEMENT_HEAD_FIRST)};
            q.fits = fits_only;
            q.context = &o;
            bool found = planner_best_of_grid(&q, &p);
            CHECK(found == legal && (o.seen > 0) == legal && o.wrong == 0,
                  "ZeRO %d %d %d, recompute %d with %d less, offload %g, states %d: %s", only->zp, only->zg, only->zo, (int)only->recompute,
                  only->less, only->offload, (int)only->offload_states, found ? "found" : "not found");
        }
}

static void check_search(void) {
    enum { MOST = 8 };
    planner_choice best[MOST], more[MOST];
    error_text error = {"", 0};
    cluster h100 = load("h100");
    const char *const models[] = {"llama3-8b", "llama3-70b"};
    for (int i = 0; i < 2; i++) {
        model_config m = preset(models[i]);
        for (int ranks = 8; ranks <= 512; ranks *= 8) {
            planner_query q = planner_query_make(&m, &h100, 1048576, 8, ranks);
            memory_rule rule = {&m, 75e9, q.S};
            q.fits = fits_rule;
            q.context = &rule;
            clock_t began = clock();
            error.text[0] = '\0';
            int n = planner_plan(&q, best, MOST, &error);
            double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
            print_plan(&q, best, n, seconds);
            CHECK(n > 0, "no plan: %s", error.text);
            // 70B on 8 GPUs: 2 bytes a parameter and one whole layer fit, 6 do not.
            zero_offload states = i == 1 && ranks == 8 ? OFFLOAD_GRADIENTS : OFFLOAD_NONE;
            for (int k = 0; k < n; k++)
                CHECK(best[k].offload_states == states, "%s on %d ranks, choice %d: what is offloaded?", models[i], ranks, k);
            CHECK(seconds < 5, "planning %d ranks took %g s", ranks, seconds);
            check_choices(&q, best, n);
            for (int k = 0; k < n; k++) check_degrees(&q, &best[k]);
            if (ranks == 64) check_hidden(&q);
            for (int k = 0; k < n; k++) CHECK(best[k].memory > 0 && best[k].memory <= rule.limit, "%g bytes do not fit", best[k].memory);
            int m1 = planner_plan(&q, more, 1, &error); // fewer choices asked for: the same best
            CHECK(m1 == 1 && memcmp(&more[0].shape, &best[0].shape, sizeof best[0].shape) == 0,
                  "the best depends on how many are asked for");
            q.S = q.attended = rule.S = 8192; // so short that gathers are exposed
            n = planner_plan(&q, best, MOST, &error);
            for (int k = 0; k < n; k++) check_degrees(&q, &best[k]);
        }
    }

    // Optimizer states go to the host where nothing else fits (70B on 8 GPUs: 18 bytes a parameter do not), or where that is asked for.
    for (int i = 0; i < 2; i++) {
        model_config m = preset(models[i]);
        planner_query q = planner_query_make(&m, &h100, 131072, 8, 8);
        memory_rule rule = {&m, 75e9, q.S};
        q.fits = fits_rule;
        q.context = &rule;
        q.offload_states = i == 0 ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
        int n = planner_plan(&q, best, MOST, &error);
        CHECK(n > 0, "%s on 8 GPUs: %s", models[i], error.text);
        for (int k = 0; k < n; k++)
            CHECK(best[k].offload_states >= OFFLOAD_OPTIMIZER && best[k].memory <= rule.limit,
                  "%s on 8 GPUs, choice %d: the optimizer stays", models[i], k);
        for (int k = 0; k < n; k++)
            CHECK(i == 1 || best[k].offload_states == OFFLOAD_OPTIMIZER,
                  "%s on 8 GPUs, choice %d: gradients are offloaded, although they fit", models[i], k);
    }
    // Gradients and parameters, too (8B on one GPU: 6 bytes a parameter do not fit in 45 GB, 2 do not in 15), or where asked for (16 GPUs).
    for (int i = 0; i < 4; i++) {
        model_config m = preset("llama3-8b");
        zero_offload states = i % 2 == 0 ? OFFLOAD_GRADIENTS : OFFLOAD_PARAMETERS;
        planner_query q = planner_query_make(&m, &h100, 8192, 16, i < 2 ? 1 : 16);
        memory_rule rule = {&m, i == 1 ? 15e9 : 45e9, q.S};
        q.fits = fits_rule;
        q.context = &rule;
        q.offload_states = i < 2 ? OFFLOAD_NONE : states;
        int n = planner_plan(&q, best, MOST, &error);
        CHECK(n > 0, "states on the host, %d GPUs: %s", q.ranks, error.text);
        for (int k = 0; k < n; k++)
            CHECK(best[k].offload_states == states && best[k].zg == q.ranks &&
                  best[k].zo == q.ranks && (best[k].zp == q.ranks || states < OFFLOAD_PARAMETERS) && best[k].memory <= rule.limit,
                  "states on the host, %d GPUs, choice %d: ZeRO %d/%d/%d, offload %d", q.ranks, k, best[k].zp, best[k].zg, best[k].zo,
                  (int)best[k].offload_states);
    }

    // 12 ranks on nodes of 8, two sequences a micro-step: a ZeRO degree of a node's 8 ranks is illegal, and so is dp 4, the number of
    // sequences.
    model_config small = preset("llama3-8b");
    planner_query uneven = planner_query_make(&small, &h100, 32768, 4, 12);
    memory_rule uneven_rule = {&small, 75e9, 32768};
    uneven.batch = 2;
    uneven.fits = fits_rule;
    uneven.context = &uneven_rule;
    int found = planner_plan(&uneven, best, MOST, &error);
    CHECK(found > 0, "12 ranks: %s", error.text);
    check_choices(&uneven, best, found);

    // Against an enumeration of the grids: none of them, with any kind of recompute, is faster.
    model_config m = paper_model(true);
    cluster c = load("a100-4nic");
    planner_query q = planner_query_make(&m, &c, 262144, 2, 64);
    int n = planner_plan(&q, best, MOST, &error);
    check_choices(&q, best, n);
    for (int hp = 1; hp <= 32; hp *= 2)
        for (int dp = 1; dp <= 2; dp++)
            for (int w = 1; w <= 64 / hp / dp; w *= 2)
                for (int placement = 0; placement < 2; placement++)
                    for (int kind = 0; kind < 3; kind++) {
                        planner_choice p = {.shape = planner_shape(&c, dp, hp, 64 / hp / dp, w, (placement_kind)placement), .zp = 64,
                                            .zg = 64, .zo = 64, .recompute = (recompute_kind)kind};
                        time_step(&q, &p);
                        CHECK(p.seconds >= best[0].seconds,
                              "dp %d hp %d w %d is faster than the plan: %g < %g", dp, hp, w, p.seconds, best[0].seconds);
                    }

    // Packed documents: attention's kernels take the share of the time that is visible, SeqAlltoAll and matrices what they took, and MFU
    // counts what is visible.
    planner_choice whole = best[0], seen = best[0];
    q.attended = q.S / 8;
    planner_attention a = time_step(&q, &seen);
    CHECK(fabs(8 * seen.attention / whole.attention - 1) < 1e-12 && seen.linear == whole.linear && seen.alltoall == whole.alltoall,
          "attention %g of %g", seen.attention, whole.attention);
    CHECK(fabs(seen.mfu * c.peak / (seen.tgs * flops_model_per_token(&m, q.S / 8)) - 1) < 1e-12, "MFU %g", seen.mfu);
    CHECK(fabs(seen.hfu * c.peak / seen.tgs - whole.hfu * c.peak / whole.tgs +
               m.L * (seen.recompute == RECOMPUTE_FULL ? 4.5 : 3.5) * flops_attention_per_token(&m, q.S / 8 * 7)) <
              1e-6 * whole.hfu * c.peak / whole.tgs,
          "HFU %g", seen.hfu);
    model_config wide = paper_model(false); // its hops take longer than a ring step of short documents
    q.model = &wide;
    grid_shape ring = planner_shape(&c, 1, 1, 64, 4, PLACEMENT_CONTEXT_FIRST);
    double exposed[2][3], around[2][3]; // ring, all-gather; documents of S / 64 tokens, of S / 4096, one document
    for (int i = 0; i < 6; i++) {
        q.attended = i % 3 == 0 ? q.S / 64 : i % 3 == 1 ? q.S / 4096 : q.S;
        a = planner_attention_time(&q, &ring, i / 3 == 1);
        exposed[i / 3][i % 3] = a.forward.inner + a.forward.outer + a.backward.inner + a.backward.outer;
        around[i / 3][i % 3] = a.forward.compute + a.backward.compute - a.kernel_f - a.kernel_b;
    }
    CHECK(exposed[0][1] < 0.2 * exposed[0][0] && exposed[0][0] > 1.5 * exposed[0][2],
          "a ring carries what is seen: %g %g %g", exposed[0][0], exposed[0][1], exposed[0][2]);
    CHECK(exposed[1][1] > 0.99 * exposed[1][0], "an all-gather carries all: %g %g", exposed[1][0], exposed[1][1]);
    CHECK(fabs(64 * around[0][1] / around[0][0] - 1) < 1e-6 && fabs(around[0][2] / around[0][0] - 1) < 1e-6,
          "merging and launches, of steps that are not skipped: %g %g %g", around[0][0], around[0][1], around[0][2]);
    for (int i = 0; i < 3; i++)
        CHECK(fabs(around[1][i] / around[0][i] - 1) < 1e-6, "an all-gather computes what a ring does: %g %g", around[1][i], around[0][i]);
    q.attended = q.S;
    q.model = &m;

    // Restricted to what table 6 measured (its schedule, w = 1, full recompute), the search finds its best cell of every GQA column.
    for (int64_t S = 131072; S <= 1048576; S *= 2) {
        planner_query paper = planner_query_make(&m, &c, S, 1, 64);
        paper.schedule = SCHEDULE_LOONGTRAIN;
        paper.dkv_bytes = 2;
        paper.fits = fits_table_6;
        n = planner_plan(&paper, best, MOST, &error);
        CHECK(n == MOST && best[0].shape.hp == 8 && best[0].shape.cp == 8 && best[0].shape.placement == PLACEMENT_HEAD_FIRST,
              "GQA %lldK: the plan is hp %d cp %d, table 6's best is hp 8 cp 8 head-first", (long long)S / 1024,
              best[0].shape.hp, best[0].shape.cp);
    }

    // What is impossible is refused with a message.
    int64_t asked = 0;
    q.fits = fits_nothing;
    q.context = &asked;
    error.text[0] = '\0';
    CHECK(planner_plan(&q, best, MOST, &error) == 0 && strstr(error.text, "fits") != NULL && asked > 0, "'%s'", error.text);
    q.fits = NULL;
    q.ranks = 67; // a prime: only dp = 67 or cp = 67
    q.S = 100;
    error.text[0] = '\0';
    CHECK(planner_plan(&q, best, MOST, &error) == -1 && strstr(error.text, "no legal grid") != NULL, "'%s'", error.text);
    q.S = 262144;
    error.text[0] = '\0';
    n = planner_plan(&q, best, MOST, &error);
    CHECK(n > 0 && best[0].shape.cp == 67, "67 ranks: %d choices, %s", n, error.text);
    check_choices(&q, best, n);
    q.ranks = 1;
    n = planner_plan(&q, best, MOST, &error);
    CHECK(n == 1 && best[0].alltoall == 0 && best[0].ring_inner == 0 && best[0].ring_outer == 0 && best[0].gather == 0 &&
          best[0].reduce == 0 && best[0].update == 0, "one rank communicates");
}

// Steps of 4 layers of Llama-3-8B's shape that one H100 and one H200 took, and of llama3.2-1b on the H200 (benchmarks/gpu_h100.md and
// gpu_h200.md, part 8): their clusters describe them within 2 %, the narrow model's within 3 %.
static void check_measured_steps(void) {
    static const struct {
        const char *cluster;
        bool one_b;
        int64_t S, sequences, batch;
        int less; // layers that keep all
        double seconds;
    } steps[] = {{"h100", false, 8192, 16, 1, 4, 2.0351}, {"h100", false, 32768, 4, 1, 4, 2.6914}, {"h100", false, 32768, 1, 1, 4, 0.6908},
                 {"h100", false, 131072, 1, 1, 3, 5.5037}, {"h100", false, 131072, 1, 1, 0, 5.7039},
                 {"h200", false, 8192, 16, 4, 4, 1.9856}, {"h200", false, 32768, 4, 1, 4, 2.6461}, {"h200", false, 131072, 1, 1, 4, 5.3501},
                 {"h200", false, 131072, 1, 1, 0, 5.5755},
                 {"h200", true, 8192, 16, 4, 16, 2.2392}, {"h200", true, 32768, 4, 1, 16, 3.9196},
                 {"h200", true, 131072, 1, 1, 16, 10.6698}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        cluster c = load(steps[i].cluster);
        model_config m = preset(steps[i].one_b ? "llama3.2-1b" : "llama3-8b");
        if (!steps[i].one_b) m.L = 4;
        planner_query q = planner_query_make(&m, &c, steps[i].S, steps[i].sequences, 1);
        q.batch = steps[i].batch;
        planner_choice p = {.shape = planner_shape(&c, 1, 1, 1, 1, PLACEMENT_HEAD_FIRST), .zp = 1, .zg = 1, .zo = 1,
                            .recompute = RECOMPUTE_SELECTIVE, .less = steps[i].less};
        time_step(&q, &p);
        double bound = steps[i].one_b ? 0.03 : 0.02;
        CHECK(fabs(p.seconds / steps[i].seconds - 1) < bound, "%s, %lld tokens x %lld on one %s: %g s, measured %g",
              steps[i].one_b ? "llama3.2-1b" : "4 layers", (long long)q.S, (long long)q.global_batch, steps[i].cluster, p.seconds,
              steps[i].seconds);
    }
}
// Heads of 64 beside heads of 128: the attention of one sequence of llama3.2-1b's and of 4 layers of Llama-3-8B's (part 5), ms. Of the
// kernels, the cluster's efficiencies; its softmax_width is from the row of 128K.
static void check_measured_heads(void) {
    static const struct {
        const char *cluster;
        int64_t S;
        double one_b, eight_b;
    } attention[] = {{"h100", 131072, 8761.911, 3642.803}, {"h100", 32768, 545.796, 223.633}, {"h100", 8192, 39.913, 16.352},
                     {"h200", 131072, 9096.375, 3611.912}, {"h200", 32768, 570.196, 222.080}, {"h200", 8192, 38.744, 15.455}};
    model_config eight_b = preset("llama3-8b"), one_b = preset("llama3.2-1b");
    for (size_t i = 0; i < sizeof attention / sizeof attention[0]; i++) {
        cluster c = load(attention[i].cluster);
        planner_query q = planner_query_make(&one_b, &c, attention[i].S, 1, 1);
        grid_shape one = planner_shape(&c, 1, 1, 1, 1, PLACEMENT_HEAD_FIRST);
        planner_attention narrow = planner_attention_time(&q, &one, false);
        q.model = &eight_b;
        planner_attention wide = planner_attention_time(&q, &one, false);
        double ratio = 16 * (narrow.kernel_f + narrow.kernel_b) / (4 * (wide.kernel_f + wide.kernel_b));
        CHECK(fabs(ratio * attention[i].eight_b / attention[i].one_b - 1) < 0.02, "%s, %lld tokens: heads of 64 take %g times as long, "
              "measured %g", attention[i].cluster, (long long)attention[i].S, ratio, attention[i].one_b / attention[i].eight_b);
    }
}

int main(void) {
    error_text error = {"", 0};
    check_embedded_texts();
    check_bad_clusters();
    check_network();
    check_share();
    check_kept();
    bool read = paper_read(&tables, "test/paper_tables", &error);
    CHECK(read, "%s", error.text);
    if (read) {
        check_mfu();
        check_tables("a100-4nic", true);
        check_tables("a100-4nic-datasheet", false);
        check_distflashattn();
        check_fit();
    }
    check_our_schedule();
    model_config llama3_8b = preset("llama3-8b");
    check_published_memory(&llama3_8b);
    check_bytes_of_a_row(&llama3_8b);
    check_long_documents();
    check_step();
    check_measured_steps();
    check_measured_heads();
    check_hidden_by_compute();
    check_faster();
    check_runs();
    check_hidden_update();
    check_mix();
    check_mixed_slots();
    check_alike();
    check_cost();
    check_every_choice();
    check_search();
    return test_finish("test_planner", NULL);
}
