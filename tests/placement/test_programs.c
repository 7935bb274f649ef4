/* Wrong programs that placements must refuse, each with a correct version. Recording the wrong one fails, only
 * because of its placements; the correct one gives one rank's values and gradients. docs/placements.md lists them. */
#include "placement/programs.h"

#include <tapegrad/megatron.h>

#define I TG_I
#define R TG_R
#define P TG_P
#define V TG_V
#define S(d) TG_SHARD(d)
#define SHAPE TG_SHAPE

/* One program per row: the wrong version and the correct one. x, y, h, w ... are leaves made in this order, n is the
 * size of the axis. */
#define PAIR(name, wrong, right)                                                           \
    static tg_tensor *wrong_##name(p_world *w) {                                           \
        tg_tape *t = w->t;                                                                 \
        int n = w->m;                                                                      \
        (void)t, (void)n;                                                                  \
        return wrong;                                                                      \
    }                                                                                      \
    static tg_tensor *right_##name(p_world *w) {                                           \
        tg_tape *t = w->t;                                                                 \
        int n = w->m;                                                                      \
        (void)t, (void)n;                                                                  \
        return right;                                                                      \
    }
#define L(at, ...) leaf(w, at, SHAPE(__VA_ARGS__))
#define C(at, ...) constant(w, at, SHAPE(__VA_ARGS__))
#define COPY(x) tg_copy_to_tp(t, x, w->tp)
#define REDUCE(x) tg_reduce_from_tp(t, x, w->tp)
#define LINEAR(x, y) tg_linear(t, x, y, NULL)

/* ---- Tensors that are equal on every rank used with others ---- */

PAIR(invariant_meets_shard, LINEAR(L(I, 2, 3), L(S(0), 2 * n, 3)), LINEAR(COPY(L(I, 2, 3)), L(S(0), 2 * n, 3)))
PAIR(invariant_meets_batch, LINEAR(C(S(0), 2 * n, 3), L(I, 2, 3)), LINEAR(C(S(0), 2 * n, 3), L(R, 2, 3)))
PAIR(norm_weight_under_sp, tg_mul(t, tg_rms_norm(t, L(S(0), 2 * n, 3), NULL, 0), L(I, 3)),
     tg_mul(t, tg_rms_norm(t, L(S(0), 2 * n, 3), NULL, 0), L(R, 3)))
PAIR(norm_weight_of_heads, tg_mul(t, tg_rms_norm(t, L(S(2), 2, 2, 2 * n, 3), NULL, 0), L(I, 3)),
     tg_mul(t, tg_rms_norm(t, L(S(2), 2, 2, 2 * n, 3), NULL, 0), L(R, 3)))
PAIR(nonlinear_in_partial, tg_tanh(t, LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n))),
     tg_tanh(t, REDUCE(LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n)))))
PAIR(bias_counts_n_times, tg_linear(t, L(S(1), 2, 2 * n), L(S(1), 3, 2 * n), L(R, 3)),
     tg_add(t, REDUCE(LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n))), L(I, 3)))
PAIR(residual_of_partial, tg_add(t, L(I, 2, 3), LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n))),
     tg_add(t, L(I, 2, 3), REDUCE(LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n)))))
PAIR(number_counts_n_times, tg_add_scalar(t, L(P, 2, 3), 1), tg_add_scalar(t, REDUCE(L(P, 2, 3)), 1))
PAIR(constant_counts_n_times, tg_add(t, L(P, 2, 3), C(I, 2, 3)),
     tg_add(t, L(P, 2, 3), tg_i_to_p(t, C(I, 2, 3), w->tp)))
PAIR(two_partials, tg_mul(t, L(P, 2, 3), L(P, 2, 3)), tg_mul(t, L(P, 2, 3), tg_all_reduce(t, L(P, 2, 3), w->tp)))
PAIR(weight_of_partial, tg_mul(t, L(P, 2, 3), L(I, 3)), tg_mul(t, L(P, 2, 3), COPY(L(I, 3))))
PAIR(mask_of_partial, tg_mul(t, L(P, 2, 3), C(S(0), 2 * n, 3)), tg_mul(t, REDUCE(L(P, 2, 3)), C(I, 2, 3)))
PAIR(mask_of_each_rank, tg_mul(t, L(I, 2, 3), C(S(0), 2 * n, 3)), tg_mul(t, L(I, 2, 3), C(I, 2, 3)))
PAIR(invariant_meets_replicated, tg_add(t, L(I, 2, 3), L(R, 2, 3)), tg_add(t, COPY(L(I, 2, 3)), L(R, 2, 3)))

