/* tg_tape_pack: tensors saved by nodes are kept by the caller until backward reads them. */
#include "world.h"

#include <math.h>
#include <stdlib.h>

#include <tapegrad/extend.h>
#include <tapegrad/nn.h>
#include <tapegrad/gpt.h>

/* Packs tensors with at least this many elements as copies on the host. */
typedef struct shelf {
    int64_t least;
    int packed, unpacked, dropped;
    tg_status fail_pack, fail_unpack;
    double scale; /* factor of unpacked values; 0: 1 */
} shelf;

static tg_status put(void *user, tg_tape *tape, tg_tensor *x, void **packed) {
    shelf *s = user;
    (void)tape;
    ck_assert(tg_ndim(x) == 1 && tg_is_alive(x) && !tg_is_grad_on(tape));
    if (tg_numel(x) < s->least) return TG_OK;
    double *v = malloc((size_t)tg_numel(x) * sizeof *v);
    *packed = v;
    s->packed++;
    tg_read_f64(x, v, tg_numel(x));
    return s->fail_pack;
}

static tg_status get(void *user, void *packed, tg_tensor *x) {
    shelf *s = user;
    double *v = packed;
    s->unpacked++;
    for (int64_t i = 0; s->scale && i < tg_numel(x); i++) v[i] *= s->scale;
    tg_write_f64(x, v, tg_numel(x));
    return s->fail_unpack;
}

static void end_one(void *user, void *packed) {
    ((shelf *)user)->dropped++;
    free(packed);
}

static tg_pack_ops packer_on(shelf *s) { return *TG_PACK_OPS(.pack = put, .unpack = get, .drop = end_one, .user = s); }

static void use(shelf *s) {
    tg_pack_ops p = packer_on(s);
    ck_assert(tg_tape_pack(t, &p) == TG_OK);
}

static tg_tensor *ramp(int rows, int cols) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(rows, cols));
    double v[64];
    for (int i = 0; i < rows * cols; i++) v[i] = sin(i + 1.0);
    tg_write_f64(x, v, rows * cols);
    tg_set_requires_grad(x, true);
    return x;
}

/* exp saves its result, and square its input; the outer square saves its input, which is an output of the scope. */
static tg_tensor *scoped(tg_tensor *x) {
    tg_scope_open(t, "part");
    tg_tensor *y = tg_square(t, tg_exp(t, x));
    tg_scope_close(t, &y, 1);
    return tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
}

static void gradient(tg_tensor *x, double *g) {
    tg_read_f64(tg_grad_of(x), g, tg_numel(x));
    tg_zero_grad(x);
    tg_tape_reset(t);
}

/* ---- Scopes ---- */

START_TEST(scopes_pack_saved_tensors) {
    begin();
    shelf s = {0};
    double plain[12], packed[12];
    tg_tensor *x = ramp(3, 4);
    tg_backward(t, scoped(x));
    gradient(x, plain);
    use(&s);
    for (int step = 1; step <= 2; step++) { /* the setting outlasts resets */
        tg_tensor *y = scoped(x);
        ck_assert_int_eq(s.packed, step); /* only the result of exp */
        ck_assert_int_eq(s.unpacked, step - 1);
        tg_backward(t, y);
        ck_assert_int_eq(s.unpacked, step);
        ck_assert_int_eq(s.dropped, step); /* as soon as backward has passed exp */
        gradient(x, packed);
        ck_assert_mem_eq(plain, packed, sizeof plain);
    }
    tg_tape_pack(t, NULL);
    tg_backward(t, scoped(x));
    ck_assert_int_eq(s.packed, 2);
    end();
}
END_TEST

START_TEST(memory_is_given_back) {
    begin();
    shelf s = {0};
    int64_t live[2];
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(64, 64));
    tg_set_requires_grad(x, true);
    for (int i = 0; i < 2; i++) {
        if (i) use(&s);
        scoped(x);
        tg_memory_info m = TG_MEMORY_INFO();
        tg_memory_query(ctx, &m);
        live[i] = m.live;
        tg_tape_reset(t);
    }
    ck_assert_int_eq(live[0] - live[1], 64 * 64 * 8);
    ck_assert_int_eq(s.packed, 1);
    ck_assert_int_eq(s.dropped, 1); /* by the reset, because no backward ran */
    ck_assert_int_eq(s.unpacked, 0);
    end();
}
END_TEST

