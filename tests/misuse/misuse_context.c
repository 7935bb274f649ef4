/* Status, dtypes and shapes, contexts, memory, threads and random streams. */
#include <tapegrad/memory.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"

/* ---- Contexts that cannot be created ---- */

static bool ends_dead(tg_ctx *ctx, tg_status status, const char *says) {
    tg_tape *t = tg_tape_new(ctx);
    bool good = tg_ctx_status(ctx) == status && strstr(tg_ctx_message(ctx), says) &&
                misuse_inert(tg_zeros(ctx, TG_F32, TG_SHAPE(2)));
    good = good && t && misuse_inert(tg_full(t, TG_F32, TG_SHAPE(2), 1));
    tg_ctx_clear(ctx);
    good = good && tg_ctx_status(ctx) == status;
    if (!good) printf("%s: %s\n", tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return good;
}

static void *no_memory(void *user, size_t bytes, size_t align) {
    (void)user, (void)bytes, (void)align;
    return NULL;
}

static void free_nothing(void *user, void *p, size_t bytes) { (void)user, (void)p, (void)bytes; }

#define DEAD(code, says, ...) QUIET(tg_ctx_new, ends_dead(tg_ctx_new(TG_CONFIG(__VA_ARGS__)), TG_ERR_##code, says))

static void contexts(misuse_world *b) {
    tg_config unset, later;
    memset(&unset, 0, sizeof unset);
    tg_struct_init(&later, sizeof later);
    later.size += 8;
    DEAD(DEVICE, "abacus", .device = "abacus");
    DEAD(ARGUMENT, "threads is -2", .threads = -2);
    DEAD(ARGUMENT, "threads is 0, expected 1 to 1024, or TG_AUTO", .threads = 0);
    DEAD(ARGUMENT, "threads is 100000", .threads = 100000);
    DEAD(DTYPE, "i64, expected a float", .dtype = TG_I64);
    DEAD(DTYPE, "expected a float", .dtype = (tg_dtype)77);
    DEAD(DTYPE, "expected a float", .dtype = (tg_dtype)-3);
    DEAD(ARGUMENT, "mmx", .isa = "mmx");
    DEAD(ARGUMENT, "deadline is -1", .deadline = -1);
    DEAD(ARGUMENT, "memory is -2 bytes", .memory = -2);
    DEAD(ARGUMENT, "memory is 0 bytes, expected 1 or more, or TG_NONE", .memory = 0);
    DEAD(ARGUMENT, "deadline is 0", .deadline = 0);
    DEAD(ARGUMENT, "deadline is nan", .deadline = NAN);
    DEAD(ARGUMENT, "both alloc and free", .allocator = {.alloc = no_memory});
    DEAD(MEMORY, "no memory for the context", .allocator = {no_memory, free_nothing, NULL});
    DEAD(ARGUMENT, "the file table", .files = (const void *)&(size_t){1});
    QUIET(tg_ctx_new, ends_dead(tg_ctx_new(&unset), TG_ERR_ARGUMENT, "size is 0"));
    QUIET(tg_ctx_new, ends_dead(tg_ctx_new(&later), TG_ERR_ARGUMENT, "this library knows"));
    QUIET(tg_ctx_free, (tg_ctx_free(NULL), true));
}

/* ---- Freeing a context from a callback ---- */

static tg_status free_context(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)t, (void)x, (void)g;
    tg_ctx_free(user);
    return TG_OK;
}

static bool survives_a_free_in_a_hook(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(), 1);
    tg_on_grad(w, free_context, ctx);
    tg_backward(t, tg_square(t, w));
    bool refused = tg_ctx_status(ctx) == TG_ERR_STATE && strstr(tg_ctx_message(ctx), "tg_ctx_free");
    tg_ctx_free(ctx);
    return refused;
}

/* ---- Status ---- */