/* ---- Whole dims ---- */

PAIR(mean_over_shards, tg_mean(t, L(S(0), 2 * n), TG_DIMS(0), false),
     tg_scale(t, tg_sum(t, L(S(0), 2 * n), TG_DIMS(0), false), 0.5 / n))
PAIR(softmax_over_shards, tg_softmax(t, L(S(1), 2, 2 * n), 1),
     tg_softmax(t, tg_gather_from(t, L(S(1), 2, 2 * n), 1, w->tp), 1))
PAIR(loss_over_shards, tg_cross_entropy(t, L(S(1), 4, 2 * n), ids(w, I, SHAPE(4), 2), NULL),
     tg_vocab_parallel_cross_entropy(t, L(S(1), 4, 2 * n), ids(w, I, SHAPE(4), 2 * n), w->tp, NULL))
PAIR(loss_of_whole_as_shard, tg_vocab_parallel_cross_entropy(t, L(I, 4, 2), ids(w, I, SHAPE(4), 2), w->tp, NULL),
     tg_cross_entropy(t, L(I, 4, 2), ids(w, I, SHAPE(4), 2), NULL))
PAIR(targets_differ,
     tg_vocab_parallel_cross_entropy(t, L(S(1), 2, 2 * n), ids(w, S(0), SHAPE(2 * n), 2), w->tp, NULL),
     tg_vocab_parallel_cross_entropy(t, L(S(1), 2 * n, 2 * n),
                                     tg_gather_from(t, ids(w, S(0), SHAPE(2 * n), 2 * n), 0, w->tp), w->tp, NULL))
PAIR(rows_of_table, tg_embedding(t, L(S(0), 2 * n, 3), ids(w, I, SHAPE(5), 2)),
     REDUCE(tg_vocab_parallel_embedding(t, L(S(0), 2 * n, 3), ids(w, I, SHAPE(5), 2 * n), w->tp)))
PAIR(ids_differ, tg_vocab_parallel_embedding(t, L(S(0), 2 * n, 3), ids(w, S(0), SHAPE(2 * n), 2), w->tp),
     tg_vocab_parallel_embedding(t, L(S(0), 2 * n, 3),
                                 tg_gather_from(t, ids(w, S(0), SHAPE(2 * n), 2 * n), 0, w->tp), w->tp))
PAIR(whole_meets_shard, tg_add(t, L(S(0), 2 * n, 3), L(R, 2, 3)),
     tg_add(t, L(S(0), 2 * n, 3), tg_shard(t, L(R, 2 * n, 3), 0, w->tp)))
PAIR(shard_broadcasts, tg_add(t, L(S(0), n, 3), L(R, 3, 1)),
     tg_add(t, tg_all_gather(t, L(S(0), n, 3), 0, w->tp), L(R, 3, 1, 1)))

/* ---- Conversions of the wrong kind ---- */

PAIR(reduce_after_nonlinear, REDUCE(tg_tanh(t, L(P, 2, 3))), tg_tanh(t, REDUCE(L(P, 2, 3))))
PAIR(reduce_twice, REDUCE(REDUCE(L(P, 2, 3))), REDUCE(L(P, 2, 3)))
PAIR(reduce_of_shard, REDUCE(L(S(1), 2, 3 * n)), tg_gather_from(t, L(S(1), 2, 3 * n), 1, w->tp))
PAIR(copy_twice, COPY(COPY(L(I, 2, 3))), COPY(L(I, 2, 3)))
PAIR(gather_without_sum, LINEAR(tg_gather_from(t, L(S(0), 2 * n, 3), 0, w->tp), L(S(0), 2 * n, 3)),
     LINEAR(tg_all_gather(t, L(S(0), 2 * n, 3), 0, w->tp), L(S(0), 2 * n, 3)))
PAIR(gather_of_other_dim, tg_gather_from(t, L(S(0), 2 * n, 3), -1, w->tp),
     tg_gather_from(t, L(S(0), 2 * n, 3), 0, w->tp))
