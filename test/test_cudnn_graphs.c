// ranks: 1
// device: cuda
// The attention graphs that the trainer asks cuDNN for, checked without a GPU: those of all built-in models for every hp that is a power of
// two, and samples of packed documents. Given the properties of A100, H100, H200 and B200, cuDNN's support check accepts them, with an
// engine that needs no more workspace than op_attention_scratch plans. For Llama-3's graphs the engine that is tried first can be compiled,
// and is one of those that a run checks when it starts. Shapes that no engine takes are refused.
// attention_cudnn.c makes the same calls, cut by the same functions.
//     test_cudnn_graphs             the four GPUs of the table below
//     test_cudnn_graphs FILE...     instead, GPUs whose properties `gpu_points 6` (or `write`) has written to files
//     test_cudnn_graphs FILE table  the GPU of a file in place of the table's first
//     test_cudnn_graphs write FILE  writes the first GPU's properties to such a file
// For each GPU it prints the workspace that its graphs ask for, and the largest share of the planned workspace that one of them needs.
#include "test.h"

#include "../attention_2d.cuh"
#include "../config.h"
#include "../device/cuda/attention_graph.h"
#include "../files.h"

#include <dlfcn.h>

// What cudaGetDeviceProperties returns on these GPUs.
static const struct {
    const char *name;
    int version, processors; // compute capability times 100, SMs
    int clock_khz, memory_clock_khz;
    int memory_bits;
    int64_t l2_bytes, memory_bytes, shared_bytes; // shared: of a block that opts in
} known[] = {
    {"NVIDIA H200", 900, 132, 1980000, 3201000, 6144, 62914560, 150109880320, 232448},
    {"NVIDIA H100 80GB HBM3", 900, 132, 1980000, 2619000, 5120, 52428800, 85031714816, 232448},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 1410000, 1593000, 5120, 41943040, 85097971712, 166912},
    {"NVIDIA B200", 1000, 148, 1965000, 3996000, 8192, 132644864, 191000000000, 232448},
};
enum { KNOWN = sizeof known / sizeof *known, MAX_GPUS = 16 };

typedef struct {
    char name[128], *json;
    int largest_backward; // head size that backward engines take
    int version;          // compute capability times 100
    attention_shape *asked; // the graphs that were checked
    int graphs;             // their number
    int64_t first_bytes;  // workspace of the engines that are tried first, summed over all graphs: changes when cuDNN proposes others
    double most_used;     // the largest share of the planned workspace, and the call that needs it
    char most[256];
} gpu;
static gpu gpus[MAX_GPUS];
static int gpu_count;

static char *known_json(int n) {
    char *json = HOST_NEW(char, 2048);
    snprintf(
        json, 2048,
        "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"deviceName\":\"%s\",\"totalGlobalMem\":%lld,"
        "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":%d,"
        "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"l2CacheSize\":%lld,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
        "\"maxSharedMemoryPerBlockOptin\":%lld,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,"
        "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
        "\"smCountOrigin\":0,\"oversizedSharedMemoryPerBlock\":%lld,\"memoryBusWidth\":%d}", // cuDNN 9.28 asks for these three
        known[n].version, known[n].name, (long long)known[n].memory_bytes, known[n].processors, known[n].clock_khz,
        known[n].memory_clock_khz, (long long)known[n].l2_bytes, (long long)known[n].shared_bytes, (long long)known[n].shared_bytes,
        known[n].memory_bits);
    return json;
}
static cudnnBackendDescriptor_t properties_of(const gpu *g) { // NULL: cuDNN does not take them
    cudnnBackendDescriptor_t d = NULL;
    bool good = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(g->json),
                                         g->json) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS;
    if (!good && d != NULL) cudnnBackendDestroyDescriptor(d);
    return good ? d : NULL;
}
// Adds the GPU that the text describes; keeps the text. False with a message if it cannot.
static bool gpu_add(char *json, error_text *error) {
    gpu *g = &gpus[gpu_count];
    cJSON *all = cJSON_Parse(json);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(all, "deviceName"), *version = cJSON_GetObjectItemCaseSensitive(all, "deviceVer");
    if (gpu_count == MAX_GPUS) return error_set(error, "is one GPU too many");
    if (!cJSON_IsString(name) || !cJSON_IsNumber(version))
        return error_set(error, "has no deviceName or no deviceVer: not cuDNN's properties of a GPU");
    snprintf(g->name, sizeof g->name, "%s", name->valuestring);
    g->largest_backward = version->valueint / 100 == 9 ? 256 : 128;
    g->version = version->valueint;
    g->json = json;
    cJSON_Delete(all);
    cudnnBackendDescriptor_t properties = properties_of(g);
    if (properties == NULL) return error_set(error, "cuDNN does not take these properties of %s", g->name);
    cudnnBackendDestroyDescriptor(properties);
    gpu_count++;
    return true;
}

