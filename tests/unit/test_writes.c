/* Buffers that an op writes besides its outputs (tg_op.writes): nodes that saved them report the change, a second run
 * does not write them, and invalid uses are refused. */
#include "world.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/explain.h>
#include <tapegrad/extend.h>

#include "core/context.h"

typedef enum follow_mode { FOLLOWS, STAYS, FAILS } follow_mode;
typedef struct follow_params {
    follow_mode mode;
    int *writes; /* counts the writes */
} follow_params;

static const follow_params *params(const tg_call *c) { return c->params; }

static tg_status follow_infer(tg_call *c) {
    if (params(c)->mode == STAYS) c->writes = 0;
    return tg_call_out(c, 0, tg_dtype_of(c->input[0]), tg_ndim(c->input[0]), c->input[0]->shape);
}

/* y = x, and the buffer gets the value of x. */
static tg_status follow_forward(tg_call *c) {
    size_t bytes = (size_t)tg_numel(c->input[0]) * sizeof(double);
    if (c->writes) {
        ++*params(c)->writes;
        TG_TRY(tg_ctx_ops(c->ctx)->copy(c->ctx, tg_data(c->input[1]), tg_data(c->input[0]), bytes, TG_COPY_DEVICE));
    }
    if (params(c)->mode == FAILS) return tg_call_fail(c, TG_ERR_IO, "half way");
    return tg_ctx_ops(c->ctx)->copy(c->ctx, tg_data(c->out[0]), tg_data(c->input[0]), bytes, TG_COPY_DEVICE);
}

static tg_status follow_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

#define FOLLOW(name_, ...)                                                                                       \
    {.size = sizeof(tg_op), .name = name_, .formula = "x", .n_in = 2, .n_out = 1, .optional = 2, .writes = 2,     \
     .params_size = sizeof(follow_params), .infer = follow_infer, .forward = follow_forward,                     \
     .backward = follow_backward, .jvp = tg_jvp_linear, __VA_ARGS__}

static const tg_op follow_op = FOLLOW("follow", .passes = 1);
static const tg_op keeps_op = FOLLOW("keeps", .passes = 1, .saves_in = 2);

static tg_status view_infer(tg_call *c) {
    return tg_call_view(c, 0, 0, c->input[0]->ndim, c->input[0]->shape, c->input[0]->stride);
}
static tg_status nothing(tg_call *c) { return c->ctx->run.status; }
static const tg_op view_op = {.size = sizeof(tg_op), .name = "view_of", .formula = "x", .n_in = 1, .n_out = 1,
                              .writes = 1, .infer = view_infer, .forward = nothing};

static int writes;

static tg_tensor *follow_as(const tg_op *op, follow_mode mode, tg_tensor *x, tg_tensor *buffer) {
    tg_tensor *y = NULL;
    tg_apply(t, op, &(follow_params){mode, &writes}, (tg_tensor *[]){x, buffer}, 2, &y, 1, NULL, NULL, TG_SITE);
    return y;
}

static tg_tensor *follow(tg_tensor *x, tg_tensor *buffer) { return follow_as(&follow_op, FOLLOWS, x, buffer); }

START_TEST(nodes_that_saved_a_buffer_notice_writes) {
    begin();
    tg_tensor *x = leaf(3), *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE());
    tg_tensor *y = tg_mul(t, x, buffer);
    ck_assert(tg_item(follow(x, buffer)) == 3 && tg_item(buffer) == 3);
    tg_backward(t, y);
    ck_status(TG_ERR_VERSION);
    ck_says("overwritten by follow");
    tg_ctx_clear(ctx);
    tg_backward(t, follow_as(&keeps_op, FOLLOWS, x, buffer)); /* it saves what it has written */
    ck_status(TG_OK);
    ck_assert(grad(x) == 1);
    y = follow_as(&keeps_op, FOLLOWS, x, buffer);
    follow(x, buffer);
    tg_backward(t, y);
    ck_status(TG_ERR_VERSION);
    tg_ctx_clear(ctx);
    tg_drop(buffer);
    end();
}
END_TEST

START_TEST(a_call_that_leaves_it_alone_changes_nothing) {
    begin();
    tg_tensor *x = leaf(3), *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE()), *y = tg_mul(t, x, buffer);
    ck_assert(tg_item(follow_as(&follow_op, STAYS, x, buffer)) == 3 && tg_item(buffer) == 0);
    ck_assert(tg_item(follow(x, NULL)) == 3);
    tg_backward(t, y);
    ck_status(TG_OK);
    y = tg_mul(t, x, buffer);
    follow_as(&follow_op, FAILS, x, buffer); /* which may have written a part */
    ck_status(TG_ERR_IO);
    tg_ctx_clear(ctx);
    tg_backward(t, y);
    ck_status(TG_ERR_VERSION);
    tg_ctx_clear(ctx);
    tg_drop(buffer);
    end();
}
END_TEST