START_TEST(small_or_returned_tensors_stay) {
    begin();
    shelf s = {.least = 100};
    tg_tensor *x = ramp(2, 3);
    use(&s);
    tg_backward(t, scoped(x)); /* too small to be packed */
    ck_assert_int_eq(s.packed + s.dropped, 0);
    s.least = 0;
    tg_tape_reset(t);
    tg_scope_open(t, "part"); /* created before, or an output */
    tg_tensor *a = tg_exp(t, x);
    tg_scope_open(t, NULL);
    tg_tensor *b = tg_square(t, a);
    tg_scope_close(t, &b, 1);
    ck_assert_int_eq(s.packed, 0);
    tg_tensor *outputs[] = {tg_transpose(t, a, 0, 1), b};
    tg_scope_close(t, outputs, 2); /* a view of it */
    ck_assert_int_eq(s.packed, 0);
    tg_tape_set_grad_mode(t, false);
    scoped(x);
    tg_tape_set_grad_mode(t, true);
    ck_assert_int_eq(s.packed, 0);
    end();
}
END_TEST

START_TEST(readers_get_unpacked_values) {
    begin();
    shelf s = {.scale = 2};
    double v;
    tg_tensor *x = leaf(1);
    use(&s);
    tg_scope_open(t, NULL);
    tg_tensor *a = tg_exp(t, x), *view = tg_reshape(t, a, TG_SHAPE(1)), *y = tg_square(t, a);
    tg_scope_close(t, &y, 1);
    ck_assert(tg_storage_state_of(a) == TG_DISCARDED && tg_storage_state_of(view) == TG_DISCARDED);
    ck_assert(tg_read_f64(view, &v, 1) == TG_OK && fabs(v - 2 * exp(1)) < 1e-12);
    tg_backward(t, y); /* 2 a a, with a twice as large; unpacked once */
    ck_assert_int_eq(s.unpacked, 1);
    ck_assert(fabs(grad(x) - 8 * exp(2)) < 1e-9);
    end();
}
END_TEST

/* ---- tg_pack ---- */

START_TEST(tg_pack_packs_one_tensor) {
    begin();
    shelf s = {0};
    tg_tensor *x = leaf(2), *a = tg_exp(t, x), *unused = tg_neg(t, x);
    ck_assert(tg_pack(a) == TG_OK && tg_storage_state_of(a) == TG_PRESENT); /* without a packer */
    use(&s);
    ck_assert(tg_pack(x) == TG_OK && tg_pack(unused) == TG_OK);
    ck_assert_int_eq(s.packed, 0); /* tensors of the context, and tensors that no node has saved */
    tg_tensor *y = tg_sin(t, a);
    ck_assert(tg_pack(a) == TG_OK && tg_pack(a) == TG_OK);
    ck_assert_int_eq(s.packed, 1);
    ck_assert(tg_storage_state_of(a) == TG_DISCARDED);
    tg_backward(t, y);
    ck_assert(fabs(grad(x) - cos(exp(2)) * exp(2)) < 1e-12);
    ck_assert_int_eq(s.unpacked, 1);
    ck_assert_int_eq(s.dropped, 1);
    end();
}
END_TEST

START_TEST(kept_beyond_the_packer) {
    begin();
    shelf *s = calloc(1, sizeof *s);
    double v;
    tg_tensor *x = leaf(0.5);
    use(s);
    tg_tensor *a = tg_exp(t, x), *y = tg_square(t, a);
    tg_pack(a);
    tg_tensor *k = tg_keep(a);
    ck_assert(s->unpacked == 1 && s->dropped == 1); /* the memory belongs to the caller */
    for (int i = 1; i <= 2; i++) {
        ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.retain = i < 2)) == TG_OK);
        ck_assert(fabs(grad(x) - i * 2 * exp(1)) < 1e-12);
        ck_assert(tg_storage_state_of(k) == TG_PRESENT);
    }
    tg_tape_reset(t);
    ck_assert_int_eq(s->dropped, 1);
    tg_tape_pack(t, NULL);
    free(s);
    ck_assert(tg_read_f64(k, &v, 1) == TG_OK && fabs(v - exp(0.5)) < 1e-12);
    tg_drop(k);
    end();
}
END_TEST

