/* Flat buffers: their layout on each rank, the leaves of divided parameters, what is refused, and the order in which
 * sums and gathers start and are waited for. */
#include <stdint.h>

#include <tapegrad/extend.h>
#include <tapegrad/flat.h>
#include <tapegrad/handles.h>
#include <tapegrad/optim.h>

#include "on_ranks.h"
#include "parallel/noting.h"

/* A rank of a plan: no rank waits for another. */
typedef struct world {
    tg_ctx *ctx;
    tg_comm *comm;
    tg_parallel *p;
} world;

static world world_open(int rank, int ranks, const tg_parallel_opts *opts) {
    world w = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F32))};
    w.comm = tg_comm_plan_new(w.ctx, rank, ranks);
    w.p = tg_parallel_new(w.comm, opts);
    return w;
}

static void world_close(world *w) {
    ck_assert_msg(tg_ctx_status(w->ctx) == TG_OK, "%s", tg_ctx_message(w->ctx));
    tg_parallel_free(w->p);
    tg_comm_free(w->comm);
    tg_ctx_free(w->ctx);
}

static tg_tensor *param(const world *w, const char *name, tg_dtype dtype, int64_t n) {
    tg_tensor *x = tg_param_new(w->ctx, name, dtype, TG_SHAPE(n), 1);
    tg_place(w->p, x, TG_DP, TG_R);
    tg_place(w->p, x, TG_CP, TG_R);
    return x;
}

/* ---- Layouts ---- */

enum { PARAMS = 5 };

/* Four float32 parameters, and one of 16 bits that comes last, so that its bucket is the first. */
static void make_five(const world *w, tg_tensor *x[PARAMS]) {
    static const char *const name[PARAMS] = {"a", "b", "c", "d", "e"};
    static const int64_t n[PARAMS] = {100, 64, 65, 1, 10};
    for (int i = 0; i < PARAMS; i++) x[i] = param(w, name[i], i == 4 ? TG_BF16 : TG_F32, n[i]);
}

/* The leaves of each rank, worked out by hand. In the float32 bucket d begins at 0, c at 64, b at 192 and a at 256; it
 * has 384 elements on 1, 2, 3, 4, 6 and 8 ranks, 640 on 5 and 896 on 7, so a rank has 384, 192, 128, 96, 128, 64, 128
 * and 48 of them. The bucket of e has 128 elements on 1, 2, 4 and 8 ranks, 384 on 3 and 6, 640 on 5 and 896 on 7. */
static const char *const leaves_of[8][8] = {
    {"a[0:100] b[0:64] c[0:65] d[0:1] e[0:10]"},
    {"a[0:0] b[0:0] c[0:65] d[0:1] e[0:10]", "a[0:100] b[0:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:64] d[0:1] e[0:10]", "a[0:0] b[0:64] c[64:65] d[1:1] e[10:10]",
     "a[0:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:32] d[0:1] e[0:10]", "a[0:0] b[0:0] c[32:65] d[1:1] e[10:10]",
     "a[0:32] b[0:64] c[65:65] d[1:1] e[10:10]", "a[32:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:64] d[0:1] e[0:10]", "a[0:0] b[0:64] c[64:65] d[1:1] e[10:10]",
     "a[0:100] b[64:64] c[65:65] d[1:1] e[10:10]", "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]",
     "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:0] d[0:1] e[0:10]", "a[0:0] b[0:0] c[0:64] d[1:1] e[10:10]",
     "a[0:0] b[0:0] c[64:65] d[1:1] e[10:10]", "a[0:0] b[0:64] c[65:65] d[1:1] e[10:10]",
     "a[0:64] b[64:64] c[65:65] d[1:1] e[10:10]", "a[64:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:64] d[0:1] e[0:10]", "a[0:0] b[0:64] c[64:65] d[1:1] e[10:10]",
     "a[0:100] b[64:64] c[65:65] d[1:1] e[10:10]", "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]",
     "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]", "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]",
     "a[100:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
    {"a[0:0] b[0:0] c[0:0] d[0:1] e[0:10]", "a[0:0] b[0:0] c[0:32] d[1:1] e[10:10]",
     "a[0:0] b[0:0] c[32:65] d[1:1] e[10:10]", "a[0:0] b[0:0] c[65:65] d[1:1] e[10:10]",
     "a[0:0] b[0:48] c[65:65] d[1:1] e[10:10]", "a[0:32] b[48:64] c[65:65] d[1:1] e[10:10]",
     "a[32:80] b[64:64] c[65:65] d[1:1] e[10:10]", "a[80:100] b[64:64] c[65:65] d[1:1] e[10:10]"},
};

static void check_leaves(tg_flat *f, tg_tensor *const *x, const char *expected) {
    char got[256] = "";
    tg_tensor *const *leaf;
    ck_assert_int_eq(tg_flat_leaves(f, &leaf), PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        tg_tensor *whole;
        int64_t begin, end;
        ck_assert(tg_range_of(leaf[i], &whole, &begin, &end));
        ck_assert(whole == x[i] && tg_numel(leaf[i]) == end - begin && tg_ndim(leaf[i]) == 1);
        ck_assert_int_eq(tg_dtype_of(leaf[i]), tg_dtype_of(x[i]));
        ck_assert(end == begin ||
                  tg_host_data(leaf[i]) == (char *)tg_host_data(x[i]) + begin * tg_dtype_bits(tg_dtype_of(x[i])) / 8);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "", tg_name(leaf[i]));
    }
    ck_assert_str_eq(got, expected);
}

