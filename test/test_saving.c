// ranks: 4
// Saving in the background: what is written is the model as it was when the save began, whatever training does meanwhile, with several ways
// to shard and with offload; also with moments in bf16, and when resumed with the other --moments. No state counts as complete before it is
// finished. Without host memory for a copy it is written at once. (F50, F51)
#include "../training_state.h"
#include "model_fixture.h"

// Adds `by` to every element of this rank's pieces: stands in for a training step.
static void change_states(model *m, float by) {
    for (int u = 0; u < m->zero.unit_count; u++) {
        int64_t n = m->zero.units[u].count;
        for (int64_t i = 0; i < n / m->zero.zp; i++) m->zero.params[u][i] += by;
        for (int k = VALUES_M; k <= VALUES_V; k++) {
            void *moments = values_piece(&m->zero, (values_kind)k, u);
            for (int64_t i = 0; i < n / m->zero.zo; i++) {
                if (m->setup.bf16_moments) ((bf16 *)moments)[i].bits = bf16_of_float(float_of_bf16(((bf16 *)moments)[i].bits) + by);
                else ((float *)moments)[i] += by;
            }
        }
    }
}
static int64_t count_differences(const model *m, const model *other) { // in the tensors alone: padding is not saved
    int64_t wrong = 0;
    for (int u = 0; u < m->zero.unit_count; u++)
        for (int k = 0; k < VALUES_KINDS; k++)
            for (int t = 0; t < m->units[u].tensor_count; t++) {
                const zero_hybrid *z = &m->zero;
                int64_t n = z->units[u].count, held = k == VALUES_PARAMETERS ? n / z->zp : n / z->zo, from, to;
                int64_t begin = held * (k == VALUES_PARAMETERS ? z->param_piece : z->optim_piece);
                const char *a = (const char *)(k == VALUES_PARAMETERS ? z->params[u] : values_piece(z, (values_kind)k, u));
                const char *b = (const char *)(k == VALUES_PARAMETERS ? other->zero.params[u]
                                                                      : values_piece(&other->zero, (values_kind)k, u));
                size_t bytes = values_bytes(z, (values_kind)k);
                if (!zero_span(&z->units[u].tensors[t], begin, begin + held, &from, &to)) continue;
                for (int64_t i = from - begin; i < to - begin; i++)
                    wrong += memcmp(a + bytes * (size_t)i, b + bytes * (size_t)i, bytes) != 0;
            }
    return wrong;
}

