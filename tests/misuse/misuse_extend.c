/* Functions for writers of ops, devices and communicators: formulas, workspaces, tg_apply, the functions of a call,
 * works, discards with a refill, the op table. */
#include "misuse/misuse.h"

#include <tapegrad/backward.h>
#include <tapegrad/op.h>
#include <tapegrad/ops.h>

/* ---- Formulas, devices, workspaces ---- */

static bool new_on(const tg_device_ops *ops, const char *says) {
    tg_ctx *ctx = tg_ctx_new_on(ops, TG_CONFIG(.threads = 1));
    bool good = tg_ctx_status(ctx) == TG_ERR_ARGUMENT && strstr(tg_ctx_message(ctx), says);
    tg_ctx_free(ctx);
    return good;
}

static void *no_memory(void *user, size_t bytes, size_t align) {
    return (void)user, (void)bytes, (void)align, NULL;
}

static void frees_nothing(void *user, void *p, size_t bytes) { (void)user, (void)p, (void)bytes; }

static void count_range(void *arg, int64_t begin, int64_t end) { *(int64_t *)arg += end - begin; }

static bool runs_alone(tg_ctx *ctx) {
    int64_t n = 0;
    tg_parallel_run(ctx, 4, count_range, &n);
    return n == 4 && !tg_workspace(ctx, 0, 64);
}

static tg_status copies_nothing(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **e) {
    return (void)ctx, (void)dst, (void)src, (void)bytes, (void)kind, (void)e, TG_OK;
}

static void devices(misuse_world *b) {
    const double in[4] = {0};
    tg_device_ops lacks = *tg_ctx_ops(b->ctx), small = lacks, later = lacks, copies = lacks;
    lacks.gemm = NULL;
    copies.copy_async = copies_nothing;
    small.size = 0;
    later.size += 8;
    QUIET(tg_formula_count, tg_formula_count() > 0);
    QUIET(tg_formula_name,
          strcmp(tg_formula_name(-1), "?") == 0 && strcmp(tg_formula_name(tg_formula_count()), "?") == 0);
    QUIET(tg_formula_inputs, tg_formula_inputs(-1) == 0 && tg_formula_inputs(INT32_MAX) == 0);
    QUIET(tg_formula_eval,
          isnan(tg_formula_eval(-1, in, NULL)) && isnan(tg_formula_eval(tg_formula_count(), in, NULL)));
    QUIET(tg_formula_eval, isnan(tg_formula_eval(0, NULL, NULL)));
    QUIET(tg_ctx_new_on, new_on(NULL, "the device table is NULL"));
    QUIET(tg_ctx_new_on, new_on(&lacks, "lacks a required slot"));
    QUIET(tg_ctx_new_on, new_on(&copies, "lacks a slot that copy_async needs"));
    QUIET(tg_ctx_new_on, new_on(&small, "size is 0"));
    QUIET(tg_ctx_new_on, new_on(&later, "this library knows"));
    tg_ctx *named = tg_ctx_new_on(tg_ctx_ops(b->ctx), TG_CONFIG(.device = "cpu", .threads = 1));
    QUIET(tg_ctx_new_on, tg_ctx_status(named) == TG_ERR_ARGUMENT && strstr(tg_ctx_message(named), "leave it NULL"));
    tg_ctx *threads = tg_ctx_new_on(tg_ctx_ops(b->ctx), TG_CONFIG(.threads = -5));
    QUIET(tg_ctx_new_on, strstr(tg_ctx_message(threads), "tg_ctx_new_on: threads is -5") != NULL);
    tg_ctx_free(threads);
    QUIET(tg_parallel_run, runs_alone(named));
    tg_ctx_free(named);
    tg_ctx *none = tg_ctx_new(TG_CONFIG(.allocator = {.alloc = no_memory, .free = frees_nothing}));
    QUIET(tg_parallel_run, runs_alone(none));
    tg_ctx_free(none);
    QUIET(tg_ctx_ops, !tg_ctx_ops(NULL));
    QUIET(tg_ctx_device_state, !tg_ctx_device_state(NULL));
    QUIET(tg_parallel_run, (tg_parallel_run(NULL, 4, NULL, NULL), tg_parallel_run(b->ctx, -1, NULL, NULL), true));
    GIVES(tg_parallel_run, ARGUMENT, "body is NULL", (tg_parallel_run(b->ctx, 4, NULL, NULL), true));
    QUIET(tg_workspace, !tg_workspace(NULL, 0, 64));
    GIVES(tg_workspace, ARGUMENT, "block -1, expected 0 to 7", !tg_workspace(b->ctx, -1, 64));
    GIVES(tg_workspace, ARGUMENT, "block 8, expected 0 to 7", !tg_workspace(b->ctx, TG_WORKSPACES, 64));
    GIVES(tg_workspace, MEMORY, "workspace", !tg_workspace(b->ctx, 0, SIZE_MAX));
    GIVES(tg_workspace, MEMORY, "workspace", !tg_workspace(b->ctx, 0, SIZE_MAX / 9 * 8 + 8));
    DEAD_QUIET(tg_array_of, !tg_array_of(x).data && !tg_array_of(x).shape && !tg_array_of(NULL).data);
    QUIET(tg_array_of, !tg_array_of(b->gone).data && tg_array_of(b->gone).numel == 6);
}