/* cp takes a factor of the ranks where it can: dp and cp are one group. */
START_TEST(layouts_are_those_worked_out_by_hand) {
    for (int n = 1; n <= 8; n++)
        for (int r = 0; r < n; r++) {
            world w = world_open(r, n, TG_PARALLEL(.cp = n % 2 ? 1 : 2));
            tg_tensor *x[PARAMS], *const *leaf;
            make_five(&w, x);
            tg_flat *f = tg_flat_new(w.p, x, PARAMS, TG_FLAT(.bucket = INT64_MAX, .zero = 1));
            ck_assert_msg(f != NULL, "%s", tg_ctx_message(w.ctx));
            check_leaves(f, x, leaves_of[n - 1][tg_comm_rank(tg_parallel_dp_cp(w.p))]);
            tg_flat_free(f);
            f = tg_flat_new(w.p, x, PARAMS, NULL);
            ck_assert_int_eq(tg_flat_leaves(f, &leaf), PARAMS);
            for (int i = 0; i < PARAMS; i++) ck_assert(leaf[i] == x[i] && !tg_range_of(x[i], NULL, NULL, NULL));
            tg_flat_free(f);
            world_close(&w);
        }
}
END_TEST

/* Values survive the move into buckets and the end of these. */
START_TEST(parameters_keep_their_values) {
    world w = world_open(1, 3, NULL);
    tg_tensor *x[PARAMS];
    float before[PARAMS][128], after[128];
    make_five(&w, x);
    for (int i = 0; i < PARAMS; i++) tg_read(x[i], before[i], (size_t)tg_numel(x[i]) * (i == 4 ? 2 : 4));
    tg_flat *f = tg_flat_new(w.p, x, PARAMS, TG_FLAT(.bucket = 100, .zero = 1));
    for (int end = 0; end < 2; end++) {
        if (end) tg_flat_free(f);
        for (int i = 0; i < PARAMS; i++) {
            size_t bytes = (size_t)tg_numel(x[i]) * (i == 4 ? 2 : 4);
            tg_read(x[i], after, bytes);
            ck_assert(!memcmp(before[i], after, bytes));
        }
    }
    world_close(&w);
}
END_TEST