static const char *shape_text(attention_shape s) {
    static char text[160];
    snprintf(text, sizeof text, "%s%s, rows %lld x %lld, heads %d on %d of %d, strides %lld %lld", s.backward ? "backward" : "forward",
             s.causal ? " causal" : "", (long long)s.Tq, (long long)s.Tk, s.Hq, s.Hkv, s.HS, (long long)s.q_stride, (long long)s.kv_stride);
    return text;
}
static void expect(gpu *device, cudnnBackendDescriptor_t properties, attention_shape s, bool accepted) {
    attention_graph g;
    for (int i = 0; i < device->graphs; i++)
        if (attention_shape_equal(device->asked[i], s)) return;
    if (device->graphs % 1024 == 0)
        device->asked = (attention_shape *)realloc(device->asked, sizeof s * (size_t)(device->graphs + 1024));
    device->asked[device->graphs++] = s;
    bool taken = attention_graph_build(&g, s, NULL) && attention_graph_choose(&g, properties);
    CHECK(taken == accepted, "%s: %s: %s %s", device->name, shape_text(s), taken ? "taken" : "refused", g.error.text);
    size_t planned = attention_call_workspace(s);
    if (taken) device->first_bytes += g.workspace[0];
    int fit = 0; // engines that want more workspace are passed over (attention_cudnn.c)
    for (int i = 0; taken && accepted && i < g.config_count; i++) {
        if (g.workspace[i] < 0 || (size_t)g.workspace[i] > planned) continue;
        fit++;
        if ((double)g.workspace[i] <= device->most_used * (double)planned) continue;
        device->most_used = (double)g.workspace[i] / (double)planned;
        snprintf(device->most, sizeof device->most, ", %lld of %zu bytes: %s", (long long)g.workspace[i], planned, shape_text(s));
    }
    if (taken && accepted)
        CHECK(fit > 0, "%s: %s: workspace of %lld bytes, planned %zu", device->name, shape_text(s), (long long)g.workspace[0], planned);
    attention_graph_free(&g);
}

// Without a GPU the plan's kernel is still compiled; only the driver, which would load it, fails.
static bool compiles(cudnnBackendDescriptor_t properties, cudnnBackendDescriptor_t config) {
    cudnnBackendDescriptor_t plan = NULL;
    bool made = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &config) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &properties) == CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = made ? cudnnBackendFinalize(plan) : CUDNN_STATUS_INTERNAL_ERROR;
    if (plan != NULL) cudnnBackendDestroyDescriptor(plan);
    return status == CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
}
// The engine that is tried first for a shape compiles exactly if this CUDA knows the GPU.
static void expect_compiles(gpu *device, cudnnBackendDescriptor_t properties, attention_shape s) {
    attention_graph g;
    bool good = attention_graph_build(&g, s, NULL) && attention_graph_choose(&g, properties) && compiles(properties, g.configs[0]);
    bool known = CUDART_VERSION >= 12080 || device->version < 1000;
    CHECK(good == known, "%s: %s: the engine that is tried first %s", device->name, shape_text(s),
          good ? "compiles, with a CUDA that does not know the GPU" : "cannot be compiled");
    attention_graph_free(&g);
}