/* ---- An op whose functions are those of the row ---- */

typedef tg_status (*call_fn)(tg_call *c);
typedef struct probe {
    call_fn infer, forward, backward;
    int ended;
} probe;

static tg_status same(tg_call *c) { return tg_call_out(c, 0, TG_F32, 2, tg_array_of(c->input[0]).shape); }

static tg_status probe_infer(tg_call *c) {
    const probe *p = c->state;
    return p && p->infer ? p->infer(c) : same(c);
}

static tg_status probe_forward(tg_call *c) {
    const probe *p = c->state;
    if (p && p->forward) return p->forward(c);
    return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 1);
}

static tg_status probe_backward(tg_call *c) {
    const probe *p = c->state;
    if (p && p->backward) return p->backward(c);
    return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->gin[0]), 1);
}

static void probe_end(void *state) { ((probe *)state)->ended++; }

static const tg_op probe_op = {.size = sizeof(tg_op), .name = "probe", .n_in = 1, .n_out = 1, .infer = probe_infer,
                               .forward = probe_forward, .backward = probe_backward};

/* Records the op on w, or on a result of w, and runs its backward. The state must end exactly once, and the output of a
 * refused op be inert. */
static bool probes_on(misuse_world *b, const tg_op *op, probe p, bool result) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = b->x, *in[] = {result ? tg_neg(t, b->w) : b->w};
    bool good = true;
    if (tg_apply(t, op, NULL, in, 1, &y, 1, &p, probe_end, TG_SITE) != TG_OK)
        good = misuse_inert(y);
    else
        good = tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &b->x)) != TG_OK;
    tg_tape_free(t);
    if (tg_ctx_status(b->ctx) == TG_OK) tg_zero_grad(b->w);
    return good && p.ended == 1;
}

static bool probes(misuse_world *b, const tg_op *op, probe p) { return probes_on(b, op, p, false); }

static const int64_t two[] = {2, 3}, minus[] = {2, -3}, huge[] = {INT64_MAX, 4}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
static const int64_t rows[] = {3, 1}, back[] = {-3, 1}, wide[] = {INT64_MAX / 2, 1};

/* Returns TG_OK for a tensor, or the call's error. */
static tg_status made(tg_call *c, const tg_tensor *x) { return misuse_inert(x) ? tg_ctx_status(c->ctx) : TG_OK; }

#define CALL(name, expr) \
    static tg_status name(tg_call *c) { return expr; }