START_TEST(tables_of_buckets) {
    static const char *const text =
        "zero 1, 3 buckets\n"
        "bucket 0: bf16, gradients f32, over dp_cp of 2 ranks, 128 elements, 118 of them padding; a rank steps 64\n"
        "  0: e, 10 elements, rank 0 [0:10]\n"
        "bucket 1: f32, gradients f32, over dp_cp of 2 ranks, 256 elements, 126 of them padding; a rank steps 128\n"
        "  0: d, 1 element, rank 0 [0:1]\n"
        "  64: c, 65 elements, rank 0 [0:64], rank 1 [64:65]\n"
        "  192: b, 64 elements, rank 1 [0:64]\n"
        "bucket 2: f32, gradients f32, over dp_cp of 2 ranks, 128 elements, 28 of them padding; a rank steps 64\n"
        "  0: a, 100 elements, rank 0 [0:64], rank 1 [64:100]\n";
    static const char *const json =
        "{\"zero\": 0, \"buckets\": [{\"dtype\": \"f32\", \"gradients\": \"f32\", \"group\": \"dp_cp\", \"ranks\": 2, "
        "\"numel\": 128, \"padding\": 28, \"part\": 128, \"parameters\": [{\"name\": \"a\", \"offset\": 0, \"numel\": "
        "100}]}]}";
    world w = world_open(0, 2, NULL);
    char buf[2048], cut[16];
    tg_tensor *x[PARAMS];
    make_five(&w, x);
    tg_flat *f = tg_flat_new(w.p, x, PARAMS, TG_FLAT(.bucket = 250, .zero = 1));
    ck_assert_uint_eq(tg_flat_text(f, TG_TEXT, buf, sizeof buf), strlen(text));
    ck_assert_str_eq(buf, text);
    ck_assert_uint_eq(tg_flat_text(f, TG_TEXT, cut, sizeof cut), strlen(text));
    ck_assert_str_eq(cut, "zero 1, 3 bucke");
    tg_flat_free(f);
    f = tg_flat_new(w.p, x, 1, NULL);
    ck_assert_uint_eq(tg_flat_text(f, TG_JSON, buf, sizeof buf), strlen(json));
    ck_assert_str_eq(buf, json);
    tg_flat_free(f);
    world_close(&w);
}
END_TEST

/* A bucket has parameters of one group, and a shared parameter is alone. On rank 0 of 4, with 2 ranks of ep, the dense
 * group has 4 ranks and that of experts 2. */
START_TEST(groups_and_shared_parameters_have_buckets_of_their_own) {
    static const char *const text =
        "zero 1, 3 buckets\n"
        "bucket 0: f32, gradients f32, over dp_cp of 4 ranks, 128 elements, 118 of them padding; a rank steps 32\n"
        "  0: shared, 10 elements, rank 0 [0:10]\n"
        "bucket 1: f32, gradients f32, over edp of 2 ranks, 128 elements, 28 of them padding; a rank steps 64\n"
        "  0: expert, 100 elements, rank 0 [0:64], rank 1 [64:100]\n"
        "bucket 2: f32, gradients f32, over dp_cp of 4 ranks, 256 elements, 86 of them padding; a rank steps 64\n"
        "  0: b, 70 elements, rank 0 [0:64], rank 1 [64:70]\n"
        "  128: a, 100 elements, rank 2 [0:64], rank 3 [64:100]\n";
    world w = world_open(0, 4, TG_PARALLEL(.ep = 2));
    char buf[2048];
    tg_tensor *x[] = {param(&w, "a", TG_F32, 100), NULL, param(&w, "b", TG_F32, 70), param(&w, "shared", TG_F32, 10)};
    x[1] =
        tg_param_new_placed(w.p, "expert", TG_F32, TG_SHAPE(200), 1, TG_PLACES({TG_EP, TG_SHARD(0)}, {TG_EDP, TG_R}));
    tg_share(w.p, x[3], w.comm);
    tg_flat *f = tg_flat_new(w.p, x, 4, TG_FLAT(.zero = 1));
    ck_assert_msg(f != NULL, "%s", tg_ctx_message(w.ctx));
    tg_flat_text(f, TG_TEXT, buf, sizeof buf);
    ck_assert_str_eq(buf, text);
    tg_tensor *const *leaf;
    tg_flat_leaves(f, &leaf);
    tg_placement_text(leaf[0], buf, sizeof buf);
    ck_assert_str_eq(buf, "dp V");
    tg_placement_text(leaf[1], buf, sizeof buf);
    ck_assert_str_eq(buf, "ep V, edp V");
    tg_flat_free(f);
    world_close(&w);
}
END_TEST

