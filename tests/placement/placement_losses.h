/* The losses of test_placement.c: calls, and rows of its table. */
#ifndef TG_PLACEMENT_LOSSES_H
#define TG_PLACEMENT_LOSSES_H

#include <tapegrad/ops.h>

#define LOSS_CALLS(X) \
    X(loss_mean, tg_cross_entropy(t, x[0], x[1], NULL))                                                                \
    X(loss_sum, tg_cross_entropy(t, x[0], x[1], TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM)))                           \
    X(loss_rows, tg_cross_entropy(t, x[0], x[1], TG_CROSS_ENTROPY(.reduction = TG_LOSS_NONE)))                         \
    X(head_sum, tg_linear_cross_entropy(t, x[0], x[1], x[2], TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM)))              \
    X(head_rows, tg_linear_cross_entropy(t, x[0], x[1], x[2], TG_CROSS_ENTROPY(.reduction = TG_LOSS_NONE)))            \
    X(l1_mean, tg_l1(t, x[0], x[1], NULL))                                                                             \
    X(l1_sum, tg_l1(t, x[0], x[1], TG_LOSS(.reduction = TG_LOSS_SUM)))                                                 \
    X(l1_each, tg_l1(t, x[0], x[1], TG_LOSS(.reduction = TG_LOSS_NONE)))                                               \
    X(bce_sum, tg_bce_with_logits(t, x[0], x[1], NULL, x[2], TG_LOSS(.reduction = TG_LOSS_SUM)))                       \
    X(bce_each, tg_bce_with_logits(t, x[0], x[1], x[2], NULL, TG_LOSS(.reduction = TG_LOSS_NONE)))                     \
    X(kl_batch, tg_kl_div(t, x[0], x[1], TG_LOSS(.reduction = TG_LOSS_BATCH_MEAN)))                                    \
    X(nll_mean, tg_nll(t, x[0], x[1], NULL, NULL))                                                                     \
    X(nll_sum, tg_nll(t, x[0], x[1], x[2], TG_LOSS(.reduction = TG_LOSS_SUM)))                                         \
    X(nll_each, tg_nll(t, x[0], x[1], x[2], TG_LOSS(.reduction = TG_LOSS_NONE)))                                       \
    X(cosine_1, tg_cosine_similarity(t, x[0], x[1], 1, 1e-8))                                                          \
    X(mse, tg_mse(t, x[0], x[1]))

