/* Averages of parameters, and L-BFGS. */
#include <tapegrad/average.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"

static bool no_average(tg_average *a) {
    bool good = a && tg_average_state_count(a) == 0 && tg_average_update(a) != TG_OK;
    tg_average_free(a);
    return good;
}

static tg_status no_loss(void *user, double *loss) {
    (void)user, (void)loss;
    return TG_OK;
}

static bool no_lbfgs(tg_lbfgs *l) {
    bool good = l && tg_lbfgs_step(l, no_loss, NULL, NULL) != TG_OK;
    tg_lbfgs_free(l);
    return good;
}

/* Rows for the parameters of a constructor: `call` makes an object of params[n] on c, which `none` checks. */
#define PARAMETERS(symbol, none, call)                                                                                 \
    do {                                                                                                               \
        tg_tensor *twice[] = {b->w, b->w}, *null = NULL, **params = &b->w;                                             \
        tg_ctx *c = NULL;                                                                                              \
        int n = 1;                                                                                                     \
        QUIET(symbol, none(call));                                                                                     \
        c = b->ctx, n = 0;                                                                                             \
        GIVES(symbol, ARGUMENT, "n is 0", none(call));                                                                 \
        n = 1, params = NULL;                                                                                          \
        GIVES(symbol, ARGUMENT, "expected an array of 1 or more", none(call));                                         \
        params = &null;                                                                                                \
        GIVES(symbol, ARGUMENT, "the tensor is NULL", none(call));                                                     \
        params = &b->x;                                                                                                \
        GIVES(symbol, STATE, "must be a leaf of the context", none(call));                                             \
        params = twice, n = 2;                                                                                         \
        GIVES(symbol, ARGUMENT, "is given twice", none(call));                                                         \
        n = 1;                                                                                                         \
        EACH_DEAD(x) {                                                                                                 \
            params = &x;                                                                                               \
            GIVES(symbol, HANDLE, "the tensor", none(call));                                                           \
        }                                                                                                              \
    } while (0)

/* ---- Averages ---- */

static void averages(misuse_world *b) {
    PARAMETERS(tg_ema_new, no_average, tg_ema_new(c, params, n, 0.5));
    PARAMETERS(tg_swa_new, no_average, tg_swa_new(c, params, n));
    GIVES(tg_ema_new, ARGUMENT, "decay is 1, expected a number in [0, 1)", no_average(tg_ema_new(b->ctx, &b->w, 1, 1)));
    GIVES(tg_ema_new, ARGUMENT, "decay is nan", no_average(tg_ema_new(b->ctx, &b->w, 1, NAN)));
    GIVES(tg_ema_new, ARGUMENT, "decay is -0.5", no_average(tg_ema_new(b->ctx, &b->w, 1, -0.5)));
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_average *a = tg_swa_new(b->ctx, &p, 1);
    QUIET(tg_average_free, (tg_average_free(NULL), true));
    QUIET(tg_average_update, tg_average_update(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_average_apply, tg_average_apply(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_average_apply, STATE, "there was no tg_average_update", tg_average_apply(a));
    QUIET(tg_average_restore, tg_average_restore(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_average_restore, STATE, "call tg_average_apply first", tg_average_restore(a));
    QUIET(tg_average_commit, tg_average_commit(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_average_commit, STATE, "call tg_average_apply first", tg_average_commit(a));
    QUIET(tg_average_updates, tg_average_updates(NULL) == 0 && tg_average_updates(a) == 0);
    static const double no_counts[] = {NAN, 1e300, -1, 0.5};
    for (int i = 0; i < 4; i++) {
        tg_write_f64(tg_average_state(a, 1, NULL), &no_counts[i], 1);
        GIVES(tg_average_updates, DATA, "tg_average_updates: the state tensor \"updates\" is",
              tg_average_updates(a) == 0);
        FAILS(tg_average_apply, DATA, "expected a whole number from 0 to 2^53", tg_average_apply(a));
    }
    QUIET(tg_average_state_count, tg_average_state_count(NULL) == 0 && tg_average_state_count(a) == 2);
    QUIET(tg_average_state, misuse_inert(tg_average_state(NULL, 0, NULL)));
    INERT(tg_average_state, ARGUMENT, "index -1 is out of range", tg_average_state(a, -1, NULL));
    INERT(tg_average_state, ARGUMENT, "index 2 is out of range", tg_average_state(a, 2, NULL));
    tg_drop(p);
    FAILS(tg_average_update, HANDLE, "parameter 0 was dropped", tg_average_update(a));
    FAILS(tg_average_apply, HANDLE, "parameter 0 was dropped", tg_average_apply(a));
    tg_average_free(a);
}

/* ---- L-BFGS ---- */

#define LBFGS(says, ...)                                                                                               \
    GIVES(tg_lbfgs_new, ARGUMENT, says, no_lbfgs(tg_lbfgs_new(b->ctx, &b->w, 1, TG_LBFGS(__VA_ARGS__))))

static tg_status fails(void *user, double *loss) {
    (void)loss;
    return *(tg_status *)user;
}

static void lbfgs(misuse_world *b) {
    tg_lbfgs_opts opts0 = {0}, later = {.size = sizeof later + 8};
    tg_status bad = TG_ERR_DATA;
    PARAMETERS(tg_lbfgs_new, no_lbfgs, tg_lbfgs_new(c, params, n, NULL));
    GIVES(tg_lbfgs_new, ARGUMENT, "size is 0", no_lbfgs(tg_lbfgs_new(b->ctx, &b->w, 1, &opts0)));
    GIVES(tg_lbfgs_new, ARGUMENT, "this library knows", no_lbfgs(tg_lbfgs_new(b->ctx, &b->w, 1, &later)));
    LBFGS("lr is 0", .lr = 0);
    LBFGS("lr is nan", .lr = NAN);
    LBFGS("iterations 0", .iterations = 0);
    LBFGS("evaluations 0", .evaluations = 0);
    LBFGS("history 0", .history = 0);
    LBFGS("gradient_tolerance -1", .gradient_tolerance = -1);
    LBFGS("change_tolerance nan", .change_tolerance = NAN);
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_tensor *half = tg_param_new(b->ctx, "half", TG_BF16, TG_SHAPE(2), 1);
    GIVES(tg_lbfgs_new, DTYPE, "half bf16[2], expected float32 or float64",
          no_lbfgs(tg_lbfgs_new(b->ctx, &half, 1, NULL)));
    tg_lbfgs *l = tg_lbfgs_new(b->ctx, &p, 1, NULL);
    QUIET(tg_lbfgs_free, (tg_lbfgs_free(NULL), true));
    QUIET(tg_lbfgs_step, tg_lbfgs_step(NULL, no_loss, NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_lbfgs_step, ARGUMENT, "fn is NULL", tg_lbfgs_step(l, NULL, NULL, NULL));
    FAILS(tg_lbfgs_step, CALLBACK, "failed with TG_ERR_DATA", tg_lbfgs_step(l, fails, &bad, NULL));
    tg_drop(p);
    FAILS(tg_lbfgs_step, HANDLE, "parameter 0 was dropped", tg_lbfgs_step(l, no_loss, NULL, NULL));
    tg_lbfgs_free(l);
    tg_drop(half);
}

void misuse_averages(misuse_world *b) {
    averages(b);
    lbfgs(b);
}