CALL(out_beyond, tg_call_out(c, 1, TG_F32, 2, two))
CALL(out_before, tg_call_out(c, -1, TG_F32, 2, two))
CALL(out_twice, (same(c), same(c)))
CALL(out_never, tg_ctx_status(c->ctx))
CALL(out_minus, tg_call_out(c, 0, TG_F32, 2, minus))
CALL(out_huge, tg_call_out(c, 0, TG_F32, 2, huge))
CALL(out_nine, tg_call_out(c, 0, TG_F32, 9, nine))
CALL(out_no_dims, tg_call_out(c, 0, TG_F32, -1, nine))
CALL(out_null, tg_call_out(c, 0, TG_F32, 2, NULL))
CALL(out_dtype, tg_call_out(c, 0, (tg_dtype)99, 2, two))
CALL(outputs_fixed, tg_call_outputs(c, 1))
CALL(outputs_minus, tg_call_outputs(c, -1))
CALL(outputs_many, tg_call_outputs(c, 2))
CALL(outputs_late, (same(c), tg_call_outputs(c, 0)))
CALL(view_beyond, tg_call_view(c, 1, 0, 2, two, rows))
CALL(view_outside, tg_call_view(c, 0, 1, 2, two, rows))
CALL(view_before, tg_call_view(c, 0, -1, 2, two, rows))
CALL(view_back, tg_call_view(c, 0, 0, 2, two, back))
CALL(view_wide, tg_call_view(c, 0, 0, 2, two, wide))
CALL(view_nine, tg_call_view(c, 0, 0, 9, nine, nine))
CALL(view_null, tg_call_view(c, 0, 0, 2, two, NULL))
CALL(save_order, (same(c), tg_call_save(c, 1, TG_F32, 2, two)))
CALL(save_minus, (same(c), tg_call_save(c, 0, TG_F32, 2, minus)))
CALL(save_nine, (same(c), tg_call_save(c, 0, TG_F32, 9, nine)))
CALL(save_dtype, (same(c), tg_call_save(c, 0, TG_F4E2M1, 2, two)))
CALL(temp_minus, made(c, tg_call_temp(c, TG_F32, 2, minus)))
CALL(temp_nine, made(c, tg_call_temp(c, TG_F32, 9, nine)))
CALL(temp_huge, made(c, tg_call_temp(c, TG_F32, 2, huge)))
CALL(temp_dtype, made(c, tg_call_temp(c, (tg_dtype)-1, 2, two)))
CALL(draw_minus, (tg_call_draw(c, -1), tg_ctx_status(c->ctx)))
CALL(draws_of_none, (tg_call_draws(c, NULL), tg_ctx_status(c->ctx)))
CALL(draws_and_fails, (tg_call_draw(c, 100), TG_ERR_DATA))
CALL(fail_ok, tg_call_fail(c, TG_OK, "%s", "odd"))
CALL(fail_data, tg_call_fail(c, TG_ERR_DATA, "row %d", 3))
CALL(gin_early, made(c, tg_call_gin(c, 0)))
CALL(pass_early, tg_call_pass(c, 0, c->input[0]))
CALL(gin_beyond, made(c, tg_call_gin(c, 1)))
CALL(gin_before, made(c, tg_call_gin(c, -1)))
CALL(pass_beyond, tg_call_pass(c, 1, c->gout[0]))
CALL(pass_null, tg_call_pass(c, 0, NULL))
CALL(pass_dead, tg_call_pass(c, 0, tg_call_gin(c, 7)))
CALL(pass_twice, (tg_call_pass(c, 0, c->gout[0]), tg_call_pass(c, 0, c->gout[0])))
CALL(gin_passed, (tg_call_pass(c, 0, c->gout[0]), made(c, tg_call_gin(c, 0))))
CALL(in_flight_passed, (tg_call_pass(c, 0, c->gout[0]), tg_call_in_flight(c, 0, c->gout[0], NULL)))
CALL(view_of_outside, made(c, tg_call_view_of(c, c->gout[0], 4, 2, two, rows)))
CALL(view_of_null, made(c, tg_call_view_of(c, NULL, 0, 2, two, rows)))
CALL(view_of_nine, made(c, tg_call_view_of(c, c->gout[0], 0, 9, nine, nine)))
CALL(in_flight_null, tg_call_in_flight(c, 0, c->gout[0], NULL))

