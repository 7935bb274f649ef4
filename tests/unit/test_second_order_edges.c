/* Derivatives that are recorded as ops, at the edges of the ops: masks, overflow, underflow, infinities, NaN,
 * and too little memory. */
#include "second_order.h"

#include "counted_allocator.h"

/* The same as backward's, at the bounds and for NaN too. */
START_TEST(clamp_has_its_slopes_on_the_tape) {
    const double x[] = {-1, 2, 0.5, -1.5, 3, NAN, INFINITY}, slope[] = {1, 1, 1, 0, 0, 0, 0};
    begin();
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        tg_tensor *at = leaf(x[i]);
        ck_assert_msg(tg_item(derivative(tg_clamp(t, at, -1, 2), at)) == slope[i], "at %g", x[i]);
    }
    end();
}
END_TEST

/* Derivatives that use a mask, a wider dtype or a guard against overflow: both ways give them, with the same values. */
typedef tg_tensor *(*edge_fn)(tg_tape *, tg_tensor *x, tg_tensor *z);
static tg_tensor *power(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_pow(u, x, z); }
static tg_tensor *angle(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_atan2(u, x, z); }
static tg_tensor *steps(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_floor(u, x), z); }
static tg_tensor *to_0(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_pow_scalar(u, x, 0), z); }
static tg_tensor *gelus(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_gelu_tanh(u, x), z); }
static tg_tensor *sums(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_logsumexp(u, tg_stack(u, (tg_tensor *[]){x, z}, 2, 0), TG_ALL_DIMS, false);
}

static tg_tensor *pair_of(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_stack(u, (tg_tensor *[]){x, z}, 2, 0); }
static tg_tensor *products(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_prod(u, pair_of(u, x, z), TG_ALL_DIMS, false);
}
static tg_tensor *greatest(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_max(u, pair_of(u, x, z), TG_ALL_DIMS, false);
}
static tg_tensor *smallest(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_min(u, pair_of(u, x, z), TG_ALL_DIMS, false);
}
static tg_tensor *halves(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_norm(u, pair_of(u, x, z), 0.5, TG_ALL_DIMS, false);
}
static tg_tensor *inverses(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_norm(u, pair_of(u, x, z), -1, TG_ALL_DIMS, false);
}
static tg_tensor *spread(tg_tape *u, tg_tensor *x, tg_tensor *z) {
    return tg_std(u, pair_of(u, x, z), TG_ALL_DIMS, 0, false);
}
static tg_tensor *sizes(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_abs(u, x), z); }
static tg_tensor *ramps(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_relu(u, x), z); }
static tg_tensor *swishes(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_mul(u, tg_hardswish(u, x), z); }
static tg_tensor *distance(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_l1(u, x, z, NULL); }

static tg_tensor *bowl(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_huber(u, x, z, 0.75, NULL); }
static tg_tensor *scaled_bowl(tg_tape *u, tg_tensor *x, tg_tensor *z) { return tg_smooth_l1(u, x, z, 0.75, NULL); }

static bool near(double got, double want) {
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= 4e-3 * fabs(want);
}

static void check_edge(edge_fn f, const char *name, tg_dtype dtype, double a, double b) {
    tg_tensor *in[2] = {tg_zeros(ctx, dtype, TG_SHAPE()), tg_zeros(ctx, dtype, TG_SHAPE())}, *plain[2], *recorded[2],
              *push;
    tg_write_f64(in[0], &a, 1);
    tg_write_f64(in[1], &b, 1);
    for (int i = 0; i < 2; i++) tg_set_requires_grad(in[i], true);
    tg_tensor *y = f(t, in[0], in[1]), *one = tg_full(t, dtype, TG_SHAPE(), 1);
    tg_grad(t, &y, 1, in, 2, plain, TG_GRAD(.retain = true));
    tg_grad(t, &y, 1, in, 2, recorded, TG_GRAD(.create_graph = true));
    for (int i = 0; i < 2; i++) {
        double want = tg_item(plain[i]), got = tg_item(recorded[i]);
        ck_status(TG_OK);
        ck_assert_msg(near(got, want), "%s in %s at (%g, %g), input %d: %g, expected %g", name, tg_dtype_name(dtype), a,
                      b, i, got, want);
        tg_jvp(t, &y, 1, &in[i], 1, &one, &push);
        got = tg_item(push);
        /* the other's derivative times a tangent of 0; some ops omit it */
        bool strict = f == sums || f == bowl || f == scaled_bowl;
        bool odd = !strict && isnan(got) && !(isfinite(a) && isfinite(b));
        ck_assert_msg(near(got, want) || odd, "%s in %s at (%g, %g), tangent %d: %g, not %g", name,
                      tg_dtype_name(dtype), a, b, i, got, want);
    }
    tg_tape_reset(t);
    for (int i = 0; i < 2; i++) tg_drop(in[i]);
}

