/* The frame of the misuse rows: the world that they act on, and the state that is compared around each of them. */
#define _GNU_SOURCE
#include <ftw.h>
#include <unistd.h>
#include <tapegrad/backward.h>
#include <tapegrad/op.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"
#include "core/context.h"

/* ---- The world ---- */

static tg_tensor *filled(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data) {
    return tg_from_host(ctx, dtype, shape, data);
}

static void make_tensors(misuse_world *b) {
    static const int64_t ids[] = {0, 1};
    static const bool mask[6] = {true, false, true};
    b->w = tg_param_new(b->ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1);
    b->x = tg_randn(b->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1);
    b->v = tg_randn(b->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    b->cube = tg_randn(b->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3, 4), 1);
    b->ids = filled(b->ctx, TG_I64, TG_SHAPE(2), ids);
    b->mask = filled(b->ctx, TG_BOOL, TG_SHAPE(2, 3), mask);
    b->foreign = tg_zeros(b->far, TG_F32, TG_SHAPE(2, 3));
}

/* Makes a new dropped tensor for every row, because the slot of a dropped one is eventually reused. */
static void drop_one(misuse_world *b) {
    b->dropped = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    tg_drop(b->dropped);
}

/* A handle of the last step, whose slot a tensor of this step uses; of an even or an odd step. */
static tg_tensor *make_reset(misuse_world *b, bool odd) {
    tg_tape *ended = tg_tape_new(b->ctx);
    if (odd) tg_tape_reset(ended);
    tg_tensor *x = tg_neg(ended, b->x);
    tg_tape_reset(ended);
    tg_neg(ended, b->w);
    return x;
}

/* A held handle of 1,000 resets ago. */
static tg_tensor *make_held(misuse_world *b, bool odd) {
    tg_tape *ended = tg_tape_new(b->ctx);
    if (odd) tg_tape_reset(ended);
    tg_tensor *x = tg_neg(ended, b->x);
    tg_hold(x);
    for (int i = 0; i < 1000; i++) {
        tg_tape_reset(ended);
        tg_neg(ended, b->w);
    }
    return x;
}

static tg_tensor *make_released(misuse_world *b) {
    tg_tensor *x = tg_neg(b->t, b->x);
    tg_hold(x);
    tg_release(x);
    for (int i = 0; i < 10; i++) tg_neg(b->t, b->x);
    return x;
}

static void make_dead(misuse_world *b) {
    b->reset = make_reset(b, false);
    b->reset_next = make_reset(b, true);
    b->held = make_held(b, false);
    b->held_next = make_held(b, true);
    b->released = make_released(b);
    b->overwritten = tg_neg(b->t, b->x);
    tg_add_(b->t, b->overwritten, b->x);
    b->elsewhere = tg_neg(b->other, b->x);
    b->gone = tg_neg(b->t, b->x);
    tg_discard(b->gone);
    b->freed = tg_tape_new(b->ctx);
    tg_tape_free(b->freed);
    tg_ctx_fail(b->ctx, TG_ERR_STATE, "on purpose");
    b->inert = tg_neg(b->t, b->x);
    b->inert_t = tg_tape_new(b->ctx);
    tg_ctx_clear(b->ctx);
}

static void list_handles(misuse_world *b) {
    const misuse_handle all[MISUSE_HANDLES] = {
        {b->t, NULL, b->ctx, TG_ERR_HANDLE, "dropped"}, /* b->dropped, which changes */
        {NULL, b->x, b->ctx, TG_ERR_ARGUMENT, "the tape is NULL"},
        {b->t, NULL, b->ctx, TG_ERR_ARGUMENT, "NULL"},
        {b->t, b->inert, b->ctx, TG_ERR_HANDLE, "inert"},
        {b->t, b->reset, b->ctx, TG_ERR_HANDLE, "reset"},
        {b->t, b->reset_next, b->ctx, TG_ERR_HANDLE, "reset"},
        {b->t, b->held, b->ctx, TG_ERR_HANDLE, "reset"},
        {b->t, b->held_next, b->ctx, TG_ERR_HANDLE, "reset"},
        {b->t, b->released, b->ctx, TG_ERR_HANDLE, "released"},
        {b->t, b->overwritten, b->ctx, TG_ERR_HANDLE, "in place"},
        {b->t, b->elsewhere, b->ctx, TG_ERR_HANDLE, "tg_tape_input"},
        {b->t, b->foreign, b->ctx, TG_ERR_HANDLE, "another context"},
        {b->far_t, b->x, b->far, TG_ERR_HANDLE, "another context"},
        {b->freed, b->x, b->ctx, TG_ERR_HANDLE, "freed"},
        {b->inert_t, b->x, b->ctx, TG_ERR_HANDLE, "could not be made"},
        {b->t, b->gone, b->ctx, TG_ERR_DISCARDED, "tg_discard"},
    };
    memcpy(b->handle, all, sizeof all);
}

