/* Calls of ops by name: how values become arguments, which defaults there are, and ops of the program's own. That every
 * op gives the same bits as in C is tested by ops / by_name, and wrong calls by the misuse suite. */
#include <string.h>

#include <tapegrad/extend.h>

#include "check_main.h"

static tg_ctx *ctx;
static tg_tape *t;

static void begin(void) {
    ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64, .threads = 1, .seed = 7));
    t = tg_tape_new(ctx);
}

static void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}

/* The numbers 0, 1, .. in this shape. */
static tg_tensor *numbers(tg_shape shape) {
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++) n *= shape.dim[d];
    return tg_reshape(t, tg_arange(t, TG_F64, 0, (double)n, 1), shape);
}

static void same(tg_tensor *a, tg_tensor *b) {
    double x[64], y[64];
    int64_t n = tg_numel(a);
    tg_shape as = tg_shape_of(a), bs = tg_shape_of(b);
    ck_assert(!memcmp(&as, &bs, sizeof as) && tg_dtype_of(a) == tg_dtype_of(b) && n <= 64);
    ck_assert(tg_read_f64(a, x, n) == TG_OK && tg_read_f64(b, y, n) == TG_OK);
    ck_assert(!memcmp(x, y, (size_t)n * sizeof *x));
}

/* The result of a call with one input. */
static tg_tensor *call(const char *op, tg_tensor *x, const tg_value *v, int n) {
    tg_tensor *y = NULL;
    tg_status s = tg_op_call(t, op, &x, 1, v, n, &y, 1);
    ck_assert_msg(s == TG_OK, "%s", tg_ctx_message(ctx));
    return y;
}
#define CALL(op, x, ...)                                                                                               \
    call(op, x, (const tg_value[]){__VA_ARGS__}, (int)(sizeof((const tg_value[]){__VA_ARGS__}) / sizeof(tg_value)))
#define INTEGER(name_, v_)                                                                                             \
    { .name = name_, .kind = TG_VALUE_INT, .integer = (v_) }
#define NUMBER(name_, v_)                                                                                              \
    { .name = name_, .kind = TG_VALUE_DOUBLE, .number = (v_) }
#define TEXT(name_, v_)                                                                                                \
    { .name = name_, .kind = TG_VALUE_TEXT, .text = (v_) }
#define LIST(name_, n_, ...)                                                                                           \
    {                                                                                                                  \
        .name = name_, .kind = TG_VALUE_LIST, .n = n_, .list = (const int64_t[]) { __VA_ARGS__ }                       \
    }

START_TEST(values_are_converted) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 3)), *image = numbers(TG_SHAPE(1, 1, 4, 4));
    same(CALL("softmax", x, NUMBER("dim", -1.0)), tg_softmax(t, x, -1));
    same(CALL("scale", x, INTEGER("a", 3)), tg_scale(t, x, 3));
    same(CALL("cast", x, TEXT("dtype", "i32")), tg_cast(t, x, TG_I32));
    same(CALL("cast", x, INTEGER("dtype", TG_F32)), tg_cast(t, x, TG_F32));
    same(CALL("reshape", x, LIST("shape", 2, 3, -1)), tg_reshape(t, x, TG_SHAPE(3, -1)));
    same(CALL("reshape", x, INTEGER("shape", 6)), tg_reshape(t, x, TG_SHAPE(6)));
    same(CALL("sum", x, TEXT("dims", "all")), tg_sum(t, x, TG_ALL_DIMS, false));
    same(CALL("sum", x, INTEGER("dims", 1)), tg_sum(t, x, TG_DIMS(1), false));
    same(CALL("avg_pool2d", image, INTEGER("h", 2), INTEGER("w", 2), INTEGER("stride", 1)),
         tg_avg_pool2d(t, image, 2, 2, TG_POOL(.stride = {1, 1})));
    same(CALL("avg_pool2d", image, INTEGER("h", 2), INTEGER("w", 2), LIST("stride", 2, 1, 2)),
         tg_avg_pool2d(t, image, 2, 2, TG_POOL(.stride = {1, 2})));
    end();
}
END_TEST

START_TEST(enums_are_named_in_three_ways) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 3)), *in[] = {x, tg_neg(t, x)}, *y;
    tg_tensor *sum = tg_l1(t, in[0], in[1], TG_LOSS(.reduction = TG_LOSS_SUM));
    const tg_value ways[] = {TEXT("reduction", "sum"), TEXT("reduction", "TG_LOSS_SUM"),
                             INTEGER("reduction", TG_LOSS_SUM)};
    for (int i = 0; i < 3; i++) {
        ck_assert(tg_op_call(t, "l1", in, 2, &ways[i], 1, &y, 1) == TG_OK);
        same(y, sum);
    }
    end();
}
END_TEST

