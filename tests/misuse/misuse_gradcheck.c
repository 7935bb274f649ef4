/* The gradient checks. */
#include <tapegrad/gradcheck.h>
#include <tapegrad/io.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"

static tg_status square(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(t, in[0]);
    return TG_OK;
}

static tg_status refuses(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)t, (void)in, (void)n_in, (void)out, (void)n_out;
    return TG_ERR_DATA;
}

static tg_status leaves_out(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)t, (void)in, (void)n_in, (void)out, (void)n_out;
    return TG_OK;
}

static tg_status constant(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)in, (void)n_in, (void)n_out;
    out[0] = tg_full(t, TG_F64, TG_SHAPE(2), 1);
    return TG_OK;
}

static void plain(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)state, (void)n, (void)m;
    y[0] = x[0] * x[0];
}

static void plain_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    (void)state, (void)n, (void)m;
    gx[0] = 2 * x[0] * gy[0];
}

/* ---- A function of tensors ---- */

#define CHECK(code, says, fn, in, n_in, n_out, opts) \
    GIVES(tg_gradcheck, code, says, tg_gradcheck(t, fn, NULL, in, n_in, n_out, NULL, opts) != TG_OK)

static void tensors(misuse_world *b) {
    GIVES(tg_gradcheck, HANDLE, "freed", tg_gradcheck(b->freed, square, NULL, &b->x, 1, 1, NULL, NULL) != TG_OK);
    tg_tape *t = tg_tape_new(b->ctx); /* reuses the memory of the freed tape */
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_F64, TG_SHAPE(2), 1), *none = NULL;
    tg_gradcheck_opts zero = {0}, five = {.size = 5}, later = {.size = sizeof later + 8};
    FAILS(tg_gradcheck, ARGUMENT, "the tape is NULL", tg_gradcheck(NULL, square, NULL, &p, 1, 1, NULL, NULL));
    CHECK(ARGUMENT, "expected a function", NULL, &p, 1, 1, NULL);
    CHECK(ARGUMENT, "expected a function", square, NULL, 1, 1, NULL);
    CHECK(ARGUMENT, "0 inputs", square, &p, 0, 1, NULL);
    CHECK(ARGUMENT, "-1 inputs", square, &p, -1, 1, NULL);
    CHECK(ARGUMENT, "70000 inputs", square, &p, 70000, 1, NULL);
    CHECK(ARGUMENT, "0 outputs", square, &p, 1, 0, NULL);
    CHECK(ARGUMENT, "70000 outputs", square, &p, 1, 70000, NULL);
    CHECK(ARGUMENT, "the tensor is NULL", square, &none, 1, 1, NULL);
    CHECK(DTYPE, "no input is float64", square, &b->w, 1, 1, NULL);
    CHECK(STATE, "belongs to the tape", square, &b->elsewhere, 1, 1, NULL);
    CHECK(HANDLE, "another context", square, &b->foreign, 1, 1, NULL);
    EACH_DEAD(x) CHECK(HANDLE, "the tensor", square, &x, 1, 1, NULL);
    CHECK(ARGUMENT, "eps: expected a step", square, &p, 1, 1, TG_GRADCHECK(.eps = NAN));
    CHECK(ARGUMENT, "eps: expected a step", square, &p, 1, 1, TG_GRADCHECK(.eps = 0));
    CHECK(ARGUMENT, "atol and rtol", square, &p, 1, 1, TG_GRADCHECK(.atol = NAN));
    CHECK(ARGUMENT, "atol and rtol", square, &p, 1, 1, TG_GRADCHECK(.rtol = INFINITY));
    CHECK(ARGUMENT, "atol and rtol", square, &p, 1, 1, TG_GRADCHECK(.rtol = -2));
    CHECK(ARGUMENT, "projections: expected 0 or more", square, &p, 1, 1, TG_GRADCHECK(.projections = -1));
    CHECK(ARGUMENT, "size is 0", square, &p, 1, 1, &zero);
    CHECK(ARGUMENT, "size is 5", square, &p, 1, 1, &five);
    CHECK(ARGUMENT, "this library knows", square, &p, 1, 1, &later);
    CHECK(DATA, "the function returned TG_ERR_DATA", refuses, &p, 1, 1, NULL);
    CHECK(ARGUMENT, "the function did not set output", leaves_out, &p, 1, 1, NULL);
    CHECK(STATE, "depends on an input that needs a gradient", constant, &p, 1, 1, NULL);
    tg_tape_free(t);
    tg_drop(p);
}

/* ---- A plain function, whose report is in the result; and the samples of ops ---- */

static bool refused(tg_plain_fn fn, tg_plain_grad_fn grad, const double *x, int64_t n, int64_t m,
                    const tg_gradcheck_opts *opts, tg_status status, const char *says) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    return tg_gradcheck_fn(fn, grad, NULL, x, n, m, &r, opts) == status && strstr(r.report, says);
}

