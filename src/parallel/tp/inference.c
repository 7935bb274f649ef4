/* Linear layers of a model that only runs forward, like the inference-optimized layers of Megatron-Core. The column
 * layer is an RMS norm, a gather and a product. The row layer is a product and a reduce-scatter. Between two blocks,
 * the addition to the residual and the next norm are one op. Nothing is saved for backward. */
#include <math.h>
#include <tapegrad/megatron.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "tape/tape.h"
#include "comm/comm.h"
#include "parallel/tp/layers.h"

typedef struct inference {
    tg_ctx *ctx;
    tg_comm *comm;
    bool sp;
    double eps;
} inference;

static const inference *state_of(const tg_module *m) { return m->state; }

/* ---- Forward ---- */

/* Gathers the rows of the normed x [s / tp, b, in] and multiplies them with the weight. Returns [s, b, out / tp]. */
static tg_tensor *multiply_normed(tg_module *m, tg_tape *t, tg_tensor *normed) {
    tg_linear_grad_opts o = {TG_LINEAR_GRAD_DEFAULTS, .sequence_parallel = state_of(m)->sp};
    return tg_linear_with_grad_accumulation(t, normed, tg_module_own(m, "weight"), NULL, state_of(m)->comm, &o);
}

static tg_tensor *column_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *y = multiply_normed(m, t, tg_rms_norm(t, x, tg_module_own(m, "norm"), state_of(m)->eps));
    tg_tape_set_grad_mode(t, grad);
    return y;
}

/* x [s, b, in / tp] -> [s / tp, b, out] */
static tg_tensor *multiply_scatter(tg_module *m, tg_tape *t, tg_tensor *x) {
    tg_tensor *y = tg_linear(t, x, tg_module_own(m, "weight"), NULL);
    return state_of(m)->sp ? tg_reduce_scatter_to_sp(t, y, state_of(m)->comm, NULL) : y;
}

static tg_tensor *row_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *y = multiply_scatter(m, t, x);
    tg_tape_set_grad_mode(t, grad);
    return y;
}

static void inference_free(void *state) {
    inference *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static const tg_module_ops column_ops = {
    .size = sizeof(tg_module_ops), .kind = "inference_column", .forward = column_forward, .free = inference_free};
static const tg_module_ops row_ops = {
    .size = sizeof(tg_module_ops), .kind = "inference_row", .forward = row_forward, .free = inference_free};

static tg_status check_next(const tg_module *row, const tg_module *column, const tg_tape *t,
                            tg_tensor *const *residual) {
    tg_ctx *ctx = row->ctx;
    if (row->ops != &row_ops || !column || column->ops != &column_ops || column->ctx != ctx)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_inference_next: row is a \"%s\" and column a \"%s\", expected an inference_row and an "
                       "inference_column of one context",
                       tg_module_kind(row), tg_module_kind(column));
    if (!t || t->ctx != ctx)
        return tg_fail(ctx, t ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_inference_next: %s",
                       t ? "tape and modules are of different contexts" : "the tape is NULL");
    if (!residual || !*residual)
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_inference_next: residual or *residual is NULL; the row layer's output is added to it before the norm");
    return TG_OK;
}

/* Runs the row layer, adds its output to the residual, and runs the column layer. */
static tg_tensor *next(tg_module *row, tg_module *column, tg_tape *t, tg_tensor *x, tg_tensor **residual,
                       const void *site) {
    if (!tg_module_ok(row)) return tg_inert(row ? row->ctx : &tg_dead_ctx);
    tg_ctx *ctx = row->ctx;
    if (check_next(row, column, t, residual) != TG_OK) return tg_inert(ctx);
    if (tg_scope_open_at(t, "inference_next", site) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(ctx);
    tg_tensor *out[2];
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *y = multiply_scatter(row, t, x);
    tg_tensor *normed =
        tg_residual_rms_norm(t, y, *residual, tg_module_own(column, "norm"), state_of(column)->eps, &out[1]);
    out[0] = multiply_normed(column, t, normed);
    tg_tape_set_grad_mode(t, grad);
    if (tg_scope_close(t, out, 2) != TG_OK) return tg_inert(ctx);
    *residual = out[1];
    return out[0];
}

tg_tensor *tg_inference_next(tg_module *row, tg_module *column, tg_tape *t, tg_tensor *x, tg_tensor **residual) {
    tg_tensor *y = next(row, column, t, x, residual, TG_SITE);
    if (row && row->ops == &row_ops) tg_comm_note_missed(state_of(row)->comm, row->ctx->run.status);
    return y;
}

/* ---- Creation ---- */

/* Returns the name of the public function that makes such a layer, for errors. */
static const char *maker_of(const tg_module_ops *ops) {
    return ops == &column_ops ? "tg_nn_inference_column" : "tg_nn_inference_row";
}

/* Fails if an option is set that the layer does not use. */
static tg_status check_unused(tg_ctx *ctx, const char *who, bool row, const tg_inference_opts *o) {
    const tg_inference_opts usual = {TG_INFERENCE_DEFAULTS};
    if (row && (o->norm || o->norm_eps != usual.norm_eps))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is set, but it is an option of the column layer only", who,
                       o->norm ? "norm" : "norm_eps");
    if (o->weight && o->std != usual.std)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: std is %g, but the weight is given; leave std at its default", who,
                       o->std);
    return TG_OK;
}