/* A tape that has packed something ends without a backward, and another tape reads it after the packer has ended. */
START_TEST(read_by_another_tape) {
    enum { WAYS = 3 };
    for (int way = 0; way < WAYS; way++) {
        begin();
        shelf *s = calloc(1, sizeof *s);
        tg_tensor *x = leaf(0.5);
        tg_tape *other = tg_tape_new(ctx);
        use(s);
        tg_tensor *a = tg_exp(t, x), *b = tg_sin(t, a), *c = tg_square(t, b), *entered = tg_tape_input(other, a);
        ck_assert(tg_pack(a) == TG_OK && tg_pack(b) == TG_OK && tg_is_alive(c));
        ck_assert_int_eq(s->packed, 2);
        if (way == 2) s->fail_unpack = TG_ERR_IO;
        if (way == 1) tg_ctx_fail(ctx, TG_ERR_STATE, "on purpose");
        tg_tape_reset(t);
        if (way == 2) ck_status(TG_ERR_CALLBACK);
        tg_ctx_clear(ctx);
        ck_assert_int_eq(s->unpacked, way != 1); /* b was freed with the tape */
        ck_assert_int_eq(s->dropped, 2);
        tg_tape_pack(t, NULL);
        free(s);
        double v = 0;
        tg_read_f64(tg_square(other, entered), &v, 1);
        if (way) {
            ck_status(TG_ERR_DISCARDED);
            ck_says("tg_tape_pack");
            tg_ctx_clear(ctx);
        } else {
            ck_assert(fabs(v - exp(1)) < 1e-12);
        }
        tg_tape_free(other);
        end();
    }
}
END_TEST

START_TEST(a_context_can_end_with_packed_tensors) {
    begin();
    shelf s = {0};
    tg_tensor *x = leaf(0.5);
    tg_tape *other = tg_tape_new(ctx);
    use(&s);
    tg_tensor *a = tg_exp(t, x), *b = tg_square(t, a);
    ck_assert(tg_is_alive(tg_tape_input(other, a)) && tg_is_alive(b) && tg_pack(a) == TG_OK);
    ck_status(TG_OK);
    tg_ctx_free(ctx);
    ck_assert(s.packed == 1 && s.unpacked == 0 && s.dropped == 1);
}
END_TEST

/* ---- Backward more than once ---- */

/* Whether or not the tape still has the packer. */
static void check_retained(bool removed) {
    begin();
    shelf s = {0};
    tg_tensor *x = leaf(0.5);
    use(&s);
    tg_tensor *a = tg_exp(t, x), *y = tg_square(t, a);
    tg_pack(a);
    if (removed) tg_tape_pack(t, NULL);
    for (int i = 1; i <= 3; i++) {
        ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.retain = i < 3)) == TG_OK);
        ck_assert(fabs(grad(x) - i * 2 * exp(1)) < 1e-12);
        ck_assert(tg_storage_state_of(a) == TG_DISCARDED);
        ck_assert_int_eq(s.dropped, i == 3);
    }
    ck_assert_int_eq(s.unpacked, 5); /* for each node that had saved it; once in the last pass */
    end();
}

START_TEST(retained) {
    check_retained(false);
    check_retained(true);
}
END_TEST

START_TEST(recorded_derivatives_are_searched) {
    begin();
    shelf s = {0};
    tg_tensor *x = leaf(0.5), *g, *gg;
    use(&s);
    tg_tensor *a = tg_exp(t, x), *y = tg_square(t, a);
    tg_pack(a);
    ck_assert(tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true)) == TG_OK);
    ck_assert(tg_grad(t, &g, 1, &x, 1, &gg, NULL) == TG_OK);
    ck_assert(fabs(tg_item(gg) - 4 * exp(1)) < 1e-12);
    end();
}
END_TEST

