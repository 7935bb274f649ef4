/* Forward mode and Hessian products of a perceptron whose layers are split over tp: 2 and 4 ranks give one rank's
 * results, whichever parameters have a tangent. */
#include "on_ranks.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/parallel.h>
#include <tapegrad/megatron.h>

enum { S = 3, IN = 4, HIDDEN = 8, OUT = 2, PARAMS = 3 };

typedef struct result {
    double pushed[PARAMS][S * OUT], hv[PARAMS][S * IN + HIDDEN * IN + OUT * HIDDEN];
} result;

/* The part on this rank of a parameter that is tensor number k. */
static tg_tensor *placed(const tg_parallel *p, const char *name, int k, tg_shape shape, int dim) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    int r = tg_comm_rank(tg_parallel_comm(p, TG_TP)), n = tg_parallel_size(p, TG_TP);
    tg_tensor *x = dim < 0 ? tg_param_new(ctx, name, TG_DTYPE_DEFAULT, shape, 1)
                           : tg_param_new_placed(p, name, TG_F64, shape, 1, TG_PLACES({TG_TP, TG_SHARD((int8_t)dim)}));
    tg_tensor *values = dim < 0 ? made(ctx, k, shape) : part(ctx, k, shape, dim, r, n);
    double v[HIDDEN * IN];
    tg_read_f64(values, v, tg_numel(values));
    tg_write_f64(x, v, tg_numel(values));
    tg_drop(values);
    return x;
}

static tg_tensor *output(tg_tape *t, tg_tensor *const *p, tg_comm *tp) {
    tg_tensor *h = tg_tanh(t, tg_linear(t, tg_copy_to_tp(t, p[0], tp), p[1], NULL));
    return tg_reduce_from_tp(t, tg_linear(t, h, p[2], NULL), tp);
}

static tg_status tangents(void *arg, tg_ctx *ctx, tg_comm *world) {
    result *all = arg, *mine = &all[tg_comm_rank(world)];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    RUN(tg_ctx_status(ctx));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    const tg_shape shape[PARAMS] = {TG_SHAPE(S, IN), TG_SHAPE(HIDDEN, IN), TG_SHAPE(OUT, HIDDEN)};
    const int cut[PARAMS] = {-1, 0, 1};
    tg_tensor *in[PARAMS], *v[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        in[i] = placed(p, "p", i, shape[i], cut[i]);
        v[i] = placed(p, "v", 5 + i, shape[i], cut[i]);
    }
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < PARAMS; i++) {
        tg_tensor *din[PARAMS] = {NULL}, *y = output(t, in, tp), *d, *hv[PARAMS];
        din[i] = v[i];
        RUN(tg_jvp(t, &y, 1, in, PARAMS, din, &d));
        RUN(tg_read_f64(d, mine->pushed[i], S * OUT));
        tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
        RUN(tg_hvp(t, loss, in, PARAMS, din, hv));
        double *at = mine->hv[i];
        for (int k = 0; k < PARAMS; k++) {
            int64_t size = shape[k].dim[0] * shape[k].dim[1];
            tg_tensor *whole = cut[k] < 0 ? hv[k] : tg_gather_from(t, hv[k], cut[k], tp);
            RUN(tg_read_f64(whole, at, size));
            at += size;
        }
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void compare(const double *got, const double *want, int n, const char *what, int ranks) {
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    ck_assert(most > 1e-3);
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs(got[i] - want[i]) <= 1e-12 * (1 + most), "%s on %d ranks, element %d: %.15g, on one %.15g",
                      what, ranks, i, got[i], want[i]);
}

START_TEST(tangents_of_any_parameter) {
    static result one, many[4];
    on_ranks(1, tangents, &one);
    for (int n = 2; n <= 4; n += 2) {
        on_ranks(n, tangents, many);
        for (int r = 0; r < n; r++)
            for (int i = 0; i < PARAMS; i++) {
                compare(many[r].pushed[i], one.pushed[i], S * OUT, "J v", n);
                compare(many[r].hv[i], one.hv[i], (int)(sizeof one.hv[i] / sizeof *one.hv[i]), "H v", n);
            }
    }
}
END_TEST

/* A tangent has the placement of its input, or is equal on every rank. */
static tg_status elsewhere(void *arg, tg_ctx *ctx, tg_comm *world) {
    int *refused = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_tape *t = tg_tape_new(ctx);
    tg_shape shape = TG_SHAPE(HIDDEN, HIDDEN);
    tg_tensor *rows = placed(p, "rows", 0, shape, 0);
    tg_tensor *columns = placed(p, "columns", 1, TG_SHAPE(HIDDEN / 2, 2 * HIDDEN), 1);
    tg_tensor *y = tg_square(t, rows), *d;
    RUN(tg_jvp(t, &y, 1, &rows, 1, &rows, &d));
    if (tg_jvp(t, &y, 1, &rows, 1, &columns, &d) == TG_ERR_PLACEMENT &&
        strstr(tg_ctx_message(ctx), "place the tangent like its input"))
        refused[tg_comm_rank(world)] = 1;
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(tangents_lie_as_their_inputs_do) {
    int refused[2] = {0};
    on_ranks(2, elsewhere, refused);
    ck_assert(refused[0] && refused[1]);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {tangents_of_any_parameter, tangents_lie_as_their_inputs_do};
    return tg_check_main("tangents", tests, sizeof tests / sizeof *tests);
}