static void check_saving(const char *folder, int zp, int zg, int zo, bool offload, bool saves, bool bf16_moments, comm *world) {
    char where[100];
    snprintf(where, sizeof where, "ZeRO %d %d %d%s%s%s", zp, zg, zo, offload ? ", offload" : "", saves ? ", in the background" : "",
             bf16_moments ? ", bf16 moments" : "");
    model_config c = fixture_config(2, 128, 4, 2, 32, 256, 6000, false); // large enough that writing takes longer than changing
    grid_shape shape = {.dp = 1, .hp = 2, .cp = 2, .w = 1};
    model_setup setup = fixture_setup(1, 1);
    setup.zp = zp; setup.zg = zg; setup.zo = zo;
    setup.offload_states = offload ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
    setup.saves = saves;
    setup.bf16_moments = bf16_moments;
    fixture f, kept;
    fixture_make(&f, &c, shape, world, setup, RECOMPUTE_NONE, 64);
    fixture_make(&kept, &c, shape, world, setup, RECOMPUTE_NONE, 64);
    for (fixture *one = &f; one != NULL; one = one == &f ? &kept : NULL) { // moments that differ from element to element
        model_step(&one->m, fixture_adamw(1), 0);
        zero_spread_finish(&one->m.zero, one->m.zero.unit_count);
        change_states(&one->m, 0.5f);
    }
    error_text error;
    error.text[0] = '\0';
    state_store store;
    options o;
    options_default(&o);
    o.out = folder;
    o.resume = true;
    CHECK(state_store_open(&store, world, &o, NULL, &error), "%s: %s", where, error.text);
    training_progress progress;
    memset(&progress, 0, sizeof progress);
    progress.step = 7;
    progress.samples = 70;
    state_save_start(&store, &f.m, &progress);
    change_states(&f.m, 1); // training goes on
    int64_t steps[STATES_MAX];
    CHECK(store.threaded == saves && state_list(folder, steps, &error) == 0, "%s: complete before it is finished", where);
    for (int i = 0; i < 3000 && store.stage != SAVE_NONE; i++) {
        CHECK(state_save_advance(&store, false, &error), "%s: %s", where, error.text);
        if (store.stage != SAVE_NONE) usleep(10000);
    }
    CHECK(store.stage == SAVE_NONE, "%s: not saved in 30 s", where);
    change_states(&f.m, 1);

    training_progress found = progress;
    bool resumed = false;
    found.step = found.samples = 0;
    stop_signal = SIGTERM; // a signal ends the reading of a state, which is not damaged
    CHECK(!state_resume(&store, &f.m, &found, &resumed, &error) && !resumed && error.number == ERROR_STOPPED,
          "%s: not stopped: %s", where, error.text);
    stop_signal = 0;
    error.text[0] = '\0';
    CHECK(state_resume(&store, &f.m, &found, &resumed, &error) && resumed && found.step == 7 && found.samples == 70,
          "%s: %s", where, error.text);
    zero_spread_finish(&f.m.zero, f.m.zero.unit_count); // a rank reads its optimizer pieces alone
    int64_t wrong = count_differences(&f.m, &kept.m);
    CHECK(wrong == 0, "%s: %lld values are not those of when the save began", where, (long long)wrong);
    state_store_close(&store);
    comm_barrier(world);
    if (comm_rank(world) == 0) folder_remove(folder);
    comm_barrier(world);
    fixture_free(&f);
    fixture_free(&kept);
}

// A state is resumed with the other --moments: floats are rounded to the nearest bf16, and bf16 become the floats that they are.
static void check_other_moments(const char *folder, bool offload, comm *world) {
    model_config c = fixture_config(2, 24, 4, 2, 6, 40, 50, false);
    for (int from_bf16 = 0; from_bf16 < 2; from_bf16++) {
        model_setup setup = fixture_setup(1, 1);
        setup.zo = 4;
        setup.offload_states = offload ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
        fixture f, other;
        setup.bf16_moments = from_bf16 == 1;
        fixture_make(&f, &c, fixture_shape(1, 2, 2, 1), world, setup, RECOMPUTE_NONE, 64);
        setup.bf16_moments = from_bf16 == 0;
        fixture_make(&other, &c, fixture_shape(1, 2, 2, 1), world, setup, RECOMPUTE_NONE, 64);
        model_step(&f.m, fixture_adamw(1), 0);
        error_text error = {"", 0};
        state_store store;
        options o;
        options_default(&o);
        o.out = folder;
        training_progress progress;
        memset(&progress, 0, sizeof progress);
        progress.step = 1;
        bool resumed = false;
        CHECK(state_store_open(&store, world, &o, NULL, &error), "%s", error.text);
        state_save_start(&store, &f.m, &progress);
        CHECK(state_save_advance(&store, true, &error) && state_resume(&store, &other.m, &progress, &resumed, &error) && resumed,
              "%s", error.text);
        int64_t wrong = 0, rounded = 0;
        for (int u = 0; u < f.m.zero.unit_count; u++)
            for (int k = VALUES_M; k <= VALUES_V; k++)
                for (int t = 0; t < f.m.units[u].tensor_count; t++) {
                    zero_hybrid *z = &f.m.zero;
                    int64_t piece = z->units[u].count / z->zo, begin = z->optim_piece * piece, from, to;
                    const void *a = values_piece(z, (values_kind)k, u), *b = values_piece(&other.m.zero, (values_kind)k, u);
                    const float *floats = (const float *)(from_bf16 ? b : a);
                    const bf16 *narrow = (const bf16 *)(from_bf16 ? a : b);
                    if (!zero_span(&z->units[u].tensors[t], begin, begin + piece, &from, &to)) continue;
                    for (int64_t i = from - begin; i < to - begin; i++) {
                        wrong += narrow[i].bits != bf16_of_float(floats[i]);
                        rounded += float_of_bf16(narrow[i].bits) != floats[i];
                    }
                }
        CHECK(wrong == 0 && (rounded == 0) == (from_bf16 == 1), "a state with %s moments, offload %d: %lld are wrong, %lld rounded",
              from_bf16 ? "bf16" : "float", offload, (long long)wrong, (long long)rounded);
        state_store_close(&store);
        comm_barrier(world);
        if (comm_rank(world) == 0) folder_remove(folder);
        comm_barrier(world);
        fixture_free(&f);
        fixture_free(&other);
    }
}