START_TEST(edges_are_those_of_backward) {
    begin();
    check_edge(power, "pow", TG_F64, 0, 2);
    check_edge(power, "pow", TG_F64, 0, 0);
    check_edge(power, "pow", TG_F32, 3, 0);
    check_edge(angle, "atan2", TG_F64, 0, 0);
    check_edge(angle, "atan2", TG_F32, 3e20, 4e20);
    check_edge(angle, "atan2", TG_F32, 1e-23, 1e-23);
    check_edge(angle, "atan2", TG_F16, 300, 400);
    check_edge(angle, "atan2", TG_F16, 60000, 60000);
    check_edge(steps, "floor", TG_F32, 2, 3);
    check_edge(to_0, "x^0", TG_F32, 0, 3);
    for (double x = -300; x <= 300; x += 100) check_edge(gelus, "gelu_tanh", TG_F16, x + 0.5, 1);
    check_edge(sums, "logsumexp", TG_F32, -INFINITY, -INFINITY);
    check_edge(sums, "logsumexp", TG_BF16, -INFINITY, -INFINITY);
    check_edge(sums, "logsumexp", TG_F16, -INFINITY, -INFINITY);
    check_edge(sums, "logsumexp", TG_F16, 60000, -60000);
    for (int i = 0; i < 4; i++) check_edge(gelus, "gelu_tanh", TG_F32, (i % 2 ? -1 : 1) * (i < 2 ? 1e14 : 1e30), 1);
    check_edge(gelus, "gelu_tanh", TG_F64, 1e200, 1);
    check_edge(power, "pow", TG_F64, NAN, 0);
    check_edge(power, "pow", TG_F32, 1e-42, 0);
    check_edge(power, "pow", TG_F32, -INFINITY, 0);
    check_edge(power, "pow", TG_F16, 1e-6, 0);
    check_edge(power, "pow", TG_BF16, -1, 258); /* bfloat16 cannot represent 257 */
    const double odd[][2] = {{NAN, 1},      {1, NAN},       {NAN, 0},
                             {0, NAN},      {NAN, NAN},     {INFINITY, 1},
                             {0, INFINITY}, {-INFINITY, 0}, {INFINITY, INFINITY}};
    for (int i = 0; i < 9; i++) {
        check_edge(tg_maximum, "maximum", TG_F64, odd[i][0], odd[i][1]);
        check_edge(tg_minimum, "minimum", TG_F32, odd[i][0], odd[i][1]);
        check_edge(greatest, "max", TG_F32, odd[i][0], odd[i][1]);
        check_edge(smallest, "min", TG_BF16, odd[i][0], odd[i][1]);
        if (odd[i][0] == 0 || odd[i][1] == 0) check_edge(products, "prod", TG_F32, odd[i][0], odd[i][1]);
        check_edge(sizes, "abs", TG_F32, odd[i][0], 1);
        check_edge(ramps, "relu", TG_F32, odd[i][0], 1);
        check_edge(swishes, "hardswish", TG_F32, odd[i][0], i % 2 ? 3 : -3);
        check_edge(distance, "l1", TG_F32, odd[i][0], odd[i][1]);
        check_edge(bowl, "huber", TG_F32, odd[i][0], odd[i][1]);
        check_edge(scaled_bowl, "smooth_l1", TG_F16, odd[i][0], odd[i][1]);
        check_edge(sums, "logsumexp", TG_F32, odd[i][0], odd[i][1]);
        check_edge(sums, "logsumexp", TG_F16, odd[i][0], odd[i][1]);
        if (i < 5) check_edge(angle, "atan2", TG_F32, odd[i][0], odd[i][1]);
    }
    for (double x = -2; x <= 2; x += 0.5) {
        check_edge(bowl, "huber", TG_F64, x, 0.25);
        check_edge(scaled_bowl, "smooth_l1", TG_F64, x, 0.25);
    }
    check_edge(halves, "norm", TG_F32, 1e-30, 1e10);
    check_edge(inverses, "norm", TG_F32, 1e-30, 1e10);
    check_edge(inverses, "norm", TG_F64, 0, 2);
    check_edge(inverses, "norm", TG_F16, 0, 0);
    check_edge(spread, "std", TG_F32, 1e30, 3e30);
    check_edge(spread, "std", TG_F32, 0.1, 0.1);
    end();
}
END_TEST

