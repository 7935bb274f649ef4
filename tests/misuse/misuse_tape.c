/* Tapes, their modes and scopes, discards, recomputation, and queries about tapes and nodes. */
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/explain.h>
#include <tapegrad/op.h>
#include <tapegrad/ops.h>
#include <tapegrad/recompute.h>

#include "misuse/misuse.h"

/* ---- Tapes ---- */

static bool a_tape_of_nothing(void) {
    tg_tape *t = tg_tape_new(NULL);
    return t && misuse_inert(tg_full(t, TG_F32, TG_SHAPE(1), 1)) && tg_ctx_status(tg_tape_ctx(t)) != TG_OK;
}

static bool a_tape_of_a_failed_context(misuse_world *b) {
    tg_ctx_fail(b->ctx, TG_ERR_STATE, "on purpose");
    tg_tape *t = tg_tape_new(b->ctx);
    tg_ctx_clear(b->ctx);
    tg_tape_reset(t);
    tg_tape_free(t);
    return t && tg_tape_ctx(t) == b->ctx && tg_tape_nodes(t) == 0;
}

static tg_status end_tape(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)x, (void)g;
    *(bool *)user ? tg_tape_free(t) : tg_tape_reset(t);
    return TG_OK;
}

/* A tape cannot be reset or freed while its backward runs. */
static bool survives(misuse_world *b, bool by_free) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_square(t, b->w);
    tg_on_grad(y, end_tape, &by_free);
    tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    bool refused = tg_backward(t, loss) != TG_OK && tg_is_alive(y);
    char message[256];
    snprintf(message, sizeof message, "%s", tg_ctx_message(b->ctx));
    tg_tape_free(t);
    tg_ctx_clear(b->ctx);
    tg_zero_grad(b->w);
    return refused && strstr(message, by_free ? "tg_tape_free" : "tg_tape_reset");
}

static void tapes(misuse_world *b) {
    QUIET(tg_tape_new, a_tape_of_nothing());
    QUIET(tg_tape_new, a_tape_of_a_failed_context(b));
    QUIET(tg_tape_free, (tg_tape_free(NULL), tg_tape_free(b->freed), tg_tape_free(b->inert_t), true));
    QUIET(tg_tape_reset, (tg_tape_reset(NULL), tg_tape_reset(b->freed), tg_tape_reset(b->inert_t), true));
    QUIET(tg_tape_reset, survives(b, false));
    QUIET(tg_tape_free, survives(b, true));
    QUIET(tg_tape_ctx, !tg_tape_ctx(NULL));
    QUIET(tg_tape_set_training, !tg_tape_set_training(NULL, true));
    QUIET(tg_tape_set_training,
          (tg_tape_set_training(b->freed, false), tg_tape_set_training(b->inert_t, true), !tg_is_training(b->inert_t)));
    QUIET(tg_tape_set_grad_mode, !tg_tape_set_grad_mode(NULL, true));
    QUIET(tg_tape_set_grad_mode, (tg_tape_set_grad_mode(b->freed, false), tg_tape_set_grad_mode(b->inert_t, true),
                                  !tg_is_grad_on(b->inert_t)));
    QUIET(tg_is_training, !tg_is_training(NULL));
    QUIET(tg_is_grad_on, !tg_is_grad_on(NULL));
    QUIET(tg_tape_set_timing, (tg_tape_set_timing(NULL, true), tg_tape_set_timing(b->freed, true),
                               tg_tape_set_timing(b->inert_t, true), true));
}

/* ---- Inputs, scopes, discards ---- */

static void inputs(misuse_world *b) {
    QUIET(tg_tape_key, tg_tape_key(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_key, HANDLE, "freed", tg_tape_key(b->freed, 1));
    FAILS(tg_tape_key, HANDLE, "could not be made", tg_tape_key(b->inert_t, 1));
    INERT(tg_tape_input, ARGUMENT, "the tape is NULL", tg_tape_input(NULL, b->x));
    INERT(tg_tape_input, ARGUMENT, "the tensor is NULL", tg_tape_input(b->t, NULL));
    INERT(tg_tape_input, HANDLE, "freed", tg_tape_input(b->freed, b->x));
    INERT(tg_tape_input, HANDLE, "could not be made", tg_tape_input(b->inert_t, b->x));
    INERT(tg_tape_input, HANDLE, "another context", tg_tape_input(b->t, b->foreign));
    DEAD_TENSOR(tg_tape_input, tg_tape_input(b->t, x));
}

static bool closes_with(misuse_world *b, tg_tensor *x, int n, tg_status status) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_scope_open(t, "scope");
    tg_tensor *y = tg_neg(t, b->x);
    bool refused = tg_scope_close(t, n == 1 ? &x : NULL, n) == status && tg_storage_state_of(y) == TG_PRESENT;
    tg_ctx_clear(b->ctx);
    bool good = refused && tg_scope_close(t, NULL, 0) == TG_ERR_STATE; /* the scope is closed nevertheless */
    tg_ctx_clear(b->ctx);
    tg_tape_free(t);
    return good;
}

