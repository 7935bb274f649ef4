/* Recorded derivatives of every op of the table, on each of its samples. Reverse: in every float dtype tg_grad with
 * create_graph gives backward's gradients, and in float64 it is itself checked by finite differences, in the inputs and
 * in the cotangents. Forward: for a random cotangent c and tangent v, <c, J v> is <J^T c, v>. Every op with a backward
 * must have both. */
#include "ops/registry.h"

#include <tapegrad/backward.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/gradcheck.h>

enum { ROOM = TG_CASE_OUTPUTS + TG_SAMPLE_INPUTS };

/* ---- One recorded call ---- */

/* Lists the inputs that require a gradient, once each, and the outputs that have one. */
typedef struct record {
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS], *roots[TG_CASE_OUTPUTS], *input[TG_SAMPLE_INPUTS];
    int n_roots, n_in;
} record;

static void choose(record *r) {
    int n_out = count_out(&r->c, r->out);
    r->n_roots = r->n_in = 0;
    for (int i = 0; i < n_out; i++)
        if (tg_requires_grad(r->out[i])) r->roots[r->n_roots++] = r->out[i];
    for (int i = 0; i < (r->c.sample->aliases ? 1 : r->c.n_in); i++)
        if (r->c.input[i] && tg_requires_grad(r->c.input[i])) r->input[r->n_in++] = r->c.input[i];
}

static bool record_sample(record *r, tg_ctx *ctx, tg_tape *t, const tg_op *op, int i, tg_dtype dtype) {
    tg_rng rng = {.seed = 7};
    tg_rng_set(ctx, NULL, &rng);
    if (tg_case_open(&r->c, ctx, op, i, &(tg_case_opts){.dtype = dtype, .seed = 5, .rows = true}) != TG_OK)
        return false;
    if (tg_case_run(&r->c, t, r->c.input, r->c.n_in, r->out, r->c.n_out) == TG_OK) choose(r);
    return tg_ctx_status(ctx) == TG_OK && r->n_roots && r->n_in;
}

static tg_tensor *noise(tg_ctx *ctx, const tg_tensor *like) {
    tg_tensor *x = tg_zeros(ctx, tg_dtype_of(like), tg_shape_of(like)),
              *drawn = tg_randn(ctx, TG_DTYPE_DEFAULT, tg_shape_of(like), 1);
    values v = read_values(drawn);
    if (v.n) tg_write_f64(x, v.at, v.n);
    free(v.at);
    tg_drop(drawn);
    return x;
}

static double dot(tg_tensor *const *a, tg_tensor *const *b, int n, double *size) {
    double sum = 0;
    *size = 0;
    for (int i = 0; i < n; i++) {
        values x = read_values(a[i]), y = read_values(b[i]);
        for (int64_t k = 0; k < x.n; k++) {
            sum += x.at[k] * y.at[k];
            *size += fabs(x.at[k] * y.at[k]);
        }
        free(x.at);
        free(y.at);
    }
    return sum;
}

/* ---- First derivatives ---- */

/* Tolerance relative to the largest element: compositions in 16-bit dtypes round at every op. */
static double close_to(tg_dtype d) { return d == TG_F64 ? 1e-11 : d == TG_F32 ? 1e-4 : d == TG_F16 ? 2e-2 : 0.1; }

static void check_first(tally *y, tg_ctx *ctx, const tg_op *op, int i, tg_dtype dtype) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_tensor *seed[TG_CASE_OUTPUTS], *tangent[TG_SAMPLE_INPUTS], *plain[TG_SAMPLE_INPUTS], *by_vjp[TG_SAMPLE_INPUTS],
        *pushed[TG_CASE_OUTPUTS];
    record r = {0};
    tg_tape *t = tg_tape_new(ctx);
    bool recorded = record_sample(&r, ctx, t, op, i, dtype);
    verdict(y, tg_ctx_status(ctx) == TG_OK, op, s, "%s", tg_ctx_message(ctx));
    if (recorded) {
        for (int k = 0; k < r.n_roots; k++) seed[k] = noise(ctx, r.roots[k]);
        for (int k = 0; k < r.n_in; k++) tangent[k] = noise(ctx, r.input[k]);
        tg_grad_opts way = {.size = sizeof way, .seeds = seed, .retain = true};
        if (tg_grad(t, r.roots, r.n_roots, r.input, r.n_in, plain, &way) ==
            TG_ERR_STATE) { /* the result does not depend on an input */
            tg_ctx_clear(ctx);
            way.allow_unused = true;
            tg_grad(t, r.roots, r.n_roots, r.input, r.n_in, plain, &way);
        }
        tg_grad_opts graph = way;
        graph.create_graph = true;
        tg_grad(t, r.roots, r.n_roots, r.input, r.n_in, by_vjp, &graph);
        tg_jvp(t, r.roots, r.n_roots, r.input, r.n_in, tangent, pushed);
        verdict(y, tg_ctx_status(ctx) == TG_OK, op, s, "%s", tg_ctx_message(ctx));
        for (int k = 0; tg_ctx_status(ctx) == TG_OK && k < r.n_in; k++) {
            values a = read_values(plain[k]), b = read_values(by_vjp[k]);
            agree_one(y, op, s, &b, &a, close_to(dtype) * fmax(dtype == TG_F64 ? 1e-3 : 1, largest(&a)),
                      tg_dtype_name(dtype), "gradient", k);
            free(a.at);
            free(b.at);
        }
        if (tg_ctx_status(ctx) == TG_OK && dtype == TG_F64) {
            double size, other, back = dot(plain, tangent, r.n_in, &size), forth = dot(pushed, seed, r.n_roots, &other);
            verdict(y, fabs(back - forth) <= 1e-10 * fmax(1e-3, fmax(size, other)), op, s,
                    "<c, J v> is %.15g and <J^T c, v> %.15g", forth, back);
        }
        drop_all(seed, r.n_roots);
        drop_all(tangent, r.n_in);
    }
    tg_tape_free(t);
    tg_case_close(&r.c);
    tg_ctx_clear(ctx);
}