static void open_world(misuse_world *b, char *dir) {
    b->dir = mkdtemp(dir);
    b->ctx = tg_ctx_new(TG_CONFIG(.seed = 7, .threads = 1));
    b->far = tg_ctx_new(TG_CONFIG(.seed = 8, .threads = 1));
    b->t = tg_tape_new(b->ctx);
    b->other = tg_tape_new(b->ctx);
    b->fresh = tg_tape_new(b->ctx);
    b->far_t = tg_tape_new(b->far);
    make_tensors(b);
    make_dead(b);
    b->r = tg_square(b->t, b->w);
    list_handles(b);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void close_world(misuse_world *b) {
    tg_ctx_free(b->ctx);
    tg_ctx_free(b->far);
    nftw(b->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- State that must not change ---- */

static uint64_t hash(const tg_tensor *x) {
    uint64_t h = 14695981039346656037u;
    const unsigned char *p = x->storage->data;
    for (size_t i = 0; i < x->storage->bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static int64_t live_bytes(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

static misuse_state look(const misuse_world *b) {
    const tg_tensor *watched[MISUSE_WATCHED] = {b->w, b->x, b->v, b->ids, b->mask, b->cube, b->r, b->elsewhere};
    misuse_state s;
    memset(&s, 0, sizeof s); /* compared as bytes */
    s.live = live_bytes(b->ctx);
    s.far_live = live_bytes(b->far);
    s.nodes = tg_tape_nodes(b->t);
    s.far_nodes = tg_tape_nodes(b->far_t);
    tg_rng_get(b->ctx, NULL, &s.rng);
    for (int i = 0; i < MISUSE_WATCHED; i++) {
        s.bytes[i] = hash(watched[i]);
        s.version[i] = watched[i]->storage->version;
    }
    s.training = tg_is_training(b->t);
    s.grad = tg_is_grad_on(b->t);
    s.has_grad = tg_has_grad(b->w);
    return s;
}

/* d sum(w^2) / d w = 2 w. */
static bool step_works(misuse_world *b) {
    float w[6], g[6];
    tg_backward(b->fresh, tg_sum(b->fresh, tg_square(b->fresh, b->w), TG_ALL_DIMS, false));
    tg_read(b->w, w, sizeof w);
    tg_read(tg_grad_of(b->w), g, sizeof g);
    tg_zero_grad(b->w);
    tg_tape_reset(b->fresh);
    bool good = tg_ctx_status(b->ctx) == TG_OK;
    for (int i = 0; i < 6; i++) good &= g[i] == 2 * w[i];
    return good;
}

/* ---- A row ---- */

static void report(misuse_world *b, const char *symbol, const char *file, int line, const char *what,
                   const char *message) {
    b->failed++;
    if (!b->quiet) printf("%s:%d: %s: %s%s%s\n", file, line, symbol, what, *message ? ": " : "", message);
}

static const char *difference(const misuse_state *a, const misuse_state *c) {
    if (a->live != c->live || a->far_live != c->far_live) return "live bytes changed";
    if (a->nodes != c->nodes || a->far_nodes != c->far_nodes) return "the tape grew";
    if (memcmp(&a->rng, &c->rng, sizeof a->rng) != 0) return "the random stream moved";
    if (memcmp(a->bytes, c->bytes, sizeof a->bytes) != 0) return "values changed";
    if (memcmp(a->version, c->version, sizeof a->version) != 0) return "a version changed";
    return memcmp(a, c, sizeof *a) != 0 ? "a mode changed" : NULL;
}

void misuse_begin(misuse_world *b) {
    drop_one(b);
    b->before = look(b);
}

/* Returns what is wrong with the contexts' errors. */
static const char *wrong_error(const misuse_world *b, const tg_ctx *ctx, tg_status status, const char *says) {
    if (tg_ctx_status(b->ctx) != (ctx == b->ctx ? status : TG_OK)) return tg_status_name(tg_ctx_status(b->ctx));
    if (tg_ctx_status(b->far) != (ctx == b->far ? status : TG_OK)) return "the other context's status";
    if (ctx && !strstr(tg_ctx_message(ctx), says)) return says;
    return NULL;
}

void misuse_end(misuse_world *b, const char *symbol, const char *file, int line, bool truth, tg_ctx *ctx,
                tg_status status, const char *says) {
    char message[2048];
    snprintf(message, sizeof message, "%s", tg_ctx_message(ctx ? ctx : b->ctx));
    const char *wrong = wrong_error(b, ctx, status, says);
    tg_ctx_clear(b->ctx);
    tg_ctx_clear(b->far);
    misuse_state after = look(b);
    const char *changed = difference(&b->before, &after);
    if (wrong)
        report(b, symbol, file, line, wrong, message);
    else if (!truth)
        report(b, symbol, file, line, "another answer than the row's", message);
    else if (changed)
        report(b, symbol, file, line, changed, message);
    else if (!step_works(b))
        report(b, symbol, file, line, "the step afterwards fails", tg_ctx_message(b->ctx));
    else
        b->passed++;
    tg_ctx_clear(b->ctx);
}

void misuse_names(misuse_world *b, const char *symbol) {
    if (b->n_symbols < (int)TG_LEN(b->symbol))
        b->symbol[b->n_symbols++] = symbol;
    else
        b->failed++;
}

void misuse_covers(misuse_world *b, const char *op) { b->op[b->n_ops < (int)TG_LEN(b->op) ? b->n_ops++ : 0] = op; }

static const char first_error[] = "an older error";

void misuse_stick(misuse_world *b) {
    misuse_begin(b);
    tg_ctx_fail(b->ctx, TG_ERR_INTERNAL, first_error);
    tg_ctx_fail(b->far, TG_ERR_INTERNAL, first_error);
}

void misuse_stuck(misuse_world *b, const char *symbol, const char *file, int line) {
    bool kept = strcmp(tg_ctx_message(b->ctx), first_error) == 0 && strcmp(tg_ctx_message(b->far), first_error) == 0;
    tg_ctx_clear(b->ctx);
    tg_ctx_clear(b->far);
    misuse_state after = look(b);
    const char *changed = difference(&b->before, &after);
    if (!kept)
        report(b, symbol, file, line, "replaced an older error", "");
    else if (changed)
        report(b, symbol, file, line, changed, "although an older error stuck");
}

/* ---- main ---- */

static void print_symbols(const misuse_world *b) {
    for (int i = 0; i < b->n_symbols; i++) puts(b->symbol[i]);
    for (int i = 0; i < b->n_ops; i++) printf("op %s\n", b->op[i]);
}

/* With --symbols: prints the names of all rows, and of the ops of misuse_table. */
int main(int argc, char **argv) {
    static misuse_world world;
    misuse_world *b = &world;
    char dir[] = "/tmp/tapegrad-misuse-XXXXXX";
    b->quiet = argc > 1 && strcmp(argv[1], "--symbols") == 0;
    open_world(b, dir);
    if (!b->dir || !step_works(b)) {
        printf("the world: %s\n0 passed, 1 failed\n", tg_ctx_message(b->ctx));
        return EXIT_FAILURE;
    }
    void (*const part[])(misuse_world *) = {
        misuse_context, misuse_tensor, misuse_handles, misuse_tape, misuse_backward, misuse_derivatives, misuse_ops,
        misuse_table, misuse_windows, misuse_arguments, misuse_extend, misuse_by_name, misuse_gradcheck, misuse_nn,
        misuse_modules, misuse_lm, misuse_lora, misuse_generate, misuse_optim, misuse_averages, misuse_data,
        misuse_io, misuse_tokenizer, misuse_templates, misuse_comm,
        misuse_placement, misuse_mappings, misuse_p2p, misuse_world_of_ranks, misuse_mpi, misuse_layers,
        misuse_parallel, misuse_pipe, misuse_capture,
    };
    for (size_t i = 0; i < TG_LEN(part); i++) part[i](b);
    close_world(b);
    if (b->quiet)
        print_symbols(b);
    else
        printf("%d passed, %d failed\n", b->passed, b->failed);
    return b->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