static void scopes(misuse_world *b) {
    QUIET(tg_scope_open, tg_scope_open(NULL, "s") == TG_ERR_ARGUMENT);
    FAILS(tg_scope_open, HANDLE, "freed", tg_scope_open(b->freed, "s"));
    FAILS(tg_scope_open, HANDLE, "could not be made", tg_scope_open(b->inert_t, NULL));
    QUIET(tg_scope_close, tg_scope_close(NULL, NULL, 0) == TG_ERR_ARGUMENT);
    FAILS(tg_scope_close, HANDLE, "freed", tg_scope_close(b->freed, NULL, 0));
    FAILS(tg_scope_close, STATE, "no scope is open", tg_scope_close(b->t, NULL, 0));
    QUIET(tg_scope_close, closes_with(b, NULL, -1, TG_ERR_ARGUMENT));
    QUIET(tg_scope_close, closes_with(b, NULL, 3, TG_ERR_ARGUMENT));
    QUIET(tg_scope_close, closes_with(b, NULL, 1, TG_ERR_ARGUMENT));
    QUIET(tg_scope_close, closes_with(b, b->foreign, 1, TG_ERR_HANDLE));
    EACH_DEAD(x) QUIET(tg_scope_close, closes_with(b, x, 1, TG_ERR_HANDLE));
}