/* ---- Errors ---- */

static void ck_ended(tg_status status, const char *says) {
    ck_status(status);
    ck_says(says);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
}

START_TEST(failures) {
    begin();
    shelf s = {.fail_pack = TG_ERR_IO};
    tg_tensor *x = leaf(1);
    use(&s);
    scoped(x);
    ck_ended(TG_ERR_CALLBACK, "the packer of saved tensors failed with TG_ERR_IO");
    ck_assert_int_eq(s.dropped, 1);
    s = (shelf){.fail_unpack = TG_ERR_IO};
    tg_backward(t, scoped(x));
    ck_ended(TG_ERR_CALLBACK, "the refill of a discarded tensor failed with TG_ERR_IO");
    ck_assert_int_eq(s.dropped, 1);
    s = (shelf){0};
    tg_tensor *a = tg_exp(t, x), *y = tg_square(t, a);
    tg_pack(a);
    tg_relu_(t, a);
    tg_backward(t, y);
    ck_ended(TG_ERR_VERSION, "saved for backward as input 0, was overwritten by");
    ck_assert_int_eq(s.dropped, 1);
    a = tg_scale(t, x, 1);
    y = tg_square(t, a);
    tg_pack(a);
    ck_assert(tg_discard(a) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    tg_backward(t, y);
    end();
}
END_TEST

/* ---- Together with other features ---- */

static tg_status keep_half(void *user, tg_tape *tape, tg_tensor *x, void **packed) {
    ++*(int *)user;
    *packed = tg_keep(tg_cast(tape, x, TG_F32)); /* recorded without gradients */
    return TG_OK;
}

static tg_status give_half(void *user, void *packed, tg_tensor *x) {
    double v[64];
    (void)user;
    tg_read_f64(packed, v, tg_numel(packed));
    return tg_write_f64(x, v, tg_numel(x));
}

static void drop_half(void *user, void *packed) {
    (void)user;
    tg_drop(packed);
}

START_TEST(packers_may_record_ops) {
    begin();
    int n = 0;
    double plain[12], packed[12];
    tg_tensor *x = ramp(3, 4);
    tg_backward(t, scoped(x));
    gradient(x, plain);
    tg_tape_pack(t, TG_PACK_OPS(.pack = keep_half, .unpack = give_half, .drop = drop_half, .user = &n));
    tg_tensor *y = scoped(x);
    int64_t nodes = tg_tape_nodes(t);
    tg_backward(t, y);
    ck_assert_int_eq(nodes, 5); /* x, and four ops */
    gradient(x, packed);
    ck_assert_int_eq(n, 1);
    double worst = 0;
    for (int i = 0; i < 12; i++) worst = larger_or_nan(worst, fabs(packed[i] / plain[i] - 1));
    ck_assert(worst > 0 && worst < 1e-6);
    end();
}
END_TEST

static tg_status exp_square(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(tape, tg_exp(tape, in[0]));
    return TG_OK;
}

/* Packs one tensor, and then ends the packing. */
static tg_status put_last(void *user, tg_tape *tape, tg_tensor *x, void **packed) {
    ck_assert(tg_tape_pack(tape, NULL) == TG_OK);
    return put(user, tape, x, packed);
}

START_TEST(a_packer_may_end_the_packing) {
    begin();
    shelf s = {0};
    tg_pack_ops p = packer_on(&s);
    p.pack = put_last;
    ck_assert(tg_tape_pack(t, &p) == TG_OK);
    tg_tensor *x = leaf(0.5);
    tg_scope_open(t, "part");
    tg_tensor *y = tg_exp(t, tg_exp(t, tg_exp(t, x)));
    tg_scope_close(t, &y, 1);
    ck_assert_int_eq(s.packed, 1);
    tg_backward(t, y);
    ck_assert(s.unpacked == 1 && s.dropped == 1);
    ck_assert_double_eq_tol(grad(x), exp(exp(exp(0.5))) * exp(exp(0.5)) * exp(0.5), 1e-12 * grad(x));
    end();
}
END_TEST

static tg_status close_all(void *user, tg_tape *tape, tg_tensor *x, void **packed) {
    (void)user, (void)x, (void)packed;
    return tg_scope_close(tape, NULL, 0);
}

START_TEST(a_packer_cannot_close_the_scope) {
    begin();
    tg_tape_pack(t, TG_PACK_OPS(.pack = close_all, .unpack = get));
    tg_scope_open(t, "outer");
    scoped(leaf(1));
    ck_status(TG_ERR_STATE);
    ck_says("tg_scope_close: no scope is open that this function has opened");
    tg_ctx_clear(ctx);
    tg_tape_pack(t, NULL);
    ck_assert(tg_scope_close(t, NULL, 0) == TG_OK); /* the outer one */
    ck_assert(tg_scope_close(t, NULL, 0) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(within_recomputation) {
    begin();
    shelf s = {0};
    tg_tensor *x = leaf(0.5), *y;
    use(&s);
    tg_scope_open(t, NULL);
    tg_tensor *h = tg_scale(t, x, 2);
    tg_recompute(t, exp_square, NULL, &h, 1, &y, 1, NULL);
    tg_scope_close(t, &y, 1);
    ck_assert_int_eq(s.packed, 1); /* the input that the second run will need */
    tg_backward(t, y);
    ck_assert(fabs(grad(x) - 4 * exp(2)) < 1e-12);
    end();
}
END_TEST

static double gpt_step(tg_ctx *c, const tg_pack_ops *p, int recompute, double *norm) {
    tg_module *gpt = tg_gpt_new(c, TG_GPT(.arch = TG_LLAMA, .vocab = 32, .layers = 2, .heads = 2, .hidden = 16,
                                          .positions = 8, .recompute = (tg_gpt_recompute)recompute));
    tg_tape *tape = tg_tape_new(c);
    int64_t ids[16];
    for (int i = 0; i < 16; i++) ids[i] = (7 * i) % 32;
    tg_tensor *in = tg_from_host(c, TG_I64, TG_SHAPE(2, 8), ids);
    ck_assert(tg_tape_pack(tape, p) == TG_OK);
    tg_tensor *loss = tg_gpt_loss(gpt, tape, in, in, TG_LOSS_MEAN);
    double value = tg_item(loss);
    tg_backward(tape, loss);
    *norm = 0;
    for (int i = 0; i < tg_module_param_count(gpt); i++) {
        double g[4096];
        tg_tensor *x = tg_module_param(gpt, i, NULL);
        tg_read_f64(tg_grad_of(x), g, tg_numel(x));
        for (int64_t k = 0; k < tg_numel(x); k++) *norm += g[k] * sin((double)k + i);
    }
    tg_tape_free(tape);
    tg_module_free(gpt);
    return value;
}

START_TEST(a_model) {
    for (int recompute = 0; recompute < 3; recompute++) {
        double loss[2], norm[2];
        shelf s = {0};
        tg_pack_ops p = packer_on(&s);
        for (int i = 0; i < 2; i++) {
            ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 5, .threads = 1));
            loss[i] = gpt_step(ctx, i ? &p : NULL, recompute, &norm[i]);
            ck_status(TG_OK);
            tg_ctx_free(ctx);
        }
        ck_assert(loss[0] == loss[1] && norm[0] == norm[1]);
        if (!recompute) ck_assert(s.packed > 10);
        ck_assert_int_eq(s.dropped, s.packed);
        ck_assert_int_eq(s.unpacked, s.packed);
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {scopes_pack_saved_tensors,
                            memory_is_given_back,
                            small_or_returned_tensors_stay,
                            readers_get_unpacked_values,
                            tg_pack_packs_one_tensor,
                            kept_beyond_the_packer,
                            read_by_another_tape,
                            a_context_can_end_with_packed_tensors,
                            retained,
                            recorded_derivatives_are_searched,
                            failures,
                            packers_may_record_ops,
                            a_packer_may_end_the_packing,
                            a_packer_cannot_close_the_scope,
                            within_recomputation,
                            a_model};
    return tg_check_main("pack", tests, sizeof tests / sizeof *tests);
}