/* ---- Second derivatives ---- */

/* in[] are the inputs of the case that are not absent, followed by the cotangents; out[] are the gradients. */
static tg_status gradients(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const record *given = state;
    record r = *given;
    (void)n_in, (void)n_out;
    bool grad = tg_tape_set_grad_mode(t, true);
    int n = 0;
    for (int k = 0; k < r.c.n_in; k++)
        if (r.c.input[k]) r.c.input[k] = in[n++];
    tg_status s = tg_case_run(&r.c, t, r.c.input, r.c.n_in, r.out, r.c.n_out);
    if (s == TG_OK) choose(&r);
    if (s == TG_OK)
        s = tg_grad(t, r.roots, r.n_roots, r.input, r.n_in, out,
                    TG_GRAD(.seeds = in + n, .create_graph = true, .allow_unused = true));
    tg_tape_set_grad_mode(t, grad);
    return s;
}

/* Constant gradients have no derivative to check. */
static bool any_second(record *r, tg_tape *t, tg_tensor *const *in, int n_in) {
    tg_tensor *out[TG_SAMPLE_INPUTS];
    bool any = false;
    if (gradients(r, t, in, n_in, out, r->n_in) == TG_OK)
        for (int k = 0; k < r->n_in; k++) any |= tg_requires_grad(out[k]);
    return any || tg_ctx_status(r->c.ctx) != TG_OK;
}

static void check_second(tally *y, tg_ctx *ctx, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_tensor *in[ROOM];
    record r = {0};
    tg_tape *t = tg_tape_new(ctx);
    if (record_sample(&r, ctx, t, op, i, TG_F64)) {
        tg_gradcheck_info result = TG_GRADCHECK_INFO();
        int n = 0;
        for (int k = 0; k < r.c.n_in; k++)
            if (r.c.input[k]) in[n++] = r.c.input[k];
        for (int k = 0; k < r.n_roots; k++) {
            in[n + k] = noise(ctx, r.roots[k]);
            tg_set_requires_grad(in[n + k], true);
        }
        /* In a kinked sample too: every direction of the inputs leads over some kink, and is not compared, but those of
         * the cotangents lead over none. */
        int directions = is_large(s) ? DIRECTIONS : 0;
        tg_status got = TG_OK;
        if (any_second(&r, t, in, n + r.n_roots))
            got = tg_gradcheck(
                t, gradients, &r, in, n + r.n_roots, r.n_in, &result,
                TG_GRADCHECK(.eps = 1e-5, .atol = 1e-6, .rtol = 1e-5, .projections = directions, .no_extras = true,
                             .name = op->name));
        verdict(y, got == TG_OK, op, s, "second derivative: %s", tg_ctx_message(ctx));
        drop_all(in + n, r.n_roots);
    }
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_case_close(&r.c);
    tg_ctx_clear(ctx);
}

int main(int argc, char **argv) {
    tally y = {0};
    tg_ctx *ctx =
        tg_ctx_new(TG_CONFIG(.device = getenv("TG_TEST_DEVICE"), .threads = 1, .check = true, .dtype = TG_F64));
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        if (!chosen(op, argc, argv) || !in_share("derivatives", (uint64_t)i)) continue;
        verdict(&y, !op->backward == !op->vjp && !op->backward == !op->jvp, op, NULL,
                "it has a backward and no vjp or jvp, or the other way round");
        for (int k = 0; op->vjp && k < op->n_samples; k++) {
            const tg_sample *s = tg_sample_at(op, k);
            if (!small(s) || s->refused) continue;
            const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16, TG_F16};
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) check_first(&y, ctx, op, k, dtypes[d]);
            check_second(&y, ctx, op, k);
        }
    }
    tg_ctx_free(ctx);
    return conclude(&y);
}