START_TEST(defaults_are_those_of_the_options) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 3)), *q = numbers(TG_SHAPE(1, 1, 3, 2)), *in[] = {q, q, q}, *y;
    tg_tensor *line = numbers(TG_SHAPE(1, 1, 6));
    same(CALL("sum", x, {.name = "keepdim", .kind = TG_VALUE_DEFAULT}), tg_sum(t, x, TG_ALL_DIMS, false));
    same(CALL("max_pool1d", line, INTEGER("k", 2)), tg_max_pool1d(t, line, 2, NULL));
    ck_assert(tg_op_call(t, "attention", in, 3, NULL, 0, &y, 1) == TG_OK);
    same(y, tg_attention(t, q, q, q, NULL));
    ck_assert(tg_op_call(t, "l1", (tg_tensor *[]){x, tg_neg(t, x)}, 2, NULL, 0, &y, 1) == TG_OK);
    same(y, tg_l1(t, x, tg_neg(t, x), NULL));
    end();
}
END_TEST

START_TEST(inputs_may_be_named) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 3)), *w = numbers(TG_SHAPE(4, 3)), *b = numbers(TG_SHAPE(4)), *y;
    const tg_value named[] = {{.name = "b", .kind = TG_VALUE_TENSOR, .tensor = b},
                              {.name = "w", .kind = TG_VALUE_TENSOR, .tensor = w}};
    ck_assert(tg_op_call(t, "linear", &x, 1, named, 2, &y, 1) == TG_OK);
    same(y, tg_linear(t, x, w, b));
    ck_assert(tg_op_call(t, "linear", (tg_tensor *[]){x, w}, 2, NULL, 0, &y, 1) == TG_OK);
    same(y, tg_linear(t, x, w, NULL));
    ck_assert(tg_op_call(t, "concat", (tg_tensor *[]){x, x, w}, 3, NULL, 0, &y, 1) == TG_OK);
    same(y, tg_concat(t, (tg_tensor *[]){x, x, w}, 3, 0));
    ck_assert_ptr_eq(tg_op_find("copy_to_tp"), tg_op_find("CopyToModelParallelRegion"));
    end();
}
END_TEST

START_TEST(outputs_are_counted_before_the_call) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 6)), *part[3];
    const char *const names[] = {"dim", "sizes"}, *const equal[] = {"dim", "n"};
    const tg_value sizes[] = {INTEGER("dim", 1), LIST("sizes", 3, 1, 2, 3)};
    const tg_value chunks[] = {INTEGER("dim", 1), INTEGER("n", 2)}, negative[] = {INTEGER("dim", 1), INTEGER("n", -3)};
    tg_op_binding split = TG_OP_BINDING(), chunk = TG_OP_BINDING(), sort = TG_OP_BINDING();
    tg_op_bind(ctx, tg_op_find("split"), names, 2, &split);
    tg_op_bind(ctx, tg_op_find("chunk"), equal, 2, &chunk);
    tg_op_bind(ctx, tg_op_find("sort"), NULL, 0, &sort);
    ck_assert_int_eq(tg_op_output_count(ctx, &split, sizes), 3);
    ck_assert_int_eq(tg_op_output_count(ctx, &chunk, chunks), 2);
    ck_assert_int_eq(tg_op_output_count(ctx, &sort, NULL), 2);
    ck_assert(tg_op_call_bound(t, &split, &x, 1, sizes, part, 3) == TG_OK);
    same(part[2], tg_slice(t, x, 1, 3, 6, 1));
    ck_assert(tg_op_call_bound(t, &chunk, &x, 1, chunks, part, 2) == TG_OK);
    same(part[1], tg_slice(t, x, 1, 3, 6, 1));
    ck_assert_int_eq(tg_op_output_count(ctx, &chunk, negative), 0);
    ck_assert_int_eq(tg_op_call_bound(t, &chunk, &x, 1, negative, part, 0), TG_ERR_ARGUMENT);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* The same draws by name and in C, and rows that are exactly one-hot. */