static tg_status followed(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_tensor *y = NULL;
    (void)n_in, (void)n_out;
    tg_tensor *given[] = {tg_square(tape, in[0]), state};
    tg_apply(tape, &follow_op, &(follow_params){FOLLOWS, &writes}, given, 2, &y, 1, NULL, NULL, TG_SITE);
    out[0] = tg_square(tape, y);
    return tg_ctx_status(ctx);
}

static tg_status within(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_recompute(tape, followed, state, in, n_in, out, n_out, NULL);
}

START_TEST(a_second_run_leaves_it_as_the_first_has_made_it) {
    begin();
    static const tg_fn fns[] = {followed, within};
    for (int way = 0; way < 4; way++) {
        tg_tensor *x = leaf(2), *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE()), *y = NULL;
        writes = 0;
        if (way < 2) {
            tg_recompute(t, fns[way], buffer, &x, 1, &y, 1, NULL);
        } else {
            tg_replay *r = tg_replay_open(t);
            tg_replay_run(r, fns[way - 2], buffer, &x, 1, &y, 1, NULL);
            tg_tensor *used = tg_square(t, y);
            tg_replay_close(r, used);
            y = used;
        }
        ck_assert(tg_item(buffer) == 4 && writes == 1);
        tg_write_f64(buffer, &(double){7}, 1);
        tg_backward(t, y);
        ck_status(TG_OK);
        ck_assert(grad(x) == (way < 2 ? 32 : 1024)); /* of x^4, and of x^8 */
        ck_assert_int_eq(writes, 1);
        ck_assert(tg_item(buffer) == 7);
        tg_drop(buffer);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

START_TEST(derivatives_do_not_write) {
    begin();
    tg_tensor *x = leaf(3), *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE()), *seed = tg_full(t, TG_F64, TG_SHAPE(), 5), *dy;
    tg_tensor *y = follow(x, buffer);
    ck_assert(tg_jvp(t, &y, 1, &x, 1, &seed, &dy) == TG_OK && tg_item(dy) == 5);
    ck_assert(tg_item(buffer) == 3);
    tg_drop(buffer);
    end();
}
END_TEST

START_TEST(unwritable_buffers_are_refused) {
    begin();
    tg_tensor *x = leaf(3), *w = leaf(1), *out = NULL;
    follow(x, w);
    ck_status(TG_ERR_ARGUMENT);
    ck_says("writes input 1, which needs a gradient");
    tg_ctx_clear(ctx);
    tg_tensor *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
    follow(buffer, buffer);
    ck_status(TG_ERR_ARGUMENT);
    ck_says("share bytes");
    tg_ctx_clear(ctx);
    follow(tg_full(t, TG_F64, TG_SHAPE(3), 1), tg_expand(t, buffer, TG_SHAPE(3)));
    ck_status(TG_ERR_ARGUMENT);
    ck_says("some of whose elements share memory");
    tg_ctx_clear(ctx);
    tg_apply(t, &view_op, NULL, &buffer, 1, &out, 1, NULL, NULL, TG_SITE);
    ck_status(TG_ERR_ARGUMENT);
    ck_says("output 0 shares the bytes of input 0");
    tg_ctx_clear(ctx);
    ck_assert(tg_item(buffer) == 0);
    tg_drop(buffer);
    end();
}
END_TEST

static tg_status refuse_add(void *user, tg_tape *tape, const tg_op_event *s) {
    (void)user, (void)tape;
    return strcmp(s->op, "add_") ? TG_OK : TG_ERR_IO;
}

START_TEST(an_op_in_place_that_failed_has_written) {
    begin();
    tg_tensor *a = tg_exp(t, leaf(0)), *one = tg_full(t, TG_F64, TG_SHAPE(), 1);
    tg_tape_observe(t, refuse_add, NULL);
    tg_add_(t, a, one);
    ck_status(TG_ERR_CALLBACK);
    tg_ctx_clear(ctx);
    tg_tape_observe(t, NULL, NULL);
    tg_backward(t, a);
    ck_status(TG_ERR_VERSION);
    ck_says("overwritten by add_");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {nodes_that_saved_a_buffer_notice_writes,
                            a_call_that_leaves_it_alone_changes_nothing,
                            a_second_run_leaves_it_as_the_first_has_made_it,
                            derivatives_do_not_write,
                            unwritable_buffers_are_refused,
                            an_op_in_place_that_failed_has_written};
    return tg_check_main("writes", tests, sizeof tests / sizeof *tests);
}