PAIR(rows_and_columns, LINEAR(L(S(0), 2 * n, 3), L(S(0), 2 * n, 3)),
     LINEAR(tg_all_gather(t, L(S(0), 2 * n, 3), 0, w->tp), L(S(0), 2 * n, 3)))
PAIR(summed_and_free, tg_square(t, LINEAR(L(S(1), 2, 2 * n), L(S(0), 3 * n, 2))),
     tg_square(t, REDUCE(LINEAR(L(S(1), 2, 2 * n), L(S(1), 3, 2 * n)))))

static tg_tensor *gated(tg_tape *t, tg_tensor *both) {
    tg_tensor *half[2];
    int64_t size = tg_dim(both, -1) / 2;
    tg_split(t, both, -1, (const int64_t[]){size, size}, 2, half);
    return tg_swiglu(t, half[0], half[1]);
}

PAIR(halves_of_shards, gated(t, LINEAR(L(R, 2, 3), L(S(0), 4 * n, 3))),
     gated(t, LINEAR(L(R, 2, 3), L(TG_SHARD_STRIDED(0, 2), 4 * n, 3))))
PAIR(layouts_differ, tg_add(t, L(TG_SHARD_ZIGZAG(0), 2 * n, 3), L(S(0), 2 * n, 3)),
     tg_add(t, L(TG_SHARD_ZIGZAG(0), 2 * n, 3), L(TG_SHARD_ZIGZAG(0), 2 * n, 3)))

/* ---- Sequences ---- */

PAIR(keys_of_one_rank,
     tg_attention(t, L(S(2), 1, 2, 2 * n, 3), L(S(2), 1, 2, 2 * n, 3), L(S(2), 1, 2, 2 * n, 3), NULL),
     tg_attention(t, L(S(2), 1, 2, 2 * n, 3), tg_all_gather(t, L(S(2), 1, 2, 2 * n, 3), 2, w->tp),
                  tg_all_gather(t, L(S(2), 1, 2, 2 * n, 3), 2, w->tp), NULL))
PAIR(offsets_of_rows,
     tg_attention(t, L(S(2), 1, 2, 2 * n, 3), L(R, 1, 2, 2 * n, 3), L(R, 1, 2, 2 * n, 3), TG_ATTENTION(.causal = true)),
     tg_attention(t, tg_all_gather(t, L(S(2), 1, 2, 2 * n, 3), 2, w->tp), L(R, 1, 2, 2 * n, 3), L(R, 1, 2, 2 * n, 3),
                  TG_ATTENTION(.causal = true)))

#define HEADS3(...)                                                                                \
    tg_attention(t, L(S(1), 1, 2 * n, 4, 3), L(S(1), 1, 2 * n, 4, 3), L(S(1), 1, 2 * n, 4, 3), \
                 TG_ATTENTION(__VA_ARGS__))
PAIR(bias_of_other_heads, HEADS3(.causal = true, .mask = L(R, 2, 4, 4)),
     HEADS3(.causal = true, .mask = L(S(0), 2 * n, 4, 4)))
PAIR(bias_of_all_heads, HEADS3(.mask = L(I, 4, 4)), HEADS3(.mask = L(R, 4, 4)))
PAIR(sink_of_other_heads, HEADS3(.left = 1, .sink = L(R, 2)), HEADS3(.left = 1, .sink = L(S(0), 2 * n)))

static tg_tensor *masked_mean(p_world *w, bool right) {
    tg_tensor *loss = L(S(0), 2 * w->m), *counted = C(S(0), 2 * w->m);
    tg_tensor *m = tg_square(w->t, counted), *sum = tg_sum(w->t, tg_mul(w->t, loss, m), TG_ALL_DIMS, false);
    tg_tensor *count = tg_sum(w->t, m, TG_ALL_DIMS, false);
    return tg_div(w->t, sum, right ? tg_reduce_from_tp(w->t, count, w->tp) : count);
}

PAIR(partial_denominator, masked_mean(w, false), masked_mean(w, true))
PAIR(norm_over_shards, tg_logsumexp(t, L(S(0), 2 * n, 3), TG_DIMS(0), false),
     tg_sqrt(t, REDUCE(tg_sum(t, tg_square(t, L(S(0), 2 * n, 3)), TG_DIMS(0), false))))
