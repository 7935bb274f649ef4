/* Where the results of ops over a sharded vocabulary lie: rows are sharded over the data-parallel axis, classes over
 * the tensor-parallel one. */
#include "on_ranks.h"

#include <tapegrad/backward.h>
#include <tapegrad/tensor_parallel.h>

static const char *text_of(tg_tensor *x, char *buf) {
    tg_placement_text(x, buf, 64);
    return buf;
}

static tg_status two_axes(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char text[64];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(4, 3))), *h = grad_leaf(made(ctx, 2, TG_SHAPE(4, 2)));
    tg_tensor *w = grad_leaf(made(ctx, 3, TG_SHAPE(3, 2)));
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(4), (const int64_t[]){0, 5, 3, 2});
    tg_tensor *rows[] = {x, h, target};
    for (int i = 0; i < 3; i++) RUN(tg_place(p, rows[i], TG_DP, TG_SHARD(0)));
    RUN(tg_place(p, x, TG_TP, TG_SHARD(1)));
    RUN(tg_place(p, h, TG_TP, TG_R));
    RUN(tg_place(p, target, TG_TP, TG_I));
    RUN(tg_place(p, w, TG_TP, TG_SHARD(0)));
    RUN(tg_place(p, w, TG_DP, TG_R));
    const tg_vocab_opts *none = TG_VOCAB(.reduction = TG_LOSS_NONE), *sum = TG_VOCAB(.reduction = TG_LOSS_SUM);
    const tg_vocab_opts *partition =
        TG_VOCAB(.reduction = TG_LOSS_SUM, .label_smoothing = 0.1, .smoothing_kind = TG_SMOOTHING_MEGATRON_PARTITION);
    tg_tensor *y = tg_vocab_parallel_cross_entropy(t, x, target, tp, none);
    EXPECT(ctx, !strcmp(text_of(y, text), "dp V0"));
    EXPECT(ctx, !strcmp(text_of(tg_vocab_parallel_cross_entropy(t, x, target, tp, sum), text), "dp P"));
    EXPECT(ctx, !strcmp(text_of(tg_vocab_parallel_cross_entropy(t, x, target, tp, partition), text), "tp V, dp P"));
    EXPECT(ctx, !strcmp(text_of(tg_vocab_parallel_linear_cross_entropy(t, h, w, target, tp, none), text), "dp V0") &&
                    !strcmp(text_of(tg_vocab_parallel_linear_cross_entropy(t, h, w, target, tp, sum), text), "dp P"));
    EXPECT(ctx, !strcmp(text_of(tg_vocab_parallel_embedding(t, w, target, tp), text), "tp P, dp V0"));
    REFUSED(ctx, TG_ERR_PLACEMENT, "on axis dp", tg_vocab_parallel_cross_entropy(t, x, target, tp, NULL));
    REFUSED(ctx, TG_ERR_PLACEMENT, "pass whole logits", tg_vocab_parallel_cross_entropy(t, h, target, tp, sum));
    REFUSED(ctx, TG_ERR_PLACEMENT, "tg_copy_to_tp",
            tg_vocab_parallel_linear_cross_entropy(t, tg_r_to_i(t, h, tp), w, target, tp, sum));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rows_over_another_axis) { on_ranks(4, two_axes, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {rows_over_another_axis};
    return tg_check_main("vocab places", tests, sizeof tests / sizeof tests[0]);
}