/* ---- Refusals ---- */

static void refused(tg_ctx *ctx, tg_status code, const char *says) {
    ck_assert_msg(tg_ctx_status(ctx) == code && strstr(tg_ctx_message(ctx), says), "%s: %s, expected \"%s\"",
                  tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx), says);
    tg_ctx_clear(ctx);
}

static tg_tensor *sum_of_squares(tg_tape *t, tg_tensor *x) { return tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false); }

START_TEST(what_cannot_be_laid_out_is_refused) {
    world w = world_open(0, 2, NULL);
    tg_tape *t = tg_tape_new(w.ctx);
    tg_tensor *x = param(&w, "x", TG_F32, 6), *stray = tg_param_new(w.ctx, "stray", TG_F32, TG_SHAPE(2), 1);
    tg_tensor *grad = tg_zeros(w.ctx, TG_F32, TG_SHAPE(6));
    const tg_flat_opts *zero = TG_FLAT(.zero = 1);
#define NEW(of, opts, code, says)                                                                                      \
    ck_assert_ptr_null(tg_flat_new(w.p, &of, 1, opts));                                                                \
    refused(w.ctx, code, says)
    NEW(stray, NULL, TG_ERR_PLACEMENT, "stray f32[2] is placed as \"I\"; it must be R on dp (and cp)");
    NEW(grad, NULL, TG_ERR_STATE, "is not a leaf of the context that needs a gradient");
    tg_set_main_grad(x, grad);
    NEW(x, NULL, TG_ERR_STATE, "x f32[6] has a main gradient; remove it with tg_set_main_grad(x, NULL) first");
    tg_set_main_grad(x, NULL);
    tg_tensor *loss = sum_of_squares(t, x);
    NEW(x, zero, TG_ERR_STATE, "the bytes of x f32[6] cannot move: a node of a tape uses it; reset the tape first");
    tg_backward(t, loss);
    tg_tape_reset(t);
    tg_optim *o = tg_adamw_new(w.ctx, &x, 1, NULL);
    NEW(x, zero, TG_ERR_STATE, "an optimizer holds it; free the optimizer first, or create it afterward");
    tg_optim_free(o);
    tg_tensor *other = tg_keep(x);
    NEW(x, zero, TG_ERR_STATE, "another handle or a work in flight uses its bytes");
    tg_set_requires_grad(other, true);
    tg_place(w.p, other, TG_DP, TG_R);
    ck_assert_ptr_null(tg_flat_new(w.p, (tg_tensor *const[]){x, other}, 2, zero));
    refused(w.ctx, TG_ERR_STATE, "another handle or a work in flight uses its bytes");
    tg_drop(other);
    float columns[6] = {0};
    tg_tensor *turned = tg_wrap(w.ctx, TG_F32, TG_SHAPE(2, 3), (const int64_t[]){1, 2}, columns, NULL, NULL);
    tg_set_requires_grad(turned, true);
    tg_place(w.p, turned, TG_DP, TG_R);
    NEW(turned, zero, TG_ERR_STATE, "f32[2, 3] must be contiguous");
    tg_flat *f = tg_flat_new(w.p, &x, 1, zero);
    ck_assert_ptr_nonnull(f);
    NEW(x, NULL, TG_ERR_STATE, "x f32[6] is in a tg_flat already");
    tg_adamw_new(w.ctx, &x, 1, NULL);
    refused(w.ctx, TG_ERR_STATE,
            "tg_adamw_new: parameter 0, x f32[6], is divided over ranks by tg_flat_new; give the optimizer the leaves");
    tg_share(w.p, x, w.comm);
    refused(w.ctx, TG_ERR_STATE, "share parameters before tg_flat_new");
    tg_flat_free(f);
    tg_tape_free(t);
    world_close(&w);
}
END_TEST