START_TEST(outputs_have_the_order_of_their_names) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(2, 3)), *in[] = {x, tg_neg(t, tg_square(t, x))}, *out[2], *sum;
    ck_assert_str_eq(tg_op_find("residual_rms_norm")->outputs, "sum y");
    ck_assert(tg_op_call(t, "residual_rms_norm", in, 2, NULL, 0, out, 2) == TG_OK);
    same(out[1], tg_residual_rms_norm(t, in[0], in[1], NULL, 1e-5, &sum));
    same(out[0], sum);
    end();
}
END_TEST

START_TEST(a_composed_op_is_called_like_any_other) {
    begin();
    const tg_value hard[] = {{.name = "hard", .kind = TG_VALUE_BOOL, .boolean = true}, NUMBER("tau", 0.5)};
    tg_tensor *x = tg_param_new(ctx, "x", TG_F64, TG_SHAPE(2, 3), 1);
    tg_rng rng;
    tg_rng_get(ctx, NULL, &rng);
    tg_tensor *y = call("gumbel_softmax", x, hard, 2);
    tg_rng_set(ctx, NULL, &rng);
    tg_tensor *c = tg_gumbel_softmax(t, x, 0.5, true, -1);
    same(y, c);
    same(tg_max(t, y, TG_DIMS(1), false), tg_full(t, TG_F64, TG_SHAPE(2), 1));
    ck_assert(tg_requires_grad(y));
    end();
}
END_TEST

/* ---- An op of the program's own ---- */

typedef struct power_params {
    double exponent;
} power_params;

static tg_status power_compose(tg_tape *tape, const void *params, tg_tensor *const *in, tg_tensor **out,
                               const void *site) {
    (void)site;
    out[0] = tg_pow_scalar(tape, in[0], ((const power_params *)params)->exponent);
    return tg_ctx_status(ctx);
}

static const tg_field power_fields[] = {TG_ARG(power_params, exponent, DOUBLE, "The exponent.")};
static const tg_op power = {.size = sizeof(tg_op),
                            .name = "power",
                            .formula = "x^exponent",
                            .inputs = "x",
                            .n_in = 1,
                            .n_out = 1,
                            .params_size = sizeof(power_params),
                            .compose = power_compose,
                            TG_FIELDS(power_fields),
                            .preset = &(const power_params){2}};

/* Records a product with a draw, then fails. */
static tg_status broken_compose(tg_tape *tape, const void *params, tg_tensor *const *in, tg_tensor **out,
                                const void *site) {
    (void)params, (void)site;
    out[0] = tg_mul(tape, tg_exp(tape, in[0]), tg_gumbel(tape, in[0]));
    return tg_ctx_fail(ctx, TG_ERR_SHAPE, "no such shape");
}

static const tg_op broken = {.size = sizeof(tg_op),
                             .name = "broken",
                             .formula = "nothing",
                             .inputs = "x",
                             .n_in = 1,
                             .n_out = 1,
                             .compose = broken_compose};

static int64_t live(void) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

/* Nodes, memory and draws are as before, also the node of a parameter that was used first by the op that failed. The
 * parameter can be used again. */
START_TEST(a_composed_op_that_fails_leaves_nothing) {
    begin();
    tg_tensor *used = tg_param_new(ctx, "used", TG_F64, TG_SHAPE(2, 3), 1),
              *fresh = tg_param_new(ctx, "fresh", TG_F64, TG_SHAPE(2, 3), 1);
    tg_tensor *y = tg_square(t, used), *params[] = {used, fresh}, *out;
    int64_t nodes = tg_tape_nodes(t), bytes = live();
    tg_rng before, after;
    tg_rng_get(ctx, NULL, &before);
    for (int i = 0; i < 4; i++) {
        ck_assert(tg_apply(t, &broken, NULL, &params[i % 2], 1, &out, 1, NULL, NULL, TG_SITE) == TG_ERR_SHAPE);
        ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "no such shape"));
        ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), ", recorded by broken"));
        ck_assert(!tg_is_alive(out));
        tg_ctx_clear(ctx);
        ck_assert_int_eq(tg_tape_nodes(t), nodes);
        ck_assert_int_eq(live(), bytes);
    }
    tg_rng_get(ctx, NULL, &after);
    ck_assert_mem_eq(&before, &after, sizeof before);
    tg_backward(t, tg_sum(t, tg_mul(t, y, tg_scale(t, fresh, 3)), TG_ALL_DIMS, false));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    same(tg_grad_of(fresh), tg_scale(t, tg_square(t, used), 3));
    same(tg_grad_of(used), tg_mul(t, tg_scale(t, fresh, 3), tg_scale(t, used, 2)));
    end();
}
END_TEST