static void discards(misuse_world *b) {
    static float data[2];
    tg_tensor *wrapped = tg_wrap(b->ctx, TG_F32, TG_SHAPE(2), NULL, data, NULL, NULL);
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    QUIET(tg_discard, tg_discard(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_discard, STATE, "parameter", tg_discard(p));
    FAILS(tg_discard, STATE, "has saved the tensor", tg_discard(b->w));
    FAILS(tg_discard, STATE, "belongs to the caller or is discarded already", tg_discard(wrapped));
    FAILS(tg_discard, STATE, "discarded already", tg_discard(b->gone));
    DEAD_STATUS(tg_discard, tg_discard(x));
    tg_drop(wrapped);
    tg_drop(p);
}

/* ---- Named buffers ---- */

static bool leased_twice(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *first = tg_lease(t, "x", TG_F32, TG_SHAPE(2));
    bool refused = tg_is_alive(first) && misuse_inert(tg_lease(t, "x", TG_F32, TG_SHAPE(1)));
    tg_tape_free(t);
    return refused;
}

static bool lease_quietly(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_lease(t, "x", TG_F32, TG_SHAPE(2)); /* allocated before the rows, since its memory stays with the context */
    tg_tape_free(t);
    return true;
}

static void leases(misuse_world *b) {
    const tg_shape s = TG_SHAPE(2);
    lease_quietly(b);
    QUIET(tg_lease, misuse_inert(tg_lease(NULL, "x", TG_F32, s)));
    INERT(tg_lease, HANDLE, "freed", tg_lease(b->freed, "x", TG_F32, s));
    INERT(tg_lease, HANDLE, "could not be made", tg_lease(b->inert_t, "x", TG_F32, s));
    INERT(tg_lease, ARGUMENT, "the name is NULL", tg_lease(b->t, NULL, TG_F32, s));
    INERT(tg_lease, ARGUMENT, "the name is empty", tg_lease(b->t, "", TG_F32, s));
    INERT(tg_lease, DTYPE, "expected one of", tg_lease(b->t, "x", (tg_dtype)99, s));
    INERT(tg_lease, SHAPE, "dim 0 is -1", tg_lease(b->t, "x", TG_F32, TG_SHAPE(-1)));
    INERT(tg_lease, SHAPE, "overflows", tg_lease(b->t, "x", TG_F32, TG_SHAPE(INT64_MAX, 4)));
    INERT(tg_lease, MEMORY, "for buffer \"huge\"", tg_lease(b->t, "huge", TG_U8, TG_SHAPE((int64_t)1 << 60)));
    GIVES(tg_lease, STATE, "is still open", leased_twice(b));
}

static void symmetric(misuse_world *b) {
    const tg_shape one = TG_SHAPE(1), minus = TG_SHAPE(-1);
    const tg_dtype f32 = TG_F32, none = (tg_dtype)99;
    tg_comm *c = tg_comm_self_new(b->ctx);
    tg_symmetric *s = tg_symmetric_new(c, 64);
    tg_tensor *x = b->x;
    QUIET(tg_symmetric_new, !tg_symmetric_new(NULL, 64));
    GIVES(tg_symmetric_new, ARGUMENT, "expected at most", !tg_symmetric_new(c, SIZE_MAX));
    QUIET(tg_symmetric_free, (tg_symmetric_free(NULL), true));
    QUIET(tg_symmetric_take, !tg_symmetric_take(NULL, b->t, &f32, &one, 1, &x) && misuse_inert(x));
    QUIET(tg_symmetric_take, !tg_symmetric_take(s, NULL, &f32, &one, 1, &x) && misuse_inert(x));
    GIVES(tg_symmetric_take, HANDLE, "freed", !tg_symmetric_take(s, b->freed, &f32, &one, 1, &x));
    GIVES(tg_symmetric_take, ARGUMENT, "n is -1, expected 0 or more", !tg_symmetric_take(s, b->t, &f32, &one, -1, &x));
    GIVES(tg_symmetric_take, ARGUMENT, "must not be NULL", !tg_symmetric_take(s, b->t, NULL, &one, 1, &x));
    GIVES(tg_symmetric_take, SHAPE, "dim 0 is -1", !tg_symmetric_take(s, b->t, &f32, &minus, 1, &x));
    GIVES(tg_symmetric_take, DTYPE, "expected one of", !tg_symmetric_take(s, b->t, &none, &one, 1, &x));
    tg_symmetric_free(s);
    tg_comm_free(c);
}

/* ---- Recomputation ---- */

static int ended;
static void count_end(void *state) {
    (void)state;
    ended++;
}

static tg_status negate(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_neg(t, in[0]);
    return TG_OK;
}

static tg_status refuses(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)t, (void)in, (void)n_in, (void)out, (void)n_out;
    return TG_ERR_DATA;
}

static tg_status leaves_out(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)t, (void)in, (void)n_in, (void)n_out;
    out[0] = NULL;
    return TG_OK;
}

/* A failed call gives inert outputs and ends the state exactly once. */
static bool recompute(misuse_world *b, tg_tape *t, tg_fn fn, tg_tensor *const *in, int n_in, int n_out,
                      const tg_recompute_opts *opts) {
    tg_tensor *y = b->x;
    int state;
    ended = 0;
    tg_status s = tg_recompute(t, fn, &state, in, n_in, &y, n_out, opts);
    return s != TG_OK && (n_out < 1 || n_out > 65535 || misuse_inert(y)) && ended == (opts && opts->destroy);
}