/* At 1 and -1 the second derivatives of asin and acos are infinite, like the first. */
START_TEST(the_arcs_end_upright) {
    begin();
    for (double at = -1; at <= 1; at += 2) {
        tg_tensor *x = leaf(at), *up = derivative(tg_asin(t, x), x), *down = derivative(tg_acos(t, x), x);
        ck_assert(tg_item(up) == INFINITY && tg_item(down) == -INFINITY);
        ck_assert(tg_item(derivative(up, x)) == at * INFINITY && tg_item(derivative(down, x)) == -at * INFINITY);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* The derivative of a^b by a is 0 for b = 0; its own derivative by b is 1 / a. */
START_TEST(a_power_of_0_has_its_second_derivative) {
    begin();
    const double a[] = {2, -4, 0x1p-1000};
    for (int i = 0; i < 3; i++) {
        tg_tensor *x = leaf(a[i]), *b = leaf(0), *slope = derivative(tg_pow(t, x, b), x);
        ck_near(tg_item(slope), 0);
        if (a[i] > 0) ck_assert(tg_item(derivative(slope, b)) == 1 / a[i]);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

static tg_tensor *part(tg_tensor *x) { return tg_select(t, x, 1, 0); }
static tg_tensor *pool(tg_tensor *x) { return tg_max_pool2d(t, x, 2, 2, NULL); }
static tg_tensor *attention(tg_tensor *x) {
    return tg_attention(t, x, x, x, TG_ATTENTION(.sink = tg_zeros(ctx, TG_BF16, TG_SHAPE(1))));
}

/* Records the derivative of f after n other ops. Allocation number `at` of it is refused; 0: none is. Returns the
 * number of allocations. */
static int64_t derive_without(int64_t at, int n, tg_tensor *(*f)(tg_tensor *x)) {
    counted memory = {0};
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
    t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_BF16, TG_SHAPE(1, 1, 3, 4)), *y = x, *g;
    for (int k = 0; k < n; k++) y = tg_neg(t, x);
    tg_set_requires_grad(x, true);
    y = tg_sum(t, f(x), TG_ALL_DIMS, false);
    int64_t before = memory.calls;
    memory.fail_at = at ? before + at : 0;
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    int64_t calls = memory.calls - before;
    ck_assert_int_eq(tg_ctx_status(ctx), at ? TG_ERR_MEMORY : TG_OK);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    ck_assert_int_eq(memory.held, 0);
    return calls;
}

/* Handles are allocated in groups, so other ops decide which call of the derivative needs the memory. */
START_TEST(derivatives_without_memory_are_errors) {
    enum { OTHERS = 300 };
    for (int n = 0; n < OTHERS; n++) {
        for (int64_t at = derive_without(0, n, part); at > 0; at--) derive_without(at, n, part);
        for (int64_t at = derive_without(0, n, attention); at > 0; at--) derive_without(at, n, attention);
        for (int64_t at = derive_without(0, n, pool); at > 0; at--) derive_without(at, n, pool);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {derivatives_without_memory_are_errors,
                                  clamp_has_its_slopes_on_the_tape, edges_are_those_of_backward, the_arcs_end_upright,
                                  a_power_of_0_has_its_second_derivative};
    return tg_check_main("second order at edges", tests, sizeof tests / sizeof *tests);
}
