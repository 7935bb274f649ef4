/* Attention as a composition of other ops, which computes the full matrix of scores. The slots vjp and jvp use it, so
 * that derivatives can be differentiated again. */
#include "ops/attention.h"

#include <math.h>

#include <tapegrad/ops.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "placement/draws.h"

/* The scores, and masks of those that a query must not see. */
typedef struct scores {
    const tg_node *n;
    tg_tensor *s;         /* [b, h, sq, sk] */
    tg_tensor *hidden[8]; /* bool, broadcast to s: true where an option, a mask or padding hides the score */
    int count;            /* number of elements of hidden */
} scores;

/* Returns 0, 1, .. n - 1. */
static tg_tensor *index_row(tg_tape *t, int64_t n) { return tg_arange(t, TG_I64, 0, (double)n, 1); }

static tg_tensor *shifted(tg_tape *t, tg_tensor *positions, int64_t by) {
    return tg_add(t, positions, tg_full(t, TG_I64, TG_SHAPE(), (double)by));
}

static void hide(scores *s, tg_tensor *hidden) { s->hidden[s->count++] = hidden; }

/* Returns the index of the packed sequence to which each of n positions belongs: starts [e, m + 1] -> [e, n]. */
static tg_tensor *sequence_of(tg_tape *t, tg_tensor *starts, int64_t n) {
    tg_tensor *first = tg_unsqueeze(t, tg_slice(t, starts, 1, 0, tg_dim(starts, 1) - 1, 1), 1);
    tg_tensor *begun = tg_ge(t, tg_unsqueeze(t, index_row(t, n), 1), first);
    tg_tensor *count = tg_sum(t, tg_cast(t, begun, TG_F64), TG_DIMS(2), false);
    return tg_cast(t, tg_add_scalar(t, count, -1), TG_I64);
}

/* Returns the end of each sequence whose index is in `sequences` [e, n]: the start of the next sequence. */
static tg_tensor *ends_of(tg_tape *t, tg_tensor *starts, tg_tensor *sequences) {
    return tg_gather(t, tg_slice(t, starts, 1, 1, tg_dim(starts, 1), 1), 1, sequences);
}

/* Returns starts with a row for each batch entry, [e, m + 1]; a vector becomes one row. */
static tg_tensor *rows_of(tg_tape *t, tg_tensor *starts) {
    return starts->ndim == 1 ? tg_unsqueeze(t, starts, 0) : starts;
}

/* Returns x [e, n] so that it broadcasts to scores [e, h, sq, sk], along sq or sk. */
static tg_tensor *along_q(tg_tape *t, tg_tensor *x) { return tg_unsqueeze(t, tg_unsqueeze(t, x, 1), 3); }
static tg_tensor *along_k(tg_tape *t, tg_tensor *x) { return tg_unsqueeze(t, tg_unsqueeze(t, x, 1), 1); }

/* Returns the position of each query among the keys, [sq, 1] or [e, 1, sq, 1]. If sequences are packed, also hides the
 * keys of other sequences. */
static tg_tensor *query_positions(tg_tape *t, scores *s, int64_t sq, int64_t sk) {
    tg_tensor *starts_q = tg_node_in(s->n)[STARTS_Q], *starts_k = tg_node_in(s->n)[STARTS_K];
    if (!starts_q) return tg_unsqueeze(t, tg_arange(t, TG_I64, (double)(sk - sq), (double)sk, 1), 1);
    starts_q = rows_of(t, starts_q), starts_k = rows_of(t, starts_k);
    tg_tensor *of_q = sequence_of(t, starts_q, sq), *of_k = sequence_of(t, starts_k, sk);
    hide(s, tg_ne(t, along_k(t, of_k), along_q(t, of_q)));
    tg_tensor *shift = tg_sub(t, ends_of(t, starts_k, of_q), ends_of(t, starts_q, of_q));
    return along_q(t, tg_add(t, shift, index_row(t, sq)));
}

/* Hides keys by the options causal and window, by packing and by lengths. */
static void hide_by_rules(tg_tape *t, scores *s, int64_t sq, int64_t sk) {
    const attention_params *p = tg_node_params(s->n);
    tg_tensor *lengths = tg_node_in(s->n)[LENGTHS], *key = index_row(t, sk);
    if (p->opts.causal || p->left_bound || p->right_bound || tg_node_in(s->n)[STARTS_Q]) {
        tg_tensor *position = query_positions(t, s, sq, sk);
        if (p->opts.causal) hide(s, tg_gt(t, key, position));
        if (p->right_bound && !p->opts.causal) hide(s, tg_gt(t, key, shifted(t, position, p->opts.right)));
        if (p->left_bound) hide(s, tg_lt(t, key, shifted(t, position, -p->opts.left)));
    }
    if (lengths) hide(s, tg_ge(t, key, tg_reshape(t, lengths, TG_SHAPE(lengths->shape[0], 1, 1, 1))));
}

