/* Takes any text as the report of a failed gradient check: it is refused with a reason, or the check runs again;
 * nothing leaks. */
#define _GNU_SOURCE
#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>

#include "files.h"
#include "io/json.h"

#define REPORT(version, options, more)                                                                                \
    "{\"format\":\"tapegrad gradcheck\",\"version\":" version ",\"options\":{" options "},\"stream\":{\"seed\":1,"    \
    "\"stream\":2,\"counter\":3}," more "}"
#define OPTIONS                                                                                                       \
    "\"eps\":0.0,\"atol\":0.0,\"rtol\":1e-05,\"projections\":2,\"seed\":4,\"no_extras\":false,\"strict\":false,"      \
    "\"name\":\"f\""
#define INPUT(dtype, grad, shape, values)                                                                             \
    "{\"dtype\":\"" dtype "\",\"requires_grad\":" grad ",\"shape\":[" shape "],\"values\":[" values "]}"

const char *const fuzz_words[] = {
    "\"eps\":", "\"atol\":", "\"rtol\":", "\"projections\":", "\"seed\":", "\"op\":", "\"neg\"", "\"sample\":",
    "\"inputs\":[", "\"outputs\":", "\"dtype\":", "\"shape\":[", "\"values\":[", "\"same_as\":", "\"requires_grad\":",
    "\"f32\"", "\"f64\"", "\"bf16\"", "\"i64\"", "\"bool\"", "\"nan\"", "\"inf\"", "\"-inf\"", "true", "false", "null",
    "{", "}", "[", "]", ",", "1e308", "5e-324", "-1", "0", "2147483647", "9223372036854775807", NULL};

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const char *const seeds[] = {
        REPORT("1", OPTIONS, "\"outputs\":1,\"inputs\":[" INPUT("f64", "true", "2", "0.5,-1.5") "]"),
        REPORT("1", OPTIONS, "\"outputs\":2,\"inputs\":[" INPUT("f64", "true", "1,2", "0.5,-1.5") "," INPUT(
            "f64", "true", "2,1", "3,\"nan\"") ",{\"same_as\":0}]"),
        REPORT("1", OPTIONS, "\"outputs\":1,\"inputs\":[" INPUT("f32", "true", "", "1e30") "," INPUT(
            "i64", "false", "3", "1,2,3") "]"),
    };
    static const char *const ops[] = {"neg", "pow"};
    int n = (int)COUNT(seeds), length;
    if (i < n) {
        length = snprintf((char *)out, max, "%s", seeds[i]);
    } else if (i < n + (int)COUNT(ops)) {
        const tg_op *op = tg_op_find(ops[i - n]);
        length = snprintf((char *)out, max, REPORT("1", OPTIONS, "\"op\":\"%s\",\"sample\":0,\"n_samples\":%d"),
                          op->name, op->n_samples);
    } else {
        return 0;
    }
    return (size_t)length < max ? (size_t)length : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
}

/* Every result is the square of the sine of the first input: right for every input that has a sine. */
static tg_status function(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)state;
    tg_tensor *s = tg_sin(t, in[0]);
    for (int i = 0; i < n_out; i++) out[i] = tg_mul(t, s, s);
    return tg_ctx_status(tg_tape_ctx(t));
}

/* A report may ask for as many projections or results as an int allows, which would take too long. */
static bool is_short(tg_ctx *ctx) {
    tg_json j, options;
    int64_t projections = 0, outputs = 0;
    if (tg_json_load(&j, ctx, "a.json") == TG_OK) {
        if (tg_json_object(&j, "options", &options) == TG_OK)
            tg_json_int(&options, "projections", 0, INT64_MAX, &projections);
        tg_ctx_clear(ctx);
        if (tg_json_has(&j, "outputs")) tg_json_int(&j, "outputs", 0, INT64_MAX, &outputs);
        tg_json_free(&j);
    }
    tg_ctx_clear(ctx);
    return projections <= 16 && outputs <= 16;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const tg_status reasons[] = {TG_ERR_FORMAT, TG_ERR_ARGUMENT, TG_ERR_GRADIENT,    TG_ERR_DTYPE,
                                        TG_ERR_SHAPE,  TG_ERR_MEMORY,   TG_ERR_UNSUPPORTED, TG_ERR_STATE};
    static files disk;
    if (size > FUZZ_MAX) return 0;
    if (!disk.at[0].fd) files_start(&disk);
    budget memory = {.limit = (size_t)64 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = FILES_OPS(&disk), .allocator = BUDGET(&memory)));
    tg_tape *t = tg_tape_new(ctx);
    file_put(&disk, "a.json", data, size);
    if (is_short(ctx)) {
        tg_gradcheck_info r = TG_GRADCHECK_INFO();
        tg_rng before, after;
        tg_rng_get(ctx, NULL, &before);
        if (tg_gradcheck_replay(t, "a.json", function, NULL, &r) != TG_OK) fuzz_refused(ctx, reasons, COUNT(reasons));
        if (tg_gradcheck_replay_op(ctx, "a.json", NULL, &r) != TG_OK) fuzz_refused(ctx, reasons, COUNT(reasons));
        fuzz_must(tg_tape_nodes(t) == 0, "%lld nodes are left", (long long)tg_tape_nodes(t));
        tg_rng_get(ctx, NULL, &after);
        fuzz_must(!memcmp(&before, &after, sizeof before), "the random stream is another");
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held && !disk.open, "%zu bytes and %d files are left", memory.held, disk.open);
    files_clear(&disk);
    return 0;
}
