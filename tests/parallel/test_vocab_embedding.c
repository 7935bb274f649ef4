/* The embedding of a sharded vocabulary on thread ranks: rows and gradients are compared with plain loops over all
 * rows. */
#include "on_ranks.h"

#include <tapegrad/backward.h>
#include <tapegrad/tensor_parallel.h>

enum { EMB_ROWS = 12, EMB_WIDTH = 3, EMB_IDS = 10, MOST_RANKS = 4 };

typedef struct embedded {
    double y[MOST_RANKS][64], g[MOST_RANKS][64];
} embedded;

static const int64_t emb_ids[EMB_IDS] = {0, 11, 3, 3, 7, 5, 3, 2, 11, 8};

static tg_status embedding_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    embedded *e = arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tape_on_nans(ctx);
    tg_tensor *table = grad_leaf(part(ctx, 1, TG_SHAPE(EMB_ROWS, EMB_WIDTH), 0, me, n));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(2, 5), emb_ids);
    tg_tensor *y = tg_vocab_parallel_embedding(t, table, ids, c);
    tg_read_f64(y, e->y[me], EMB_IDS * EMB_WIDTH);
    tg_tensor *seed = made(ctx, 2, TG_SHAPE(2, 5, EMB_WIDTH));
    for (int twice = 0; twice < 2; twice++)
        RUN(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed, .retain = true)));
    tg_read_f64(tg_grad_of(table), e->g[me], EMB_ROWS / n * EMB_WIDTH);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(embedding) {
    for (int n = 1; n <= MOST_RANKS; n++) {
        static embedded e;
        on_ranks(n, embedding_rank, &e);
        double g[EMB_ROWS * EMB_WIDTH] = {0};
        for (int i = 0; i < EMB_IDS * EMB_WIDTH; i++) {
            double sum = 0;
            int64_t from = emb_ids[i / EMB_WIDTH] * EMB_WIDTH + i % EMB_WIDTH;
            for (int r = 0; r < n; r++) sum += e.y[r][i];
            ck_assert_double_eq(sum, at(1, from));
            g[from] += 2 * at(2, i);
        }
        for (int i = 0; i < EMB_ROWS * EMB_WIDTH; i++) {
            int each = EMB_ROWS / n * EMB_WIDTH;
            ck_assert_double_eq_tol(e.g[i / each][i % each], g[i], 1e-13);
        }
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {embedding};
    return tg_check_main("vocab_embedding", tests, sizeof tests / sizeof tests[0]);
}