// training_state.json of the deepest model that config.h allows, with all its checksums: 2 MB.
static void check_many_sums(const char *folder) {
    int64_t count = (4096 + 2) * ZERO_MAX_TENSORS;
    uint64_t *sums = HOST_NEW(uint64_t, VALUES_KINDS * count), *back = HOST_NEW(uint64_t, VALUES_KINDS * count);
    training_progress progress, found;
    error_text error, refused;
    options o;
    options_default(&o);
    memset(&progress, 0, sizeof progress);
    error.text[0] = refused.text[0] = '\0';
    for (int64_t i = 0; i < VALUES_KINDS * count; i++) sums[i] = ~(uint64_t)i;
    bool ok = state_write_json(folder, &progress, &o, sums, count, &error) &&
              state_read_json(folder, &found, back, count, &refused, &error);
    CHECK(ok && memcmp(sums, back, sizeof *sums * (size_t)(VALUES_KINDS * count)) == 0, "many sums: %s", error.text);
    path_text path = path_join(folder, "training_state.json");
    cJSON *json = file_read_json(path.text, STATE_BYTES, &error);
    cJSON_ReplaceItemInObject(json, "train_files", cJSON_CreateNumber(-1)); // which may not be that
    CHECK(!state_parse_json(json, &found, back, count, &error) && strstr(error.text, "\"train_files\"") != NULL, "%s", error.text);
    cJSON_ReplaceItemInObject(json, "format", cJSON_CreateNumber(STATE_FORMAT + 1)); // where a state of a small model may be this large
    char *text = cJSON_PrintUnformatted(json);
    error.text[0] = '\0';
    ok = file_write(path.text, text, strlen(text), &error) && state_read_json(folder, &found, back, 1, &refused, &error);
    CHECK(!ok && error.text[0] == '\0' && strstr(refused.text, "was written by another version") != NULL, "%s%s", refused.text, error.text);
    free(text);
    cJSON_Delete(json);
    free(sums);
    free(back);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    path_text folder;
    char name[] = "/tmp/test_saving.XXXXXX";
    if (comm_rank(world) == 0 && mkdtemp(name) == NULL) return EXIT_FAILED;
    comm_broadcast(world, name, sizeof name, 0);
    folder = path_join(name, "states");
    check_saving(folder.text, 1, 1, 1, false, true, false, world);
    check_saving(folder.text, 1, 2, 4, false, true, true, world);
    check_saving(folder.text, 4, 4, 4, true, true, false, world);
    check_saving(folder.text, 2, 2, 2, true, true, true, world);
    check_saving(folder.text, 1, 2, 2, false, false, false, world);
    check_saving(folder.text, 1, 2, 2, false, false, true, world);
    check_other_moments(folder.text, false, world);
    check_other_moments(folder.text, true, world);
    comm_barrier(world);
    if (comm_rank(world) == 0) check_many_sums(name);
    if (comm_rank(world) == 0) folder_remove(name);
    int status = test_finish("test_saving", world);
    comm_finalize();
    return status;
}