/* Reads and checks the options. */
static tg_status complete(const tg_parallel *p, const char *who, bool row, tg_inference_opts *o,
                          const tg_inference_opts *given) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    TG_TRY(tg_options(ctx, o, &tg_inference_opts_struct, given, who));
    TG_TRY(check_unused(ctx, who, row, o));
    if (!(o->norm_eps > 0 && isfinite(o->norm_eps)))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: norm_eps is %g, expected a positive number", who, o->norm_eps);
    if (!tg_layer_finite(ctx, who, "std", o->std)) return ctx->run.status;
    if (tg_parallel_size(p, TG_TP) > 1 && !tg_is_sequence_parallel(p))
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: tp has %d ranks but no sequence parallelism, which the layer's gather and reduce-scatter "
                       "need; set TG_PARALLEL(.sequence_parallel = true)",
                       who, tg_parallel_size(p, TG_TP));
    return TG_OK;
}

static tg_status check_given(tg_ctx *ctx, const char *who, const char *what, const tg_tensor *x, tg_shape shape) {
    char got[160], want[96];
    TG_TRY(tg_check(ctx, x, who));
    if (x->ndim == shape.ndim && !memcmp(x->shape, shape.dim, x->ndim * sizeof *x->shape)) return TG_OK;
    tg_describe(x, got, sizeof got);
    tg_shape_text((int)shape.ndim, shape.dim, want, sizeof want);
    return tg_fail(ctx, TG_ERR_SHAPE, "%s: the %s given is %s, expected %s", who, what, got, want);
}

/* Adds a parameter to the module: `given`, which must have this rank's shape, or a new one if given is NULL. shape: of
 * the whole parameter. */
static void add(tg_module *m, const tg_parallel *p, const char *name, tg_tensor *given, tg_shape shape, double std,
                tg_placement at) {
    tg_shape local = shape;
    if (at.kind == TG_VARYING) local.dim[at.dim] /= tg_parallel_size(p, TG_TP);
    if (!given)
        tg_layer_add(m, name, tg_layer_param(p, name, TG_DTYPE_DEFAULT, shape, std, TG_TP, at));
    else if (check_given(m->ctx, maker_of(m->ops), name, given, local) == TG_OK)
        tg_module_add_param(m, name, given);
}

static void add_norm(tg_module *m, const tg_parallel *p, tg_tensor *given, int64_t n) {
    add(m, p, "norm", given, (tg_shape){1, {n}}, 0, TG_R);
    tg_tensor *x = tg_module_own(m, "norm");
    if (x && !given && tg_ok(m->ctx)) m->ctx->run.ops->fill(m->ctx, tg_array_of(x), 1);
}

static tg_module *make(const tg_parallel *p, const tg_module_ops *ops, int64_t in, int64_t out, bool row,
                       const tg_inference_opts *given) {
    tg_inference_opts o;
    tg_ctx *ctx = tg_parallel_ctx(p);
    bool good = tg_ok(ctx) && tg_layer_divide(p, maker_of(ops), row ? "in" : "out", row ? in : out, TG_TP) == TG_OK;
    if (good && (row ? out : in) <= 0)
        good = tg_fail(ctx, TG_ERR_ARGUMENT, "%s: in is %lld and out %lld, expected 1 or more", maker_of(ops),
                       (long long)in, (long long)out) == TG_OK;
    if (!good || complete(p, maker_of(ops), row, &o, given) != TG_OK) return tg_layer_checked(NULL);
    inference *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return tg_layer_checked(NULL);
    *s = (inference){ctx, tg_parallel_comm(p, TG_TP), tg_is_sequence_parallel(p), o.norm_eps};
    tg_module *m = tg_module_new(ctx, ops, s);
    if (!tg_module_ok(m)) return m;
    if (!row) add_norm(m, p, o.norm, in);
    if (tg_ok(ctx)) add(m, p, "weight", o.weight, (tg_shape){2, {out, in}}, o.std, TG_SHARD(row ? 1 : 0));
    return tg_layer_checked(m);
}

tg_module *tg_nn_inference_column(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts) {
    return make(p, &column_ops, in, out, false, opts);
}

tg_module *tg_nn_inference_row(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts) {
    return make(p, &row_ops, in, out, true, opts);
}