// The calls for one block.
static void expect_block(gpu *device, cudnnBackendDescriptor_t properties, attention_block b, bool backward) {
    int64_t rows = attention_tile_rows(b);
    int64_t stride = max_i64(b.q_stride, b.kv_stride);
    CHECK(stride * min_i64(rows, max_i64(b.Tq, b.Tk)) <= INT32_MAX,
          "a call reaches %lld rows of %lld elements", (long long)rows, (long long)stride);
    if (backward && b.HS > device->largest_backward) return;
    if (b.Tq % 128 != 0 || b.Tk % 128 != 0) return; // computed by hand
    // Tiles are of `rows` rows, but for the last one of the queries and of the keys. Those on the diagonal are causal if the block is.
    int64_t queries[2] = {min_i64(b.Tq, rows), b.Tq % rows}, keys[2] = {min_i64(b.Tk, rows), b.Tk % rows};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            for (int diagonal = 0; diagonal <= (b.causal && i == j); diagonal++) {
                if (queries[i] == 0 || keys[j] == 0 || (b.causal && !diagonal && b.Tq <= rows)) continue;
                attention_block tile = b;
                tile.Tq = queries[i];
                tile.Tk = keys[j];
                tile.causal = diagonal;
                attention_part part = attention_call_part(backward, tile.Tq, tile.Tk, b.Hq, b.Hkv, b.HS);
                expect(device, properties, attention_call_shape(tile, backward, part), true);
            }
}

// Packed documents: on the diagonal whole ones, rounded up, or pieces; off it pieces of queries with earlier keys or keys of another rank.
static void expect_document(gpu *device, cudnnBackendDescriptor_t properties, attention_block b, bool causal) {
    b.causal = causal;
    for (int backward = 0; backward < 2; backward++) {
        attention_part part = attention_call_part(backward == 1, b.Tq, b.Tk, b.Hq, b.Hkv, b.HS);
        expect(device, properties, attention_call_shape(b, backward == 1, part), true);
    }
}
static void expect_documents(gpu *device, cudnnBackendDescriptor_t properties, attention_block b, int64_t longest) {
    for (int64_t power = 512; power <= longest; power *= 2)
        for (b.Tq = b.Tk = power; b.Tq < 2 * power && b.Tq <= longest; b.Tk = b.Tq += max_i64(power / 16, 128))
            expect_document(device, properties, b, true);
    for (b.Tq = 512; b.Tq <= longest; b.Tq *= 2)
        for (b.Tk = 512; b.Tk <= longest; b.Tk *= 2) expect_document(device, properties, b, false);
}

static attention_block block_of(int64_t Tc, int Hq, int Hkv, int HS) {
    attention_block b = {.Tq = Tc, .Tk = Tc, .lse_stride = Tc, .Hq = Hq, .Hkv = Hkv, .HS = HS, .q_stride = (int64_t)Hq * HS,
                         .sum_stride = (int64_t)Hq * HS, .kv_stride = (int64_t)2 * Hkv * HS, .scale = 1, .causal = true};
    return b;
}
// A slice of heads among all those of a row of queries; its sums, K and V are dense (attention_2d.cuh).
static attention_block heads_of(attention_block b, attention_part part) {
    b.Hq = part.kv * part.members;
    b.Hkv = part.kv;
    b.sum_stride = (int64_t)b.Hq * b.HS;
    b.kv_stride = (int64_t)2 * b.Hkv * b.HS;
    return b;
}
// A rank's own block, and the two kinds of blocks of other ranks: all queries on half the keys, half the queries on all keys.
// part: the heads of a block, among Hq on Hkv.
static void expect_ring(gpu *device, cudnnBackendDescriptor_t properties, int64_t Tc, int Hq, int Hkv, int HS, attention_part part) {
    for (int backward = 0; backward < 2; backward++) {
        attention_block b = heads_of(block_of(Tc, Hq, Hkv, HS), part);
        expect_block(device, properties, b, backward == 1);
        b.causal = false;
        b.Tk = Tc / 2;
        expect_block(device, properties, b, backward == 1);
        b.Tk = Tc;
        b.Tq = Tc / 2;
        expect_block(device, properties, b, backward == 1);
    }
}