#define LOSS_ROWS \
    {"loss_rows", "V0[4, 3] V0[4]i", "V0"},                                                                            \
    {"loss_rows", "V0[4, 3] I[4]i", "!one input has the whole of a dim"}, \
    {"loss_rows", "V1[4, 3] I[4]i", "!tg_vocab_parallel_cross_entropy"},                                               \
    {"loss_rows", "V0[1, 3] I[1]i", "!does not broadcast"},                                                            \
    {"loss_mean", "V0[4, 3] V0[4]i", "!take TG_LOSS_SUM"},                                                             \
    {"loss_mean", "V1[4, 3] I[4]i", "!tg_vocab_parallel_cross_entropy"},                                               \
    {"loss_mean", "V[4, 3] V[4]i", "V"},                                                                               \
    {"loss_mean", "P[4, 3] I[4]i", "!not linear"},                                                                     \
    {"loss_sum", "V0[4, 3] V0[4]i", "P"},                                                                              \
    {"loss_sum", "V0[4, 3] I[4]i", "!summed"},                                                                         \
    {"loss_sum", "V0:z[4, 3] V0[4]i", "!summed"},                                                                      \
    {"head_sum", "V0[4, 3] R[5, 3] V0[4]i", "P"},                                                                      \
    {"head_sum", "V0[4, 3] I[5, 3] V0[4]i", "!declare the parameter R"},                                               \
    {"head_sum", "V0[4, 3] V0[5, 3] V0[4]i", "!tg_vocab_parallel_linear_cross_entropy"},                               \
    {"head_rows", "V0[4, 3] R[5, 3] V0[4]i", "V0"},                                                                    \
    {"head_rows", "R[4, 3] V0[5, 3] I[4]i", "!tg_vocab_parallel_linear_cross_entropy"},                                \
    {"l1_mean", "V0[4, 3] V0[4, 3]", "!whole of the dim"},                                                             \
    {"l1_mean", "R[4, 3] R[4, 3]", "R"},                                                                               \
    {"l1_sum", "V0[4, 3] V0[4, 3]", "P"},                                                                              \
    {"l1_sum", "V0:z[4, 3] V0:z[4, 3]", "P"},                                                                          \
    {"l1_sum", "V0[4, 3] R[4, 3]", "!summed"},                                                                         \
    {"l1_sum", "P[4, 3] R-[4, 3]", "!not linear"},                                                                     \
    {"l1_each", "V0[4, 3] V0[4, 3]", "V0"},                                                                            \
    {"l1_each", "V0[4, 3] V1[4, 3]", "!"},                                                                             \
    {"l1_each", "V0[1, 3] R[1, 3]", "!does not broadcast"},                                                            \
    {"bce_sum", "V0[4, 3] V0[4, 3] R[3]", "P"},                                                                        \
    {"bce_sum", "V0[4, 3] V0[4, 3] I[3]", "!declare the parameter R"},                                                 \
    {"bce_sum", "V0[4, 3] V0[4, 3] V0[3]", "!whole of the dim"},                                                       \
    {"bce_sum", "V1[4, 3] V1[4, 3] R[3]", "!whole of the dim"},                                                        \
    {"bce_sum", "V1[4, 3] V1[4, 3] R[4, 1]", "P"},                                                                     \
    {"bce_sum", "V0[4, 3] V0[4, 3] R[4, 1]", "!whole of the dim"},                                                     \
    {"bce_sum", "V1[4, 3] V1[4, 3] V1[4, 3]", "P"},                                                                    \
    {"bce_sum", "V1[4, 3] V1[4, 3] R[4, 3]", "!summed"},                                                               \
    {"bce_each", "V0[4, 3] V0[4, 3] R[3]", "V0"},                                                                      \
    {"bce_each", "V0[4, 3] V0[4, 3] R[1, 3]", "V0"},                                                                   \
    {"bce_each", "V1[4, 3] V1[4, 3] V0[3]", "V1"},                                                                     \
    {"bce_each", "V1[4, 3] V1[4, 3] R[3]", "!"},                                                                       \
    {"kl_batch", "V0[4, 3] V0[4, 3]", "!whole of the dim"},                                                            \
    {"nll_mean", "V0[4, 3] V0[4]i", "!whole of the dim"},                                                              \
    {"nll_sum", "V0[4, 3] V0[4]i R[3]", "P"},                                                                          \
    {"nll_sum", "V0[4, 3] V0[4]i I[3]", "!declare the parameter R"},                                                   \
    {"nll_sum", "V0[4, 3] I[4]i R[3]", "!summed"},                                                                     \
    {"nll_each", "V0[4, 3] V0[4]i R[3]", "V0"},                                                                        \
    {"nll_each", "V0[4, 3] I[4]i R[3]", "!one input has the whole of a dim"}, \
    {"nll_each", "V1[4, 3] I[4]i R[3]", "!whole of the dim"},                                                          \
    {"cosine_1", "V0[4, 3] V0[4, 3]", "V0"},                                                                           \
    {"cosine_1", "V1[4, 3] V1[4, 3]", "!whole of the dim"},                                                            \
    {"mse", "V0[4, 3] V0[4, 3]", "!whole of the dim"},                                                                 \
    {"mse", "V[4, 3] V0[4, 3]", "V"},                                                                                  \
    {"mse", "P[4, 3] R-[4, 3]", "!not linear"},

#endif