/* A matrix of which this rank has a range cannot be stepped by Muon. */
START_TEST(muon_needs_whole_matrices) {
    static const char *const says[] = {"is a range of a matrix, but Muon", "is a range of a matrix (dp V), but Muon"};
    for (int ranks = 1; ranks <= 2; ranks++) {
        world w = world_open(0, ranks, NULL);
        tg_tensor *x = tg_param_new(w.ctx, "x", TG_F32, TG_SHAPE(4, 3), 1), *const * leaf;
        tg_place(w.p, x, TG_DP, TG_R);
        tg_flat *f = tg_flat_new(w.p, &x, 1, TG_FLAT(.zero = 1));
        tg_flat_leaves(f, &leaf);
        tg_muon_new(w.ctx, leaf, 1, NULL);
        refused(w.ctx, TG_ERR_PLACEMENT, says[ranks - 1]);
        tg_optim *o = tg_muon_new(w.ctx, leaf, 1, TG_MUON(.others = leaf, .n_others = 1));
        tg_optim_free(o);
        tg_flat_free(f);
        world_close(&w);
    }
}
END_TEST

/* A step that is not complete is refused at the point where it would go wrong. */
START_TEST(the_order_of_a_step_is_checked) {
    world w = world_open(0, 2, NULL);
    tg_tape *t = tg_tape_new(w.ctx);
    tg_tensor *x = param(&w, "x", TG_F32, 6), *const * leaf;
    tg_flat *f = tg_flat_new(w.p, &x, 1, TG_FLAT(.zero = 1));
    tg_flat_leaves(f, &leaf);
    tg_optim *o = tg_adamw_new(w.ctx, leaf, 1, NULL);
    tg_backward(t, sum_of_squares(t, x));
    tg_tape_reset(t);
    tg_optim_step(o);
    refused(w.ctx, TG_ERR_STATE, "the gradient of x f32[6] is not divided over the ranks of its tg_flat yet");
    ck_assert(tg_grads_finalize(w.p, &x, 1, NULL) == TG_OK);
    ck_assert(!tg_has_grad(x) && tg_has_grad(leaf[0]));
    tg_grad_of(x);
    refused(w.ctx, TG_ERR_STATE, "it is divided over ranks; read that of its leaf (tg_flat_leaves)");
    tg_grads_finalize(w.p, &x, 1, NULL);
    refused(w.ctx, TG_ERR_STATE, "no backward has run since the last call");
    tg_backward(t, sum_of_squares(t, x));
    refused(w.ctx, TG_ERR_STATE, "zero it before the next backward");
    tg_tape_reset(t);
    ck_assert(tg_optim_step(o) == TG_OK);
    float v[6];
    tg_read(x, v, sizeof v);
    refused(w.ctx, TG_ERR_STATE, "x f32[6] has values of different steps");
    ck_assert(tg_read(leaf[0], v, (size_t)tg_numel(leaf[0]) * 4) == TG_OK);
    ck_assert(tg_flat_gather(f) == TG_OK && tg_read(x, v, sizeof v) == TG_OK);
    tg_optim_zero_grad(o);
    ck_assert(!tg_has_grad(leaf[0]));
    tg_backward(t, sum_of_squares(t, x));
    tg_optim_zero_grad(o); /* also clears what was not divided yet */
    ck_assert(!tg_has_grad(x));
    tg_grads_finalize(w.p, &x, 1, NULL);
    ck_assert(tg_optim_step(o) == TG_OK);
    tg_optim_free(o);
    tg_flat_free(f);
    refused(w.ctx, TG_ERR_STATE, "each rank has stepped only its ranges of the parameters; call tg_flat_gather first");
    tg_tape_free(t);
    world_close(&w);
}
END_TEST

START_TEST(another_main_gradient_is_refused) {
    world w = world_open(0, 2, NULL);
    tg_tape *t = tg_tape_new(w.ctx);
    tg_tensor *x = param(&w, "x", TG_F32, 6), *grad = tg_zeros(w.ctx, TG_F32, TG_SHAPE(6));
    tg_flat *f = tg_flat_new(w.p, &x, 1, NULL);
    tg_set_main_grad(x, grad);
    tg_backward(t, sum_of_squares(t, x));
    ck_assert(strstr(tg_ctx_message(w.ctx), "x f32[6] has another main gradient since tg_flat_new"));
    tg_ctx_clear(w.ctx);
    tg_tape_free(t);
    tg_flat_free(f);
    tg_ctx_clear(w.ctx);
    world_close(&w);
}
END_TEST