static void statuses(misuse_world *b) {
    QUIET(tg_status_name, strcmp(tg_status_name((tg_status)-1), "?") == 0);
    QUIET(tg_status_name, strcmp(tg_status_name((tg_status)1000), "?") == 0);
    QUIET(tg_version, strcmp(tg_version(), TG_VERSION) == 0);
    QUIET(tg_ctx_status, tg_ctx_status(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_ctx_message, strstr(tg_ctx_message(NULL), "NULL"));
    QUIET(tg_ctx_clear, (tg_ctx_clear(NULL), true));
    QUIET(tg_ctx_fail, tg_ctx_fail(NULL, TG_ERR_DATA, "lost") == TG_ERR_ARGUMENT);
    const char *none = NULL;
    GIVES(tg_ctx_fail, INTERNAL, "not an error", tg_ctx_fail(b->ctx, TG_OK, "not an error") != TG_OK);
    GIVES(tg_ctx_fail, INTERNAL, "unheard of", tg_ctx_fail(b->ctx, (tg_status)555, "unheard of") != TG_OK);
    GIVES(tg_ctx_fail, DATA, "invalid data", tg_ctx_fail(b->ctx, TG_ERR_DATA, none, 0) != TG_OK);
    QUIET(tg_ctx_threads, tg_ctx_threads(NULL) == 0);
    QUIET(tg_ctx_deadline, tg_ctx_deadline(NULL) == 0);
    QUIET(tg_ctx_device, !*tg_ctx_device(NULL));
    QUIET(tg_ctx_isa, !*tg_ctx_isa(NULL));
    QUIET(tg_ctx_free, survives_a_free_in_a_hook());
}

/* ---- Dtypes, shapes, structs ---- */

static void values(misuse_world *b) {
    char byte = 1;
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, huge[] = {INT64_MAX, INT64_MIN};
    QUIET(tg_dtype_name,
          strcmp(tg_dtype_name((tg_dtype)99), "?") == 0 && strcmp(tg_dtype_name((tg_dtype)-1), "?") == 0);
    QUIET(tg_dtype_bits, tg_dtype_bits((tg_dtype)99) == 0 && tg_dtype_bits((tg_dtype)-1) == 0);
    QUIET(tg_shape_make, tg_shape_make(9, nine).ndim > TG_MAX_DIMS);
    QUIET(tg_shape_make, tg_shape_make(0, NULL).ndim == 0);
    INERT(tg_shape_make, SHAPE, "expected 0 to 8", tg_zeros(b->ctx, TG_F32, tg_shape_make(2, NULL)));
    INERT(tg_shape_make, SHAPE, "expected 0 to 8", tg_zeros(b->ctx, TG_F32, tg_shape_make(SIZE_MAX, nine)));
    INERT(tg_shape_make, SHAPE, "expected 0 to 8", tg_zeros(b->ctx, TG_F32, tg_shape_make(9, nine)));
    QUIET(tg_dims_make, tg_dims_make(9, nine).n > TG_MAX_DIMS && tg_dims_make(2, huge).dim[1] == INT32_MIN);
    INERT(tg_dims_make, SHAPE, "more than 8 dims", tg_sum(b->t, b->x, tg_dims_make(2, NULL), false));
    INERT(tg_dims_make, SHAPE, "out of range", tg_sum(b->t, b->x, tg_dims_make(1, huge), false));
    QUIET(tg_struct_init, (tg_struct_init(NULL, 64), tg_struct_init(&byte, 1), byte == 1));
    QUIET(tg_struct_count, tg_struct_count() > 0);
    QUIET(tg_struct_at, !tg_struct_at(-1) && !tg_struct_at(tg_struct_count()));
    QUIET(tg_struct_find, !tg_struct_find(NULL) && !tg_struct_find("tg_tensor"));
    QUIET(tg_struct_fill, tg_struct_fill("tg_config", &byte, 1) == TG_ERR_ARGUMENT && byte == 1);
    QUIET(tg_struct_fill, tg_struct_fill("tg_tensor", &byte, sizeof(size_t)) == TG_ERR_ARGUMENT && byte == 1);
    QUIET(tg_enum_count, tg_enum_count() > 0);
    QUIET(tg_enum_at, !tg_enum_at(-1) && !tg_enum_at(tg_enum_count()));
    QUIET(tg_enum_find, !tg_enum_find(NULL) && !tg_enum_find("tg_config"));
}

/* ---- Memory, threads, random streams ---- */

static void memory(misuse_world *b) {
    tg_memory_info none = {0};
    char buf[8] = "kept";
    FAILS(tg_memory_query, ARGUMENT, "out is NULL", tg_memory_query(b->ctx, NULL));
    FAILS(tg_memory_query, ARGUMENT, "has no size", tg_memory_query(b->ctx, &none));
    QUIET(tg_memory_query, tg_memory_query(NULL, &none) == TG_ERR_ARGUMENT);
    QUIET(tg_memory_left, tg_memory_left(NULL) == 0);
    QUIET(tg_memory_reset_peak, (tg_memory_reset_peak(NULL), true));
    QUIET(tg_memory_set_trace, (tg_memory_set_trace(NULL, true), true));
    QUIET(tg_memory_report, tg_memory_report(NULL, buf, sizeof buf) == 0 && !*buf);
    QUIET(tg_memory_report, tg_memory_report(b->ctx, NULL, 100) > 100);
    QUIET(tg_memory_report, tg_memory_report(b->ctx, buf, 2) > 2 && !buf[1]);
}

static void streams(misuse_world *b) {
    tg_rng rng = {.seed = 5};
    const tg_parallel *p = NULL;
    tg_rng_add(b->ctx, "noise", 41);
    FAILS(tg_rng_add, ARGUMENT, "the name is NULL", tg_rng_add(b->ctx, NULL, 1));
    FAILS(tg_rng_add, ARGUMENT, "the name is empty", tg_rng_add(b->ctx, "", 1));
    FAILS(tg_rng_add, ARGUMENT, "\"noise\" exists already", tg_rng_add(b->ctx, "noise", 42));
    FAILS(tg_rng_add, ARGUMENT, "\"hum\" and \"noise\" would both have the seed 41", tg_rng_add(b->ctx, "hum", 41));
    QUIET(tg_rng_add, tg_rng_add(NULL, "noise", 1) == TG_ERR_ARGUMENT);
    FAILS(tg_rng_remove, ARGUMENT, "no random stream is named \"hum\"", tg_rng_remove(b->ctx, "hum"));
    FAILS(tg_rng_remove, ARGUMENT, "the name is NULL", tg_rng_remove(b->ctx, NULL));
    QUIET(tg_rng_remove, tg_rng_remove(NULL, "noise") == TG_ERR_ARGUMENT);
    QUIET(tg_rng_name, !tg_rng_name(NULL, 0) && !tg_rng_name(b->ctx, -1) && !tg_rng_name(b->ctx, 100));
    FAILS(tg_rng_get, ARGUMENT, "out is NULL", tg_rng_get(b->ctx, NULL, NULL));
    FAILS(tg_rng_get, ARGUMENT, "no random stream is named \"hum\"", tg_rng_get(b->ctx, "hum", &rng));
    QUIET(tg_rng_get, tg_rng_get(NULL, NULL, &rng) == TG_ERR_ARGUMENT);
    FAILS(tg_rng_set, ARGUMENT, "the state is NULL", tg_rng_set(b->ctx, NULL, NULL));
    FAILS(tg_rng_set, ARGUMENT, "stream is 4611686018427387904, expected less than 2^62",
          tg_rng_set(b->ctx, NULL, &(tg_rng){.seed = 1, .stream = (uint64_t)1 << 62}));
    FAILS(tg_rng_set, ARGUMENT, "no random stream is named \"\"", tg_rng_set(b->ctx, "", &rng));
    QUIET(tg_rng_set, tg_rng_set(NULL, NULL, &rng) == TG_ERR_ARGUMENT);
    FAILS(tg_rng_join, STATE, "no stream is forked", tg_rng_join(b->ctx));
    QUIET(tg_rng_join, tg_rng_join(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_rng_fork, tg_rng_fork(NULL, "noise") == TG_ERR_ARGUMENT);
    /* A failed fork still has its join. */
    FAILS(tg_rng_fork, ARGUMENT, "no random stream is named \"hum\"",
          (tg_rng_fork(b->ctx, "hum"), tg_rng_join(b->ctx)));
    FAILS(tg_rng_fork, ARGUMENT, "the name is NULL", (tg_rng_fork(b->ctx, NULL), tg_rng_join(b->ctx)));
    FAILS(tg_rng_join, STATE, "no stream is forked", tg_rng_join(b->ctx));
    QUIET(tg_rng_seed_parallel, tg_rng_seed_parallel(p, 1) == TG_ERR_ARGUMENT);
    tg_rng_remove(b->ctx, "noise");
}

static void keys(misuse_world *b) {
    QUIET(tg_key_open, tg_key_open(NULL, 1) == TG_ERR_ARGUMENT);
    QUIET(tg_key_close, tg_key_close(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_draws_step, tg_draws_step(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_key_close, STATE, "no key is open; call tg_key_open first", tg_key_close(b->ctx));
    for (uint64_t i = 0; i < 16; i++) tg_key_open(b->ctx, i);
    FAILS(tg_draws_step, STATE, "16 keys are open, expected none", tg_draws_step(b->ctx, 1));
    /* A failed open still has its close. */
    FAILS(tg_key_open, STATE, "16 keys are open, which is the most", (tg_key_open(b->ctx, 16), tg_key_close(b->ctx)));
    for (int i = 0; i < 16; i++) tg_key_close(b->ctx);
    FAILS(tg_key_close, STATE, "no key is open", tg_key_close(b->ctx));
}

void misuse_context(misuse_world *b) {
    contexts(b);
    statuses(b);
    values(b);
    memory(b);
    streams(b);
    keys(b);
}