static tg_status pass_shape(tg_call *c) {
    const int64_t six[] = {6}, one[] = {1};
    return tg_call_pass(c, 0, tg_call_view_of(c, c->gout[0], 0, 1, six, one));
}

static tg_status pass_dtype(tg_call *c) { return tg_call_pass(c, 0, tg_call_temp(c, TG_F64, 2, two)); }

static void calls_of_infer(misuse_world *b) {
    tg_op variadic = probe_op;
    variadic.n_out = -1;
#define INFER(symbol, code, says, fn) GIVES(symbol, code, says, probes(b, &probe_op, (probe){.infer = fn}))
    INFER(tg_call_out, INTERNAL, "makes output 1, but the call has 1 output", out_beyond);
    INFER(tg_call_out, INTERNAL, "makes output -1, but", out_before);
    INFER(tg_call_out, INTERNAL, "makes output 0, but the call has 1 output, each to be made once", out_twice);
    INFER(tg_call_out, INTERNAL, "made no output 0", out_never);
    INFER(tg_call_out, SHAPE, "dim 1 is -3, expected 0 or more", out_minus);
    INFER(tg_call_out, SHAPE, "overflows", out_huge);
    INFER(tg_call_out, SHAPE, "9 dims, expected 0 to 8", out_nine);
    INFER(tg_call_out, SHAPE, "-1 dims, expected 0 to 8", out_no_dims);
    INFER(tg_call_out, ARGUMENT, "the shape is NULL", out_null);
    INFER(tg_call_out, DTYPE, "expected one of", out_dtype);
    INFER(tg_call_outputs, ARGUMENT, "the op always has 1 output", outputs_fixed);
    GIVES(tg_call_outputs, ARGUMENT, "sets -1 outputs, but the call has room for 1",
          probes(b, &variadic, (probe){.infer = outputs_minus}));
    GIVES(tg_call_outputs, ARGUMENT, "sets 2 outputs, but the call has room for 1",
          probes(b, &variadic, (probe){.infer = outputs_many}));
    GIVES(tg_call_outputs, ARGUMENT, "sets 0 outputs, but has made output 0",
          probes(b, &variadic, (probe){.infer = outputs_late}));
    INFER(tg_call_view, INTERNAL, "makes output 1, but the call has 1 output", view_beyond);
    INFER(tg_call_view, SHAPE, "outside the bytes", view_outside);
    INFER(tg_call_view, SHAPE, "outside the bytes", view_before);
    INFER(tg_call_view, SHAPE, "outside the bytes", view_back);
    INFER(tg_call_view, SHAPE, "outside the bytes", view_wide);
    INFER(tg_call_view, SHAPE, "9 dims", view_nine);
    INFER(tg_call_view, ARGUMENT, "NULL", view_null);
    INFER(tg_call_save, INTERNAL, "declared in order", save_order);
    INFER(tg_call_save, SHAPE, "dim 1 is -3", save_minus);
    INFER(tg_call_save, SHAPE, "9 dims", save_nine);
    INFER(tg_call_save, DTYPE, "expected one of", save_dtype);
    INFER(tg_call_temp, SHAPE, "dim 1 is -3", temp_minus);
    INFER(tg_call_temp, SHAPE, "9 dims", temp_nine);
    INFER(tg_call_temp, SHAPE, "overflows", temp_huge);
    INFER(tg_call_temp, DTYPE, "expected one of", temp_dtype);
    INFER(tg_call_draw, ARGUMENT, "n is -1, expected 0 or more", draw_minus);
    INFER(tg_call_draws, ARGUMENT, "the tensor is NULL", draws_of_none);
    INFER(tg_call_draw, DATA, "refused the call with TG_ERR_DATA", draws_and_fails);
    QUIET(tg_call_out_in_flight, tg_call_out_in_flight(NULL, 0, NULL) == TG_ERR_ARGUMENT);
    INFER(tg_call_fail, INTERNAL, "probe: odd", fail_ok);
    INFER(tg_call_fail, DATA, "probe: row 3 (op probe of w f32[2, 3], called from", fail_data);
    INFER(tg_call_gin, STATE, "in a backward", gin_early);
    INFER(tg_call_pass, STATE, "in a backward", pass_early);
#undef INFER
    GIVES(tg_call_fail, DATA, "probe: row 3", probes(b, &probe_op, (probe){.forward = fail_data}));
}