static tg_status fill_ones(void *user, tg_ctx *ctx, void *dst, size_t bytes) {
    (void)user, (void)ctx;
    for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)dst)[i] = 1;
    return TG_OK;
}

/* The bucket has the gradients of other parameters too. */
START_TEST(a_gradient_in_a_bucket_is_not_discarded) {
    for (int zero = 0; zero <= 3; zero++) {
        world w = world_open(0, 1, NULL);
        tg_tape *t = tg_tape_new(w.ctx);
        tg_tensor *x[] = {param(&w, "x", TG_F32, 6), param(&w, "y", TG_F32, 3)}, *const * leaf;
        tg_flat *f = tg_flat_new(w.p, x, 2, TG_FLAT(.zero = zero));
        tg_flat_leaves(f, &leaf);
        tg_flat_set_reduce(f, false);
        tg_backward(t, tg_add(t, sum_of_squares(t, x[0]), sum_of_squares(t, x[1])));
        tg_discard(tg_grad_of(x[0]));
        refused(w.ctx, TG_ERR_STATE, "tg_discard: the tensor is part of a buffer of a tg_flat");
        tg_discard_with(tg_grad_of(x[0]), fill_ones, NULL, NULL);
        refused(w.ctx, TG_ERR_STATE, "tg_discard_with: the tensor is part of a buffer of a tg_flat");
        ck_assert(tg_storage_state_of(tg_grad_of(x[1])) == TG_PRESENT);
        ck_assert(tg_grads_finalize(w.p, x, 2, NULL) == TG_OK);
        tg_discard(tg_grad_of(leaf[0]));
        refused(w.ctx, TG_ERR_STATE, "tg_discard: the tensor is part of a buffer of a tg_flat");
        tg_tape_free(t);
        tg_flat_free(f);
        ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
        world_close(&w);
    }
}
END_TEST

/* ---- tg_rehome ---- */

START_TEST(bytes_move_under_the_same_handle) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F32));
    tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(2, 3), 1), *buffer = tg_zeros(ctx, TG_F32, TG_SHAPE(10));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *view = tg_keep(tg_slice(t, buffer, 0, 2, 8, 1));
    float before[6], after[10];
    tg_tape_reset(t);
    tg_read(x, before, sizeof before);
    ck_assert(tg_rehome(NULL, view) == TG_ERR_ARGUMENT);
    tg_rehome(x, x);
    refused(ctx, TG_ERR_STATE, "must not share bytes with x");
    tg_rehome(x, buffer);
    refused(ctx, TG_ERR_SHAPE, "view is f32[10]; it must have the dtype and the number of elements of x f32[2, 3]");
    tg_tensor *wide = tg_zeros(ctx, TG_F64, TG_SHAPE(6));
    tg_rehome(x, wide);
    refused(ctx, TG_ERR_DTYPE, "view is f64[6]");
    ck_assert(tg_rehome(x, view) == TG_OK);
    tg_read(buffer, after, sizeof after);
    ck_assert(!memcmp(before, after + 2, sizeof before) && after[1] == 0 && after[8] == 0);
    ck_assert(tg_host_data(x) == (float *)tg_host_data(buffer) + 2 && tg_dim(x, 1) == 3);
    tg_rehome(x, tg_zeros(ctx, TG_F32, TG_SHAPE(6)));
    refused(ctx, TG_ERR_STATE, "another handle or a work in flight uses its bytes");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- The order of calls ---- */

/* The calls of the transport, and the products of a device. */
static char events[1024];
static tg_status (*true_gemm)(tg_ctx *ctx, const tg_gemm *g);

static void note(const char *what) {
    size_t at = strlen(events);
    snprintf(events + at, sizeof events - at, "%s%s", at ? ", " : "", what);
}