/* A bool mask hides scores where it is false. A float mask is added, and hides scores where it is -inf. */
static void apply_mask(tg_tape *t, scores *s) {
    tg_tensor *mask = tg_node_in(s->n)[MASK];
    if (!mask) return;
    if (mask->dtype == TG_BOOL) {
        hide(s, tg_equals(t, mask, 0));
        return;
    }
    tg_tensor *none = tg_equals(t, mask, -INFINITY);
    mask = tg_masked_fill(t, mask, none, 0);
    if (mask->dtype != s->s->dtype) mask = tg_cast(t, mask, (tg_dtype)s->s->dtype);
    s->s = tg_add(t, s->s, mask);
    hide(s, none);
}

/* Returns the probabilities if each softmax has a sink. The row maximum is subtracted against overflow. It cancels, so
 * it is used without a gradient. */
static tg_tensor *softmax_with_sink(tg_tape *t, tg_tensor *s, tg_tensor *sink) {
    sink = tg_reshape(t, tg_wide(t, sink), TG_SHAPE(sink->shape[0], 1, 1));
    if (sink->dtype != s->dtype) sink = tg_cast(t, sink, (tg_dtype)s->dtype);
    if (tg_dim(s, 3) == 0) return s;
    tg_tensor *most = tg_detach(t, tg_maximum(t, tg_max(t, s, TG_DIMS(-1), true), sink));
    tg_tensor *e = tg_exp(t, tg_sub(t, s, most)), *extra = tg_exp(t, tg_sub(t, sink, most));
    return tg_div(t, e, tg_add(t, tg_sum(t, e, TG_DIMS(-1), true), extra));
}

/* Computes the full matrix of scores. Hidden scores are set to a finite number, so that a row that sees no key has a
 * gradient of 0 and not NaN. */
static tg_status attention_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const attention_params *p = tg_node_params(n);
    const tg_tensor *y = tg_node_out(n)[0];
    tg_tensor *q = tg_wide(t, tg_node_in(n)[Q]), *k = tg_wide(t, tg_node_in(n)[K]), *v = tg_wide(t, tg_node_in(n)[V]);
    if (!tg_is_alive(q) || !tg_is_alive(k) || !tg_is_alive(v)) return t->ctx->run.status;
    int64_t b = q->shape[0], h = q->shape[1], sq = q->shape[2], sk = k->shape[2], g = k->shape[1], r = g ? h / g : 1;
    scores s = {.n = n};
    q = tg_reshape(t, tg_scale(t, q, p->opts.scale), TG_SHAPE(b, g, r, sq, q->shape[3]));
    s.s = tg_matmul(t, q, tg_transpose(t, tg_unsqueeze(t, k, 2), -1, -2));
    s.s = tg_reshape(t, s.s, TG_SHAPE(b, h, sq, sk));
    if (p->opts.softcap > 0) s.s = tg_scale(t, tg_tanh(t, tg_scale(t, s.s, 1 / p->opts.softcap)), p->opts.softcap);
    apply_mask(t, &s);
    hide_by_rules(t, &s, sq, sk);
    for (int i = 0; i < s.count; i++) s.s = tg_masked_fill(t, s.s, s.hidden[i], -1e30);
    tg_tensor *sink = tg_node_in(n)[SINK], *x = sink ? softmax_with_sink(t, s.s, sink) : tg_softmax(t, s.s, -1);
    for (int i = 0; i < s.count; i++) x = tg_masked_fill(t, x, s.hidden[i], 0);
    if (p->opts.dropout > 0) x = tg_dropout_again(t, x, p->opts.dropout, &p->draws);
    x = tg_matmul(t, tg_reshape(t, x, TG_SHAPE(b, g, r, sq, sk)), tg_unsqueeze(t, v, 2));
    out[0] = tg_cast(t, tg_reshape(t, x, tg_shape_kept(y)), (tg_dtype)y->dtype);
    return TG_OK;
}

tg_status tg_attention_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)gin;
    return tg_vjp_composed(t, n, gout, attention_compose);
}

tg_status tg_attention_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    (void)din;
    return tg_jvp_composed(t, n, dout, attention_compose);
}