/* The ops that a composed op records have the call site of that op, in errors and in nodes. */
START_TEST(ops_of_a_composed_op_have_its_call_site) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_F64, TG_SHAPE(1, 1, 2, 2, 2), 1);
    tg_cummax(t, tg_max_pool3d(t, x, 2, 2, 2, NULL), 0, NULL);
    tg_square(t, x);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    for (int64_t i = 0; i < tg_tape_nodes(t); i++) {
        char site[128];
        const tg_node *n = tg_tape_node(t, i);
        tg_node_site(n, site, sizeof site);
        if (tg_node_inputs(n))
            ck_assert_msg(strstr(site, "test_op_call") != NULL, "%s was called from %s", tg_node_op(n)->name, site);
    }
    tg_constant_pad(t, x, (const int64_t[]){INT64_MAX, 1}, 2, 0);
    const char *says = strstr(tg_ctx_message(ctx), "called from test_op_call");
    ck_assert_msg(says != NULL, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status greatest(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_scatter_max(tape, tg_scale(tape, in[0], 2), 0, in[1], in[2], true);
    return tg_ctx_status(ctx);
}

/* In the first run of a recomputation no result requires a gradient, but what is composed there must be as in the
 * second. */
START_TEST(composed_ops_are_recomputed) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_F64, TG_SHAPE(4), 1),
              *src = tg_param_new(ctx, "src", TG_F64, TG_SHAPE(3), 1),
              *index = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){1, 1, 3}), *in[] = {x, index, src}, *y;
    double plain[7], again[7];
    greatest(NULL, t, in, 3, &y, 1);
    tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
    tg_read_f64(tg_grad_of(x), plain, 4);
    tg_read_f64(tg_grad_of(src), plain + 4, 3);
    tg_zero_grad(x);
    tg_zero_grad(src);
    tg_recompute(t, greatest, NULL, in, 3, &y, 1, NULL);
    tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
    tg_read_f64(tg_grad_of(x), again, 4);
    tg_read_f64(tg_grad_of(src), again + 4, 3);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_mem_eq(plain, again, sizeof plain);
    ck_assert(again[0] != 0);
    end();
}
END_TEST

/* The inputs of a composed op are checked before compose, which reads their shapes. */
START_TEST(a_composed_op_gets_living_inputs) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(3)), *y;
    ck_assert(tg_apply(t, &broken, NULL, (tg_tensor *[]){NULL}, 1, &y, 1, NULL, NULL, TG_SITE) == TG_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "broken: input 0"));
    tg_ctx_clear(ctx);
    tg_tensor *old = tg_scale(t, x, 2);
    tg_tape_reset(t);
    ck_assert(tg_apply(t, &broken, NULL, &old, 1, &y, 1, NULL, NULL, TG_SITE) != TG_OK);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "broken: input 0"));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(ops_of_the_program_are_bound_too) {
    begin();
    tg_tensor *x = numbers(TG_SHAPE(3)), *y;
    const char *const names[] = {"exponent"};
    tg_op_binding squared = TG_OP_BINDING(), cubed = TG_OP_BINDING();
    ck_assert(tg_op_bind(ctx, &power, NULL, 0, &squared) == TG_OK);
    ck_assert(tg_op_bind(ctx, &power, names, 1, &cubed) == TG_OK);
    tg_op_call_bound(t, &squared, &x, 1, NULL, &y, 1);
    same(y, tg_pow_scalar(t, x, 2));
    tg_op_call_bound(t, &cubed, &x, 1, &(tg_value)INTEGER("exponent", 3), &y, 1);
    same(y, tg_pow_scalar(t, x, 3));
    ck_assert(tg_apply(t, &power, NULL, &x, 1, &y, 1, NULL, NULL, TG_SITE) == TG_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "power: params are NULL, expected 8 bytes"));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {values_are_converted,
                                  enums_are_named_in_three_ways,
                                  defaults_are_those_of_the_options,
                                  inputs_may_be_named,
                                  outputs_are_counted_before_the_call,
                                  outputs_have_the_order_of_their_names,
                                  a_composed_op_is_called_like_any_other,
                                  a_composed_op_that_fails_leaves_nothing,
                                  ops_of_a_composed_op_have_its_call_site,
                                  composed_ops_are_recomputed,
                                  a_composed_op_gets_living_inputs,
                                  ops_of_the_program_are_bound_too};
    return tg_check_main("op_call", tests, sizeof tests / sizeof *tests);
}