// A model's blocks for every hp that is a power of two, in a ring and alone (cp 1), which takes other slices of heads.
static void expect_model(gpu *device, cudnnBackendDescriptor_t properties, const model_config *m) {
    const int64_t lengths[] = {256, 8192, 131072, 1048576, 1048576 - 256};
    for (int hp = 1; m->H % hp == 0 && m->HS >= 64; hp *= 2) {
        head_layout l = head_layout_make(hp, m->H, m->Hkv, m->HS);
        for (int i = 0; i < 5; i++) {
            head_slice s = attention_2d_first_slice(lengths[i], l.Hq, l.Hkv_local, l.HS, true, ATTENTION_SLICE_BYTES);
            expect_ring(device, properties, lengths[i], l.Hq, l.Hkv_local, l.HS, (attention_part){s.Hkv, s.Hq / s.Hkv});
            s = attention_2d_first_slice(lengths[i], l.Hq, l.Hkv_local, l.HS, false, ATTENTION_SLICE_BYTES);
            attention_block alone = heads_of(block_of(lengths[i], l.Hq, l.Hkv_local, l.HS), (attention_part){s.Hkv, s.Hq / s.Hkv});
            for (int backward = 0; backward < 2; backward++) expect_block(device, properties, alone, backward == 1);
        }
    }
}