static void calls_of_backward(misuse_world *b) {
#define BACKWARD(symbol, code, says, fn) GIVES(symbol, code, says, probes(b, &probe_op, (probe){.backward = fn}))
    BACKWARD(tg_call_gin, ARGUMENT, "the input is 1, expected 0 to 0", gin_beyond);
    BACKWARD(tg_call_gin, ARGUMENT, "the input is -1, expected 0 to 0", gin_before);
    BACKWARD(tg_call_pass, ARGUMENT, "the input is 1, expected 0 to 0", pass_beyond);
    BACKWARD(tg_call_pass, ARGUMENT, "the tensor is NULL", pass_null);
    BACKWARD(tg_call_pass, ARGUMENT, "the input is 7, expected 0 to 0", pass_dead);
    BACKWARD(tg_call_pass, SHAPE, "f32[6], expected w f32[2, 3]", pass_shape);
    BACKWARD(tg_call_pass, DTYPE, "f64[2, 3], expected w f32[2, 3]", pass_dtype);
    BACKWARD(tg_call_pass, STATE, "already given the gradient of input 0", pass_twice);
    BACKWARD(tg_call_gin, STATE, "already given the gradient of input 0", gin_passed);
    BACKWARD(tg_call_in_flight, STATE, "already given the gradient of input 0", in_flight_passed);
    BACKWARD(tg_call_view_of, SHAPE, "outside the bytes", view_of_outside);
    BACKWARD(tg_call_view_of, ARGUMENT, "the tensor is NULL", view_of_null);
    BACKWARD(tg_call_view_of, SHAPE, "9 dims", view_of_nine);
    BACKWARD(tg_call_in_flight, ARGUMENT, "the work is NULL", in_flight_null);
    BACKWARD(tg_call_fail, DATA, "in the backward of op probe, called from", fail_data);
#undef BACKWARD
    GIVES(tg_call_pass, STATE, "already given the gradient of input 0",
          probes_on(b, &probe_op, (probe){.backward = pass_twice}, true));
    QUIET(tg_call_out, tg_call_out(NULL, 0, TG_F32, 2, two) == TG_ERR_ARGUMENT);
    QUIET(tg_call_outputs, tg_call_outputs(NULL, 1) == TG_ERR_ARGUMENT);
    QUIET(tg_call_view, tg_call_view(NULL, 0, 0, 2, two, rows) == TG_ERR_ARGUMENT);
    QUIET(tg_call_save, tg_call_save(NULL, 0, TG_F32, 2, two) == TG_ERR_ARGUMENT);
    QUIET(tg_call_draw, tg_call_draw(NULL, 1).seed == 0);
    QUIET(tg_call_draws, tg_call_draws(NULL, b->x).n == 0);
    QUIET(tg_draw_number, tg_draw_number(NULL, 7) == 0);
    QUIET(tg_call_fail, tg_call_fail(NULL, TG_ERR_DATA, "lost") == TG_ERR_ARGUMENT);
    QUIET(tg_call_temp, misuse_inert(tg_call_temp(NULL, TG_F32, 2, two)));
    QUIET(tg_call_pass, tg_call_pass(NULL, 0, b->x) == TG_ERR_ARGUMENT);
    QUIET(tg_call_gin, misuse_inert(tg_call_gin(NULL, 0)));
    QUIET(tg_call_view_of, misuse_inert(tg_call_view_of(NULL, b->x, 0, 2, two, rows)));
    QUIET(tg_call_in_flight, tg_call_in_flight(NULL, 0, b->x, NULL) == TG_ERR_ARGUMENT);
}

/* ---- tg_apply ---- */

static bool applies(misuse_world *b, tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in,
                    int n_out) {
    probe p = {0};
    tg_tensor *y[2] = {b->x, b->x};
    tg_status s = tg_apply(t, op, params, in, n_in, y, n_out, &p, probe_end, NULL);
    return s != TG_OK && p.ended == 1 && (n_out < 1 || n_out > 2 || misuse_inert(y[0]));
}