PAIR(slice_of_shard, tg_slice(t, L(S(0), 4 * n, 3), 0, 1, 3, 1),
     tg_slice(t, tg_gather_from(t, L(S(0), 4 * n, 3), 0, w->tp), 0, 1, 3, 1))
PAIR(select_of_shard, tg_select(t, L(S(1), 2, n), 1, 0), tg_select(t, tg_gather_from(t, L(S(1), 2, n), 1, w->tp), 1, 0))

/* ---- Masks, joins, claims ---- */

PAIR(fill_by_each_rank, tg_masked_fill(t, L(I, 3), mask(w, V, SHAPE(2 * n, 3)), 0),
     tg_masked_fill(t, COPY(L(I, 3)), mask(w, V, SHAPE(2 * n, 3)), 0))
PAIR(fill_of_partial, tg_masked_fill(t, L(P, 2, 3), mask(w, I, SHAPE(2, 3)), -9),
     tg_masked_fill(t, REDUCE(L(P, 2, 3)), mask(w, I, SHAPE(2, 3)), -9))
PAIR(beside_partial, tg_concat(t, (tg_tensor *[]){L(P, 2, 3), L(R, 2, 3)}, 2, 0),
     tg_concat(t, (tg_tensor *[]){tg_all_reduce(t, L(P, 2, 3), w->tp), L(R, 2, 3)}, 2, 0))

/* x - max(x) of opaque data. */
static tg_tensor *shifted(p_world *w, bool right) {
    tg_tensor *x = L(V, 2 * w->m, 3), *from = right ? tg_detach(w->t, x) : x;
    return tg_sub(w->t, x, tg_all_reduce_max(w->t, tg_max(w->t, from, TG_DIMS(0), false), w->tp));
}

PAIR(gradient_of_max, shifted(w, false), shifted(w, true))
PAIR(nothing_to_reduce, REDUCE(tg_matmul(t, L(S(0), 2 * n, 3), L(R, 3, 2))),
     tg_matmul(t, L(S(0), 2 * n, 3), L(R, 3, 2)))
PAIR(shard_as_addend, tg_as_partial(t, L(S(0), 2 * n, 3), w->tp), tg_sum(t, L(S(0), 2 * n, 3), TG_DIMS(0), false))
PAIR(scatter_of_replicated, tg_scatter_to(t, L(R, 2 * n, 3), 0, w->tp), tg_shard(t, L(R, 2 * n, 3), 0, w->tp))

/* ---- Two axes: tp of 2 ranks, and cp or dp ---- */

#define BOTH(a, at_a, b, at_b, ...) leaf_at(w, SHAPE(__VA_ARGS__), P_AT({a, at_a}, {b, at_b}))

PAIR(orders_differ,
     tg_add(t, BOTH(TG_CP, S(0), TG_TP, S(0), 2 * n, 3), BOTH(TG_TP, S(0), TG_CP, S(0), 2 * n, 3)),
     tg_add(t, BOTH(TG_CP, S(0), TG_TP, S(0), 2 * n, 3), BOTH(TG_CP, S(0), TG_TP, S(0), 2 * n, 3)))
PAIR(gather_of_major, tg_gather_from(t, BOTH(TG_CP, S(0), TG_TP, S(0), 2 * n, 3), 0, w->cp),
     tg_gather_from(t, tg_gather_from(t, BOTH(TG_CP, S(0), TG_TP, S(0), 2 * n, 3), 0, w->tp), 0, w->cp))
PAIR(partial_on_another_axis, tg_tanh(t, BOTH(TG_DP, S(0), TG_TP, P, 2 * n, 3)),
     tg_tanh(t, REDUCE(BOTH(TG_DP, S(0), TG_TP, P, 2 * n, 3))))

typedef struct pair {
    const char *name;
    p_program wrong, right;
} pair;
#define ROW(name) {#name, wrong_##name, right_##name}

