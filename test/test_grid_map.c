// ranks: 1
// The rank map is a bijection for every grid, both placements and every way to lay out windows. Where several GPUs share a NIC, outer hops
// that leave a node each leave through a NIC of their own, as long as there are enough NICs. (F46)
#include "../grid.h"
#include "test.h"

static void check_shape(grid_shape s) {
    int ranks = s.dp * s.hp * s.cp, weave = grid_weave(&s);
    bool *seen = HOST_NEW(bool, ranks), *context = HOST_NEW(bool, s.cp);
    for (int d = 0; d < s.dp; d++)
        for (int h = 0; h < s.hp; h++)
            for (int c = 0; c < s.cp; c++) {
                int r = grid_rank(&s, d, h, c);
                CHECK(r >= 0 && r < ranks && !seen[r], "rank %d of (%d, %d, %d) is taken or outside", r, d, h, c);
                if (r >= 0 && r < ranks) seen[r] = true;
                grid_place p = grid_place_of(&s, r);
                CHECK(p.d == d && p.h == h && p.c == c, "rank %d: (%d, %d, %d) became (%d, %d, %d)", r, d, h, c, p.d, p.h, p.c);
                CHECK(grid_context_index(&s, p.window, p.pos) == c && p.window < s.cp / s.w && p.pos < s.w,
                      "context %d: window %d, place %d", c, p.window, p.pos);
                int first = grid_rank(&s, d, h, grid_context_index(&s, p.window, 0));
                CHECK(weave == 1 || r / s.gpus_per_node == first / s.gpus_per_node, "woven window %d leaves its node", p.window);
                CHECK(d == r / (s.hp * s.cp), "data parallel groups are runs of ranks");
                if (s.placement == PLACEMENT_HEAD_FIRST) CHECK(r % s.hp == h, "head-first: h varies fastest");
                else CHECK(r % s.cp == c, "context-first: c varies fastest");
            }
    free(seen);
    free(context);
}

// The largest number of flows that one outer hop sends through one NIC, over all nodes; 0 when no hop leaves a node.
static int flows_on_a_nic(grid_shape s) {
    int ranks = s.hp * s.cp, windows = s.cp / s.w, worst = 0;
    int *flows = HOST_NEW(int, ranks);
    for (int r = 0; r < ranks; r++) {
        grid_place p = grid_place_of(&s, r);
        int next = grid_rank(&s, 0, p.h, grid_context_index(&s, (p.window + 1) % windows, p.pos));
        if (windows == 1 || next / s.gpus_per_node == r / s.gpus_per_node) continue;
        int nic = r % s.gpus_per_node / (s.gpus_per_node / s.nics_per_node) + r / s.gpus_per_node * s.nics_per_node;
        if (++flows[nic] > worst) worst = flows[nic];
    }
    free(flows);
    return worst;
}

int main(void) {
    for (int dp = 1; dp <= 3; dp++)
        for (int hp = 1; hp <= 8; hp++)
            for (int cp = 1; cp <= 16; cp++)
                for (int w = 1; w <= cp; w++)
                    for (int placement = 0; cp % w == 0 && placement < 2; placement++)
                        for (int nics = 0; nics <= 8; nics = nics == 0 ? 1 : 2 * nics) {
                            grid_shape s = {.dp = dp, .hp = hp, .cp = cp, .w = w,
                                            .placement = placement == 0 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST,
                                            .gpus_per_node = nics > 0 ? 8 : 0, .nics_per_node = nics};
                            check_shape(s);
                        }
    // LoongTrain's cluster: 64 GPUs in nodes of 8 with 4 NICs, context-first: windows of 2 and 4 use 2 and 4 NICs, whatever hp is.
    for (int n = 0; n < 4; n++) {
        int hp = 1 + n / 2, w = 2 + 2 * (n % 2);
        grid_shape s = {.dp = 1, .hp = hp, .cp = 64 / hp, .w = w, .placement = PLACEMENT_CONTEXT_FIRST, .gpus_per_node = 8,
                        .nics_per_node = 4};
        CHECK(flows_on_a_nic(s) == 1, "hp %d w %d: %d flows on a NIC", hp, w, flows_on_a_nic(s));
        s.nics_per_node = 6; // some GPUs share a NIC
        CHECK(grid_weave(&s) == 2, "6 NICs, w %d: %d windows are woven", w, grid_weave(&s));
        s.gpus_per_node = s.nics_per_node = 8; // a NIC for each GPU: windows of neighbours
        CHECK(grid_weave(&s) == 1 && flows_on_a_nic(s) == 1, "w %d: %d flows on a NIC", w, flows_on_a_nic(s));
    }
    return test_finish("test_grid_map", NULL);
}