static void apply(misuse_world *b) {
    tg_op size = probe_op, later = probe_op, name = probe_op, infer = probe_op, params = probe_op, inplace = probe_op;
    tg_tensor *const *in = &b->x, *none = NULL;
    tg_tensor *y;
    size.size = 0;
    later.size += 8;
    name.name = NULL;
    infer.infer = NULL;
    params.params_size = 8;
    inplace.inplace = true;
    inplace.optional = 1;
    GIVES(tg_apply, ARGUMENT, "the tape is NULL", applies(b, NULL, &probe_op, NULL, in, 1, 1));
    QUIET(tg_apply, applies(b, NULL, &probe_op, NULL, &none, 1, 1));
    GIVES(tg_apply, HANDLE, "freed", applies(b, b->freed, &probe_op, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "the op is NULL", applies(b, b->t, NULL, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "size is 0", applies(b, b->t, &size, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "this library knows", applies(b, b->t, &later, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "a name, and infer or compose", applies(b, b->t, &name, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "a name, and infer or compose", applies(b, b->t, &infer, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "params are NULL, expected 8 bytes", applies(b, b->t, &params, NULL, in, 1, 1));
    GIVES(tg_apply, ARGUMENT, "the array of inputs is NULL", applies(b, b->t, &probe_op, NULL, NULL, 1, 1));
    GIVES(tg_apply, ARGUMENT, "0 inputs, expected 1", applies(b, b->t, &probe_op, NULL, in, 0, 1));
    GIVES(tg_apply, ARGUMENT, "2 inputs, expected 1", applies(b, b->t, &probe_op, NULL, in, 2, 1));
    GIVES(tg_apply, ARGUMENT, "-1 inputs", applies(b, b->t, &probe_op, NULL, in, -1, 1));
    GIVES(tg_apply, ARGUMENT, "room for 2 outputs, expected 1", applies(b, b->t, &probe_op, NULL, in, 1, 2));
    GIVES(tg_apply, ARGUMENT, "room for -1 outputs", applies(b, b->t, &probe_op, NULL, in, 1, -1));
    GIVES(tg_apply, ARGUMENT, "room for 70000 outputs", applies(b, b->t, &probe_op, NULL, in, 1, 70000));
    FAILS(tg_apply, ARGUMENT, "the array of outputs is NULL",
          tg_apply(b->t, &probe_op, NULL, in, 1, NULL, 1, NULL, NULL, NULL));
    GIVES(tg_apply, ARGUMENT, "input 0: the tensor is NULL", applies(b, b->t, &probe_op, NULL, &none, 1, 1));
    GIVES(tg_apply, ARGUMENT, "input 0", applies(b, b->t, &inplace, NULL, &none, 1, 1));
    GIVES(tg_apply, HANDLE, "another context", applies(b, b->t, &probe_op, NULL, &b->foreign, 1, 1));
    OP(tg_apply, (tg_apply(t, &probe_op, NULL, &x, 1, &y, 1, NULL, NULL, NULL), y));
}

/* ---- Works, discards, the table ---- */

static tg_status done(tg_ctx *ctx, void *self) {
    (void)ctx, (void)self;
    return TG_OK;
}

static tg_status broken(tg_ctx *ctx, void *self) {
    (void)ctx, (void)self;
    return TG_ERR_IO;
}

static tg_status refill(void *user, tg_ctx *ctx, void *dst, size_t bytes) {
    (void)user, (void)ctx;
    memset(dst, 0, bytes);
    return TG_OK;
}

static void count(void *user) { ++*(int *)user; }

/* If a tensor cannot be discarded, the user state is freed at once and exactly once. */
static bool discards(tg_tensor *x, bool with_refill) {
    int ended = 0;
    return tg_discard_with(x, with_refill ? refill : NULL, count, &ended) != TG_OK && ended == 1;
}

static tg_status pack(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    (void)user, (void)t, (void)x, (void)packed;
    return TG_OK;
}

static tg_status unpack(void *user, void *packed, tg_tensor *x) {
    (void)user, (void)packed, (void)x;
    return TG_OK;
}

static void packers(misuse_world *b) {
    const tg_pack_ops good = *TG_PACK_OPS(.pack = pack, .unpack = unpack), sizeless = {.pack = pack, .unpack = unpack};
    QUIET(tg_tape_pack, tg_tape_pack(NULL, &good) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_pack, HANDLE, "freed", tg_tape_pack(b->freed, &good));
    FAILS(tg_tape_pack, ARGUMENT, "the struct's size is 0", tg_tape_pack(b->t, &sizeless));
    FAILS(tg_tape_pack, ARGUMENT, "pack or unpack of the packer", tg_tape_pack(b->t, TG_PACK_OPS(.pack = pack)));
    FAILS(tg_tape_pack, ARGUMENT, "pack or unpack of the packer", tg_tape_pack(b->t, TG_PACK_OPS(.unpack = unpack)));
    QUIET(tg_pack, tg_pack(NULL) == TG_ERR_ARGUMENT);
    DEAD_STATUS(tg_pack, tg_pack(x));
}

static void works(misuse_world *b) {
    const tg_work_ops good = {.size = sizeof good, .wait = done}, no_wait = {.size = sizeof good},
                      small = {.wait = done};
    const tg_work_ops later = {.size = sizeof good + 8, .wait = done},
                      bad = {.size = sizeof bad, .name = "radio", .wait = broken};
    static float data[2];
    tg_tensor *wrapped = tg_wrap(b->ctx, TG_F32, TG_SHAPE(2), NULL, data, NULL, NULL);
    tg_tensor *saved = tg_exp(b->t, b->w), *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    QUIET(tg_work_new, !tg_work_new(NULL, &good, NULL));
    GIVES(tg_work_new, ARGUMENT, "the table is NULL", !tg_work_new(b->ctx, NULL, NULL));
    GIVES(tg_work_new, ARGUMENT, "wait", !tg_work_new(b->ctx, &no_wait, NULL));
    GIVES(tg_work_new, ARGUMENT, "size is 0", !tg_work_new(b->ctx, &small, NULL));
    GIVES(tg_work_new, ARGUMENT, "this library knows", !tg_work_new(b->ctx, &later, NULL));
    QUIET(tg_work_test, tg_work_test(NULL));
    QUIET(tg_work_wait, tg_work_wait(NULL) == TG_ERR_ARGUMENT);
    GIVES(tg_work_wait, IO, "waiting for radio failed with TG_ERR_IO",
          tg_work_wait(tg_work_new(b->ctx, &bad, NULL)) != TG_OK);
    DEAD_QUIET(tg_storage_state_of,
               tg_storage_state_of(x) == TG_DISCARDED && tg_storage_state_of(NULL) == TG_DISCARDED);
    QUIET(tg_discard_with, discards(NULL, true));
    GIVES(tg_discard_with, ARGUMENT, "refill is NULL", discards(b->x, false));
    GIVES(tg_discard_with, STATE, "parameter", discards(p, true));
    GIVES(tg_discard_with, STATE, "belongs to the caller", discards(wrapped, true));
    GIVES(tg_discard_with, STATE, "has saved the tensor", discards(saved, true));
    EACH_DEAD(x) GIVES(tg_discard_with, HANDLE, "the tensor", discards(x, true));
    tg_drop(wrapped);
    tg_drop(p);
    packers(b);
}

static void table(misuse_world *b) {
    QUIET(tg_op_count, tg_op_count() > 0);
    QUIET(tg_op_at, !tg_op_at(-1) && !tg_op_at(tg_op_count()) && !tg_op_at(INT32_MIN));
    QUIET(tg_op_find, !tg_op_find(NULL) && !tg_op_find("") && !tg_op_find("no such op"));
}

void misuse_extend(misuse_world *b) {
    devices(b);
    calls_of_infer(b);
    calls_of_backward(b);
    apply(b);
    works(b);
    table(b);
}