static void plains(misuse_world *b) {
    const double x[1] = {3};
    tg_gradcheck_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_gradcheck_opts nan = {.size = sizeof nan, .eps = NAN};
    QUIET(tg_gradcheck_fn, tg_gradcheck_fn(plain, plain_grad, NULL, x, 1, 1, NULL, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_gradcheck_fn, refused(NULL, plain_grad, x, 1, 1, NULL, TG_ERR_ARGUMENT, "NULL"));
    QUIET(tg_gradcheck_fn, refused(plain, NULL, x, 1, 1, NULL, TG_ERR_ARGUMENT, "NULL"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, NULL, 1, 1, NULL, TG_ERR_ARGUMENT, "and x"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, -1, 1, NULL, TG_ERR_ARGUMENT, "0 or more"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, 1, -1, NULL, TG_ERR_ARGUMENT, "0 or more"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, INT64_MAX, 1, NULL, TG_ERR_MEMORY, "out of memory"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, 1, 1, &nan, TG_ERR_ARGUMENT, "eps"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, 1, 1, &zero, TG_ERR_ARGUMENT, "size is 0"));
    QUIET(tg_gradcheck_fn, refused(plain, plain_grad, x, 1, 1, &later, TG_ERR_ARGUMENT, "this library knows"));
    tg_gradcheck_info unset = {0}, wide = {.size = sizeof wide + 8};
    QUIET(tg_gradcheck_fn, tg_gradcheck_fn(plain, plain_grad, NULL, x, 1, 1, &unset, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_gradcheck_fn, tg_gradcheck_fn(plain, plain_grad, NULL, x, 1, 1, &wide, NULL) == TG_ERR_ARGUMENT);
}

static void samples(misuse_world *b) {
    const tg_op *neg = tg_op_find("neg");
    tg_gradcheck_opts zero = {0};
    QUIET(tg_gradcheck_op, tg_gradcheck_op(NULL, neg, 0, NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_gradcheck_op, ARGUMENT, "the op is NULL", tg_gradcheck_op(b->ctx, NULL, 0, NULL, NULL));
    FAILS(tg_gradcheck_op, ARGUMENT, "neg has no sample -1", tg_gradcheck_op(b->ctx, neg, -1, NULL, NULL));
    FAILS(tg_gradcheck_op, ARGUMENT, "neg has no sample 9999", tg_gradcheck_op(b->ctx, neg, 9999, NULL, NULL));
    FAILS(tg_gradcheck_op, ARGUMENT, "eps: expected a step",
          tg_gradcheck_op(b->ctx, neg, 0, NULL, TG_GRADCHECK(.eps = 2)));
    FAILS(tg_gradcheck_op, ARGUMENT, "size is 0", tg_gradcheck_op(b->ctx, neg, 0, NULL, &zero));
    tg_gradcheck_info unset = {0}, wide = {.size = sizeof wide + 8};
    FAILS(tg_gradcheck_op, ARGUMENT, "tg_gradcheck_op: the struct's size is 0",
          tg_gradcheck_op(b->ctx, neg, 0, &unset, NULL));
    FAILS(tg_gradcheck_op, ARGUMENT, "this library knows", tg_gradcheck_op(b->ctx, neg, 0, &wide, NULL));
}

/* ---- Reports ---- */

static void reports(misuse_world *b) {
    const tg_op *neg = tg_op_find("neg");
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_F64, TG_SHAPE(2), 1);
    tg_gradcheck_info unset = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/damaged.json", b->dir);
    FAILS(tg_gradcheck, ARGUMENT, "size is 0", tg_gradcheck(t, square, NULL, &p, 1, 1, &unset, NULL));
    FAILS(tg_gradcheck_report, ARGUMENT, "size is 0",
          tg_gradcheck_report(t, path, square, NULL, &p, 1, 1, &unset, NULL));
    FAILS(tg_gradcheck_report_op, ARGUMENT, "size is 0",
          tg_gradcheck_report_op(b->ctx, path, neg, 0, &unset, NULL));
    FAILS(tg_gradcheck_replay, ARGUMENT, "size is 0", tg_gradcheck_replay(t, path, square, NULL, &unset));
    FAILS(tg_gradcheck_replay_op, ARGUMENT, "size is 0", tg_gradcheck_replay_op(b->ctx, path, neg, &unset));
    tg_file_save(b->ctx, path, "{\"format\": \"another\"}", 21);
    FAILS(tg_gradcheck_report, ARGUMENT, "the tape is NULL",
          tg_gradcheck_report(NULL, path, square, NULL, &p, 1, 1, NULL, NULL));
    GIVES(tg_gradcheck_report, ARGUMENT, "expected a function",
          tg_gradcheck_report(t, path, NULL, NULL, &p, 1, 1, NULL, NULL) != TG_OK);
    QUIET(tg_gradcheck_report_op, tg_gradcheck_report_op(NULL, path, neg, 0, NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_gradcheck_report_op, ARGUMENT, "neg has no sample -1",
          tg_gradcheck_report_op(b->ctx, path, neg, -1, NULL, NULL));
    QUIET(tg_gradcheck_replay, tg_gradcheck_replay(NULL, path, square, NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_gradcheck_replay, ARGUMENT, "path is NULL", tg_gradcheck_replay(t, NULL, square, NULL, NULL));
    FAILS(tg_gradcheck_replay, FORMAT, "damaged.json", tg_gradcheck_replay(t, path, square, NULL, NULL));
    FAILS(tg_gradcheck_replay, IO, "no/such", tg_gradcheck_replay(t, "no/such", square, NULL, NULL));
    QUIET(tg_gradcheck_replay_op, tg_gradcheck_replay_op(NULL, path, neg, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_gradcheck_replay_op, ARGUMENT, "path is NULL", tg_gradcheck_replay_op(b->ctx, NULL, neg, NULL));
    FAILS(tg_gradcheck_replay_op, FORMAT, "damaged.json", tg_gradcheck_replay_op(b->ctx, path, NULL, NULL));
    FAILS(tg_gradcheck_replay_op, IO, "no/such", tg_gradcheck_replay_op(b->ctx, "no/such", neg, NULL));
    tg_tape_free(t);
    tg_drop(p);
}

void misuse_gradcheck(misuse_world *b) {
    tensors(b);
    plains(b);
    samples(b);
    reports(b);
}