static tg_status noted_gemm(tg_ctx *ctx, const tg_gemm *g) {
    note("product");
    return true_gemm(ctx, g);
}

static const char *const *names_of(const tg_transfer *call) {
    enum { CALLS = 64 };
    static char end[CALLS][48];
    static const char *names[CALLS][2];
    static int n;
    int i = n++ % CALLS;
    snprintf(end[i], sizeof end[i], "end %s %lld", tg_collective_name(call->kind), (long long)call->count);
    names[i][0] = end[i] + strlen("end ");
    names[i][1] = end[i];
    return names[i];
}

static void expect(const char *events_of, const char *when) {
    ck_assert_msg(!strcmp(events, events_of), "%s: %s\nexpected %s", when, events, events_of);
    events[0] = 0;
}

enum { LAYERS = 3 };

/* A step of three layers of different sizes, each with a bucket of its own. */
START_TEST(sums_and_gathers_run_in_parallel_with_products) {
    static tg_device_ops device;
    tg_ctx *plain = tg_ctx_new(NULL);
    device = *tg_ctx_ops(plain);
    true_gemm = device.gemm;
    device.gemm = noted_gemm;
    tg_ctx_free(plain);
    tg_ctx *ctx = tg_ctx_new_on(&device, TG_CONFIG(.threads = 1, .dtype = TG_F32));
    tg_comm *c = tg_comm_new_on(ctx, &noting, NULL, 0, 2);
    world v = {ctx, c, tg_parallel_new(c, NULL)};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w[LAYERS], *x = tg_zeros(ctx, TG_F32, TG_SHAPE(4, 16)), *const * leaf;
    tg_place(v.p, x, TG_DP, TG_V);
    for (int i = 0; i < LAYERS; i++) {
        w[i] = tg_param_new(ctx, "w", TG_F32, TG_SHAPE(16 << i, i ? 16 << (i - 1) : 16), 1);
        tg_place(v.p, w[i], TG_DP, TG_R);
    }
    tg_flat *f = tg_flat_new(v.p, w, LAYERS, TG_FLAT(.bucket = 1, .zero = 1));
    tg_flat_leaves(f, &leaf);
    tg_optim *o = tg_sgd_new(ctx, leaf, LAYERS, TG_SGD(.lr = 1));
    events[0] = 0;
    tg_tensor *h = x;
    for (int step = 0; step < 2; step++, h = x) {
        for (int i = 0; i < LAYERS; i++) h = tg_linear(t, h, w[i], NULL);
        expect(step ? "all_gather 128, all_gather 256, all_gather 1024, end all_gather 128, product, "
                      "end all_gather 256, product, end all_gather 1024, product"
                    : "product, product, product",
               "gathers and forward");
        tg_backward(t, sum_of_squares(t, h));
        tg_tape_reset(t);
        expect("product, product, reduce_scatter 1024, product, product, reduce_scatter 256, product, "
               "reduce_scatter 128",
               "backward");
        tg_grads_finalize(v.p, w, LAYERS, NULL);
        expect("all_reduce 3, end reduce_scatter 1024, end reduce_scatter 256, end reduce_scatter 128, "
               "end all_reduce 3",
               "finalize");
        tg_optim_step(o);
        tg_flat_gather(f);
        tg_optim_zero_grad(o);
    }
    events[0] = 0;
    tg_optim_free(o);
    tg_flat_free(f);
    tg_tape_free(t);
    world_close(&v);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        layouts_are_those_worked_out_by_hand,
        parameters_keep_their_values,
        tables_of_buckets,
        groups_and_shared_parameters_have_buckets_of_their_own,
        what_cannot_be_laid_out_is_refused,
        muon_needs_whole_matrices,
        the_order_of_a_step_is_checked,
        another_main_gradient_is_refused,
        a_gradient_in_a_bucket_is_not_discarded,
        bytes_move_under_the_same_handle,
        sums_and_gathers_run_in_parallel_with_products,
    };
    return tg_check_main("flat", tests, sizeof tests / sizeof *tests);
}