// The kernel that is tried first for a shape: cuDNN's number of the engine, and the choices that it makes for it.
static const char *first_kernel(cudnnBackendDescriptor_t properties, attention_shape s, char *text, size_t size) {
    enum { CHOICES = 16 };
    attention_graph g;
    cudnnBackendDescriptor_t engine = NULL, choices[CHOICES] = {NULL};
    int64_t one, count = 0, number = -1;
    bool good = attention_graph_build(&g, s, NULL) && attention_graph_choose(&g, properties) &&
                cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) == CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < CHOICES; i++)
        good = good && cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choices[i]) == CUDNN_STATUS_SUCCESS;
    good = good && cudnnBackendGetAttribute(g.configs[0], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one,
                                            &engine) == CUDNN_STATUS_SUCCESS &&
           cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, &number) == CUDNN_STATUS_SUCCESS &&
           cudnnBackendGetAttribute(g.configs[0], CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, CHOICES, &count,
                                    choices) == CUDNN_STATUS_SUCCESS;
    int used = snprintf(text, size, good ? "engine %lld" : "none", (long long)number);
    for (int64_t i = 0; good && i < count; i++) {
        cudnnBackendKnobType_t kind;
        int64_t value;
        good = cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one,
                                        &kind) == CUDNN_STATUS_SUCCESS &&
               cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one,
                                        &value) == CUDNN_STATUS_SUCCESS;
        used += snprintf(text + used, size - (size_t)used, ", %d = %lld", (int)kind, (long long)value);
    }
    CHECK(good, "%s: cuDNN does not say which kernel it takes", shape_text(s));
    for (int i = 0; i < CHOICES; i++)
        if (choices[i] != NULL) cudnnBackendDestroyDescriptor(choices[i]);
    if (engine != NULL) cudnnBackendDestroyDescriptor(engine);
    attention_graph_free(&g);
    return text;
}
// What a run computes is computed by kernels that the check at its start has computed its small blocks with (attention_engine_agrees).
static void expect_checked(gpu *device, cudnnBackendDescriptor_t properties, int HS, bool backward) {
    enum { TEXT = 256 };
    char checked[2][TEXT], now[TEXT];
    for (int causal = 0; causal < 2; causal++) {
        attention_block b = attention_checked_block(HS, causal == 1);
        first_kernel(properties, attention_call_shape(b, backward, (attention_part){b.Hkv, b.Hq / b.Hkv}), checked[causal], TEXT);
    }
    for (int64_t T = 512; T <= 131072; T *= 2)
        for (int causal = 0; causal < 2; causal++) {
            attention_block b = block_of(T, 32, 8, HS);
            b.causal = causal == 1;
            if (causal == 1 && device->version >= 1000 && T >= 65536) continue; // too long to be checked each time
            attention_shape s = attention_call_shape(b, backward, attention_call_part(backward, T, T, 32, 8, HS));
            first_kernel(properties, s, now, TEXT);
            CHECK(strcmp(now, checked[0]) == 0 || strcmp(now, checked[1]) == 0,
                  "%s: %s: %s, but what is checked at the start runs on %s, causal %s", device->name, shape_text(s), now, checked[0],
                  checked[1]);
        }
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    if (argc == 3 && strcmp(argv[1], "write") == 0) {
        char *json = known_json(0);
        if (file_write(argv[2], json, strlen(json), &error)) return EXIT_OK;
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    // cuDNN looks for the driver's library. The toolkit's placeholder for it is enough: it is never called.
    const char *stubs[] = {"libcuda.so.1", CUDA_STUB, "/usr/local/cuda/lib64/stubs/libcuda.so"};
    void *driver = NULL;
    for (int i = 0; i < 3 && driver == NULL; i++) driver = dlopen(stubs[i], RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL) {
        printf("neither a driver (libcuda.so.1) nor the toolkit's stub of it\n");
        return 77;
    }
    bool table = argc == 3 && strcmp(argv[2], "table") == 0;
    for (int i = 1; i < argc - table; i++) {
        char *json = file_read_text(argv[i], CONFIG_BYTES, &error);
        if (json == NULL || !gpu_add(json, &error)) {
            fprintf(stderr, "error: %s: %s\n", argv[i], error.text);
            return EXIT_USER_ERROR;
        }
    }
    for (int n = table; n < KNOWN && (argc == 1 || table); n++) CHECK(gpu_add(known_json(n), &error), "%s: %s", known[n].name, error.text);

    const attention_part each = {8, 1}; // as many query heads as key/value heads
    for (int n = 0; n < gpu_count; n++) {
        gpu *device = &gpus[n];
        cudnnBackendDescriptor_t properties = properties_of(device);
        attention_use_blackwell(device->version >= 1000);
        for (int m = 0; m < CONFIG_PRESETS; m++) expect_model(device, properties, &config_presets[m]);
        const model_config others[] = {{.H = 16, .Hkv = 8, .HS = 256}, {.H = 8, .Hkv = 8, .HS = 256}, {.H = 8, .Hkv = 8, .HS = 64}};
        for (int m = 0; m < 3; m++) expect_model(device, properties, &others[m]);
        expect_ring(device, properties, 4096 + 128, 6, 2, 128, (attention_part){2, 3}); // a length that is no power of two
        for (int HS = 64; HS <= 128; HS *= 2) {
            expect_documents(device, properties, block_of(0, 8, 2, HS), n == 0 ? 262144 : 8192);
            expect_documents(device, properties, heads_of(block_of(0, 32, 8, HS), (attention_part){1, 2}), 8192);
        }
        for (int HS = 64; HS <= 128 && (n == 0 || device->version != gpus[n - 1].version); HS *= 2) { // once for each generation
            attention_block b = block_of(8192, 32, 8, HS);
            const attention_part groups = {8, 4}, members = {1, 2};
            expect_compiles(device, properties, attention_call_shape(b, false, groups));
            expect_compiles(device, properties, attention_call_shape(b, true, groups));
            b.causal = false;
            expect_compiles(device, properties, attention_call_shape(b, true, members));
            expect_compiles(device, properties, attention_call_shape(block_of(8192, 8, 8, HS), true, each));
        }
        for (int HS = 64; HS <= 128; HS *= 2)
            for (int backward = 0; backward < 2; backward++) expect_checked(device, properties, HS, backward == 1);
        expect(device, properties, attention_call_shape(block_of(8192, 8, 8, 512), true, each), false);
        attention_shape s = attention_call_shape(block_of(8192, 8, 2, 128), false, (attention_part){2, 4});
        s.Hq = 5; // on 2
        expect(device, properties, s, false);
        s = attention_call_shape(block_of(8192, 8, 8, 128), true, each);
        s.HS = 100; // no multiple of 8
        expect(device, properties, s, false);
        cudnnBackendDestroyDescriptor(properties);
    }

    // Scratch never shrinks as rows are added, so what is planned for the longest rows covers every shorter call.
    for (int backward = 0; backward < 2; backward++)
        for (int Hkv = 1; Hkv <= 8; Hkv *= 2) {
            size_t before = 0;
            for (int64_t T = 64; T <= 1 << 20; T += max_i64(64, T / 100 / 64 * 64)) {
                size_t bytes = op_attention_scratch(block_of(T, 8, Hkv, 128), backward == 1);
                CHECK(bytes >= before, "scratch of %lld rows is %zu, of fewer rows %zu", (long long)T, bytes, before);
                before = bytes;
            }
        }
    for (int n = 0; n < gpu_count; n++)
        printf("%s: %d graphs, first engines ask for %lld bytes in all, at most %.1f %% of the planned workspace%s\n", gpus[n].name,
               gpus[n].graphs, (long long)gpus[n].first_bytes, 100 * gpus[n].most_used, gpus[n].most);
    return test_finish("cudnn graphs", NULL);
}
