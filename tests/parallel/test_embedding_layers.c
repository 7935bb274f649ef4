/* The vocabulary embedding on 1, 2 and 4 ranks compared with the same program on one rank: alone and with a column
 * layer, over tensor- and data-parallel ranks, in every form of ids and results. */
#include "one_rank.h"

/* ---- Tensor and data parallel: the first and last layers of a small language model ---- */

static tg_status ends(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *l = arg;
    int n = l->tp, dp = tg_comm_size(world) / n;
    int64_t ids[4 * S];
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n, .sequence_parallel = l->sp));
    int d = tg_parallel_rank(p, TG_DP), r = tg_parallel_rank(p, TG_TP);
    bool sp = tg_is_sequence_parallel(p);
    for (int i = 0; i < 4 * S; i++) ids[i] = (i * 7 + i / 3) % V;
    tg_module *table[2] = {tg_nn_vocab_embedding(p, V, H, 0.5, NULL), tg_nn_vocab_embedding(a.p, V, H, 0.5, NULL)};
    tg_module *head[2] = {tg_nn_column_linear(p, H, F, NULL), tg_nn_column_linear(a.p, H, F, NULL)};
    tg_tape *t[2] = {tg_tape_new(ctx), a.t};
    tg_tensor *in[2] = {tg_from_host(ctx, TG_I64, TG_SHAPE(4 / dp, S), ids + d * S * 4 / dp),
                        tg_from_host(a.ctx, TG_I64, TG_SHAPE(4, S), ids)};
    tg_place(p, in[0], TG_TP, TG_I);
    tg_place(p, in[0], TG_DP, TG_SHARD(0));
    for (int i = 0; i < 2; i++) {
        tg_tensor *x = tg_module_forward(table[i], t[i], in[i]); /* [s, b, h] */
        EXPECT(ctx, tg_dim(x, 0) == (i || !sp ? S : S / n) && tg_dim(x, 1) == (i ? 4 : 4 / dp));
        tg_tensor *y = tg_module_forward(head[i], t[i], tg_tanh(t[i], x));
        tg_backward(t[i], tg_sum(t[i], tg_square(t[i], y), TG_ALL_DIMS, false));
    }
    tg_tensor *params[6], *whole[6];
    int count = tg_module_params(table[0], params, 6);
    count += tg_module_params(head[0], params + count, 4);
    int same = tg_module_params(table[1], whole, 6);
    tg_module_params(head[1], whole + same, 4);
    RUN(tg_grads_finalize(p, params, count, NULL));
    for (int i = 0; i < count; i++)
        EXPECT(ctx, is_part(tg_grad_of(params[i]), tg_grad_of(whole[i]), TG_TP, r, n, 1e-9));
    for (int i = 0; i < 2; i++) {
        tg_module_free(table[i]);
        tg_module_free(head[i]);
    }
    tg_tape_free(t[0]);
    tg_drop(in[0]);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(embedding_and_head_over_data_and_tensor_ranks) {
    for (int n = 1; n <= 4; n *= 2)
        for (int sp = 0; sp < 2; sp++) {
            on_ranks(n, ends, &(layout){n, sp});
            on_ranks(4, ends, &(layout){n, sp});
        }
}
END_TEST

/* ---- The embedding's sum, all-reduced or reduce-scattered on request ---- */

typedef struct lookup {
    layout l; /* tp: the ranks of the axis */
    tg_axis axis;
    enum { SEQUENCE_FIRST, BATCH_FIRST, FLAT } form;
} lookup;

static tg_status scattered(void *arg, tg_ctx *ctx, tg_comm *world) {
    const lookup *l = arg;
    int64_t ids[4 * S], n = l->l.tp;
    alone a = alone_open();
    tg_parallel_opts grid = *TG_PARALLEL(.sequence_parallel = l->l.sp);
    *(l->axis == TG_TP ? &grid.tp : &grid.cp) = (int)n;
    tg_parallel *p = tg_parallel_new(world, &grid);
    for (int i = 0; i < 4 * S; i++) ids[i] = (i * 5 + i / 4) % V;
    tg_vocab_embedding_opts o = *TG_VOCAB_EMBEDDING(.batch_first = l->form == BATCH_FIRST, .axis = l->axis);
    tg_module *one = tg_nn_vocab_embedding(a.p, V, H, 0.5, &o);
    tg_tape *t = tg_tape_new(ctx);
    tg_shape shape = l->form == FLAT ? TG_SHAPE(4 * S) : TG_SHAPE(4, S);
    tg_tensor *in = tg_from_host(ctx, TG_I64, shape, ids), *whole_in = tg_from_host(a.ctx, TG_I64, shape, ids);
    tg_place(p, in, l->axis, TG_I);
    tg_tensor *whole = tg_module_forward(one, a.t, whole_in);
    if (l->form == FLAT)
        EXPECT(ctx, tg_ndim(whole) == 2 && tg_dim(whole, 0) == 4 * S);
    else
        EXPECT(ctx, tg_dim(whole, 0) == (o.batch_first ? 4 : S) && tg_dim(whole, 1) == (o.batch_first ? S : 4));
    tg_tensor *whole_w = tg_module_find(one, "weight");
    tg_tensor *loss = tg_sum(a.t, tg_square(a.t, whole), TG_ALL_DIMS, false);
    tg_backward_with(a.t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_rng start;
    RUN(tg_rng_get(ctx, NULL, &start));
    for (int asked = TG_AUTO; asked <= 1; asked++) {
        tg_rng_set(ctx, NULL, &start);
        o.reduce_scatter = asked;
        tg_module *m = tg_nn_vocab_embedding(p, V, H, 0.5, &o);
        tg_tensor *w = tg_module_find(m, "weight"), *y = tg_module_forward(m, t, in);
        bool rows = n > 1 && (asked == 1 || (asked == TG_AUTO && l->l.sp && l->axis == TG_TP));
        tg_placement is = tg_placement_of(y, l->axis);
        EXPECT(ctx, is.kind == (rows ? TG_VARYING : TG_INVARIANT) && is.dim == 0);
        EXPECT(ctx, off(y, whole, rows ? 0 : -1, tg_comm_rank(world), (int)n) < 1e-12);
        tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
        EXPECT(ctx, is_part(tg_grad_of(w), tg_grad_of(whole_w), l->axis, tg_comm_rank(world), (int)n, 1e-12));
        tg_tape_reset(t);
        tg_module_free(m);
    }
    tg_module_free(one);
    tg_tape_free(t);
    tg_drop(in);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(an_embedding_is_scattered_as_asked_for) {
    for (int n = 1; n <= 4; n *= 2)
        for (int sp = 0; sp < 2; sp++)
            for (int form = SEQUENCE_FIRST; form <= FLAT; form++)
                for (tg_axis axis = TG_TP; axis <= TG_CP; axis++)
                    on_ranks(n, scattered, &(lookup){{n, sp}, axis, form});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        embedding_and_head_over_data_and_tensor_ranks,
        an_embedding_is_scattered_as_asked_for,
    };
    return tg_check_main("embedding layers", tests, sizeof tests / sizeof *tests);
}