static void recomputation(misuse_world *b) {
    tg_recompute_opts zero = {0}, later = {.size = sizeof later + 8};
    const tg_recompute_opts *opts = TG_RECOMPUTE(.destroy = count_end);
    tg_tensor *const *x = &b->x;
    tg_tensor *const none = NULL;
    GIVES(tg_recompute, ARGUMENT, "the tape is NULL", recompute(b, NULL, negate, x, 1, 1, opts));
    GIVES(tg_recompute, HANDLE, "freed", recompute(b, b->freed, negate, x, 1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "expected a function", recompute(b, b->t, NULL, x, 1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "n_in is -1 ", recompute(b, b->t, negate, x, -1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "n_in is 65536 ", recompute(b, b->t, negate, x, 65536, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "n_out is 0;", recompute(b, b->t, negate, x, 1, 0, opts));
    GIVES(tg_recompute, ARGUMENT, "n_out is 65536;", recompute(b, b->t, negate, x, 1, 65536, opts));
    GIVES(tg_recompute, ARGUMENT, "n_out is -2;", recompute(b, b->t, negate, x, 1, -2, opts));
    GIVES(tg_recompute, ARGUMENT, "with their arrays", recompute(b, b->t, negate, NULL, 1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "the tensor is NULL", recompute(b, b->t, negate, &none, 1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "size is 0", recompute(b, b->t, negate, x, 1, 1, &zero));
    GIVES(tg_recompute, ARGUMENT, "this library knows", recompute(b, b->t, negate, x, 1, 1, &later));
    FAILS(tg_recompute, ARGUMENT, "with their arrays", tg_recompute(b->t, negate, NULL, x, 1, NULL, 1, NULL));
    GIVES(tg_recompute, HANDLE, "tg_tape_input", recompute(b, b->t, negate, &b->elsewhere, 1, 1, opts));
    GIVES(tg_recompute, HANDLE, "another context", recompute(b, b->t, negate, &b->foreign, 1, 1, opts));
    GIVES(tg_recompute, CALLBACK, "the function failed with TG_ERR_DATA", recompute(b, b->t, refuses, x, 1, 1, opts));
    GIVES(tg_recompute, ARGUMENT, "NULL", recompute(b, b->t, leaves_out, x, 1, 1, opts));
    GIVES(tg_recompute, DISCARDED, "tg_discard", recompute(b, b->t, negate, &b->gone, 1, 1, opts));
    EACH_DEAD(dead) GIVES(tg_recompute, HANDLE, "the tensor", recompute(b, b->t, negate, &dead, 1, 1, opts));
}

static bool replayed(misuse_world *b, tg_replay *r, tg_fn fn, tg_tensor *const *in, int n_in, int n_out,
                     const tg_recompute_opts *opts) {
    tg_tensor *y = b->x;
    int state;
    ended = 0;
    tg_status s = tg_replay_run(r, fn, &state, in, n_in, &y, n_out, opts);
    return s != TG_OK && (n_out < 1 || n_out > 65535 || misuse_inert(y)) && ended == (opts && opts->destroy);
}

static void replays(misuse_world *b) {
    tg_recompute_opts zero = {0};
    const tg_recompute_opts *opts = TG_RECOMPUTE(.destroy = count_end);
    tg_tensor *const *in = &b->x;
    tg_replay *r = tg_replay_open(b->t), *closed = tg_replay_open(b->t);
    tg_replay_close(closed, NULL);
    QUIET(tg_replay_open, !tg_replay_open(NULL));
    GIVES(tg_replay_open, HANDLE, "freed", !tg_replay_open(b->freed));
    GIVES(tg_replay_open, HANDLE, "could not be made", !tg_replay_open(b->inert_t));
    QUIET(tg_replay_run, replayed(b, NULL, negate, in, 1, 1, NULL));
    GIVES(tg_replay_run, ARGUMENT, "expected a function", replayed(b, r, NULL, in, 1, 1, opts));
    GIVES(tg_replay_run, ARGUMENT, "n_out is 0;", replayed(b, r, negate, in, 1, 0, opts));
    GIVES(tg_replay_run, ARGUMENT, "n_out is 65536;", replayed(b, r, negate, in, 1, 65536, opts));
    GIVES(tg_replay_run, ARGUMENT, "with their arrays", replayed(b, r, negate, NULL, 1, 1, opts));
    GIVES(tg_replay_run, ARGUMENT, "size is 0", replayed(b, r, negate, in, 1, 1, &zero));
    GIVES(tg_replay_run, HANDLE, "tg_replay_run: input 0 is a result of another tape",
          replayed(b, r, negate, &b->elsewhere, 1, 1, opts));
    GIVES(tg_replay_run, CALLBACK, "the function failed with TG_ERR_DATA", replayed(b, r, refuses, in, 1, 1, opts));
    GIVES(tg_replay_run, STATE, "tg_replay_run: the replay is closed", replayed(b, closed, negate, in, 1, 1, opts));
    EACH_DEAD(dead) GIVES(tg_replay_run, HANDLE, "the tensor", replayed(b, r, negate, &dead, 1, 1, opts));
    QUIET(tg_replay_close, tg_replay_close(NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_replay_close, STATE, "tg_replay_close: the replay is closed", tg_replay_close(closed, NULL));
    FAILS(tg_replay_close, HANDLE, "not of the replay's tape", tg_replay_close(r, b->w));
    FAILS(tg_replay_close, HANDLE, "another context", tg_replay_close(r, b->foreign));
    DEAD_STATUS(tg_replay_close, tg_replay_close(r, x));
}

/* By then the tape's memory has been reused. */
static tg_replay *ended_replay(misuse_world *b, tg_tape *t, int steps) {
    for (int i = 0; i < steps; i++) tg_tape_reset(t);
    tg_replay *r = tg_replay_open(t);
    tg_tensor *y;
    tg_replay_run(r, negate, NULL, &b->w, 1, &y, 1, NULL);
    tg_replay_close(r, NULL);
    tg_tape_reset(t);
    tg_replay_open(t);
    for (int i = 0; i < 99; i++) tg_square(t, b->w);
    return r;
}

static void ended_replays(misuse_world *b) {
    tg_tensor *const *in = &b->x;
    for (int odd = 0; odd < 2; odd++) {
        tg_tape *t = tg_tape_new(b->ctx);
        tg_replay *r = ended_replay(b, t, odd);
        GIVES(tg_replay_run, HANDLE, "the replay ended with its step", replayed(b, r, negate, in, 1, 1, NULL));
        FAILS(tg_replay_close, HANDLE, "the replay ended with its step", tg_replay_close(r, NULL));
        tg_tape_free(t);
        GIVES(tg_replay_run, HANDLE, "freed", replayed(b, r, negate, in, 1, 1, NULL));
        FAILS(tg_replay_close, HANDLE, "freed", tg_replay_close(r, NULL));
    }
}

/* ---- Queries ---- */

static void looking(misuse_world *b) {
    char buf[8] = "kept";
    const tg_node *n = tg_node_of(b->r);
    QUIET(tg_tape_dump, tg_tape_dump(NULL, TG_TEXT, buf, sizeof buf) == 0 && !*buf);
    QUIET(tg_tape_dump, tg_tape_dump(b->freed, TG_TEXT, buf, sizeof buf) == 0 &&
                            tg_tape_dump(b->inert_t, TG_JSON, buf, sizeof buf) == 0);
    QUIET(tg_tape_dump, tg_tape_dump(b->t, TG_TEXT, NULL, 100) > 100 && tg_tape_dump(b->t, TG_JSON, NULL, 100) > 100);
    QUIET(tg_tape_dump, tg_tape_dump(b->t, TG_JSON, buf, 3) > 3 && !buf[2]);
    GIVES(tg_tape_dump, ARGUMENT, "format 7, expected TG_TEXT, TG_JSON or TG_DOT",
          tg_tape_dump(b->t, (tg_format)7, buf, sizeof buf) == 0);
    QUIET(tg_tape_nodes, tg_tape_nodes(NULL) == 0 && tg_tape_nodes(b->freed) == 0 && tg_tape_nodes(b->inert_t) == 0);
    QUIET(tg_tape_node, !tg_tape_node(NULL, 0) && !tg_tape_node(b->freed, 0) && !tg_tape_node(b->t, -1));
    QUIET(tg_tape_node, !tg_tape_node(b->t, tg_tape_nodes(b->t)) && !tg_tape_node(b->t, INT64_MAX));
    DEAD_QUIET(tg_node_of, !tg_node_of(x) && !tg_node_of(NULL) && !tg_node_of(b->x));
    QUIET(tg_node_op, !tg_node_op(NULL));
    QUIET(tg_node_inputs, tg_node_inputs(NULL) == 0);
    QUIET(tg_node_outputs, tg_node_outputs(NULL) == 0);
    QUIET(tg_node_input, !tg_node_input(NULL, 0) && !tg_node_input(n, -1) && !tg_node_input(n, 1));
    QUIET(tg_node_output, !tg_node_output(NULL, 0) && !tg_node_output(n, -1) && !tg_node_output(n, 1));
    QUIET(tg_node_params, !tg_node_params(NULL));
    QUIET(tg_node_flops, tg_node_flops(NULL) == 0);
    QUIET(tg_node_saved_bytes, tg_node_saved_bytes(NULL) == 0);
    QUIET(tg_node_site, tg_node_site(NULL, buf, sizeof buf) == 0 && !*buf);
    QUIET(tg_node_site, tg_node_site(n, NULL, 9) > 0 && tg_node_site(n, buf, 2) > 2 && !buf[1]);
}

void misuse_tape(misuse_world *b) {
    tapes(b);
    inputs(b);
    scopes(b);
    discards(b);
    leases(b);
    symmetric(b);
    recomputation(b);
    replays(b);
    ended_replays(b);
    looking(b);
}