static const pair pairs[] = {
    ROW(invariant_meets_shard), ROW(invariant_meets_batch), ROW(norm_weight_under_sp), ROW(norm_weight_of_heads),
    ROW(nonlinear_in_partial), ROW(bias_counts_n_times), ROW(residual_of_partial), ROW(number_counts_n_times),
    ROW(constant_counts_n_times), ROW(two_partials), ROW(weight_of_partial), ROW(mask_of_partial),
    ROW(mask_of_each_rank), ROW(invariant_meets_replicated), ROW(mean_over_shards), ROW(softmax_over_shards),
    ROW(loss_over_shards), ROW(loss_of_whole_as_shard), ROW(targets_differ), ROW(rows_of_table), ROW(ids_differ),
    ROW(whole_meets_shard), ROW(shard_broadcasts), ROW(reduce_after_nonlinear), ROW(reduce_twice),
    ROW(reduce_of_shard), ROW(copy_twice), ROW(gather_without_sum), ROW(gather_of_other_dim), ROW(rows_and_columns),
    ROW(summed_and_free), ROW(halves_of_shards), ROW(layouts_differ), ROW(keys_of_one_rank), ROW(offsets_of_rows),
    ROW(bias_of_other_heads), ROW(bias_of_all_heads), ROW(sink_of_other_heads),
    ROW(partial_denominator), ROW(norm_over_shards), ROW(slice_of_shard), ROW(select_of_shard), ROW(fill_by_each_rank),
    ROW(fill_of_partial), ROW(beside_partial), ROW(gradient_of_max), ROW(nothing_to_reduce), ROW(shard_as_addend),
    ROW(scatter_of_replicated),
};

static const pair two_axes[] = {ROW(orders_differ), ROW(gather_of_major)};
static const pair with_dp[] = {ROW(partial_on_another_axis)};

START_TEST(wrong_programs_are_refused) {
    for (int i = 0; i < TG_LEN(pairs); i++)
        p_refuse(pairs[i].name, pairs[i].wrong, 2, 1, 2, pairs[i].wrong == wrong_gradient_of_max);
    for (int i = 0; i < TG_LEN(two_axes); i++) p_refuse(two_axes[i].name, two_axes[i].wrong, 2, 2, 4, false);
    for (int i = 0; i < TG_LEN(with_dp); i++) p_refuse(with_dp[i].name, with_dp[i].wrong, 2, 1, 4, false);
    ck_assert_int_eq(TG_LEN(pairs) + TG_LEN(two_axes) + TG_LEN(with_dp), 52);
}
END_TEST

START_TEST(their_twins_are_one_rank) {
    for (int n = 2; n <= 4; n += 2)
        for (int i = 0; i < TG_LEN(pairs); i++) p_compare(pairs[i].name, pairs[i].right, n, 1, n);
    for (int i = 0; i < TG_LEN(two_axes); i++) p_compare(two_axes[i].name, two_axes[i].right, 2, 2, 4);
    for (int i = 0; i < TG_LEN(with_dp); i++) p_compare(with_dp[i].name, with_dp[i].right, 2, 1, 4);
}
END_TEST

/* ---- The comparison finds wrong programs ---- */

#define CLAIM(x, at) tg_assume_placement(w->t, x, w->p, TG_TP, at)

static tg_tensor *share_as_sum(p_world *w) { return CLAIM(L(P, 2, 3), I); }
static tg_tensor *shards_in_other_order(p_world *w) {
    return tg_mul(w->t, CLAIM(L(TG_SHARD_ZIGZAG(0), 2 * w->m, 3), S(0)), L(S(0), 2 * w->m, 3));
}

static tg_tensor *gradient_of_a_share(p_world *w) {
    tg_tensor *x = L(I, 3), *y = L(S(0), 2 * w->m, 3);
    return tg_mul(w->t, CLAIM(x, R), y);
}

START_TEST(false_claims_are_found) {
    const p_program wrong[] = {share_as_sum, shards_in_other_order, gradient_of_a_share};
    for (int i = 0; i < TG_LEN(wrong); i++) {
        char message[1200];
        tg_status s = p_against("a false claim", wrong[i], 2, 1, 2, message, sizeof message);
        bool by_bytes = s == TG_ERR_PLACEMENT && strstr(message, "its bytes differ between ranks 0 and 1");
        bool by_result = s == TG_ERR_INTERNAL && strstr(message, "one rank has");
        ck_assert_msg(i == 0 ? by_bytes : by_result, "claim %d: %s", i, message);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {wrong_programs_are_refused, their_twins_are_one_rank, false_claims_are_found};
    return tg_check_main("programs", tests, TG_LEN(tests));
}
