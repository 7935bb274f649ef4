/* Sums, means and maxima of the rows of a table in bags of ids, composed of embedding and of reductions. Bags are the
 * rows of ids, or adjacent parts of it; the rows of such a part are added by scatter_add. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

enum { TABLE, IDS, OFFSETS, WEIGHTS, INPUTS };

typedef struct bag_params {
    tg_bag_mode mode;
    int64_t ignore;
    bool last;    /* offsets has one number more, the end of the last bag */
    size_t given; /* size of the caller's options struct */
} bag_params;

static tg_status check_modes(tg_tape *t, const bag_params *p, tg_tensor *const *in) {
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_bag_opts), "the options"));
    if (p->mode > TG_BAG_MAX)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "mode is %d; it must be a value of tg_bag_mode", (int)p->mode);
    if (in[WEIGHTS] && p->mode != TG_BAG_SUM)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "weights are given, but only TG_BAG_SUM uses them");
    if (p->last && !in[OFFSETS])
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "include_last_offset is set, but there are no offsets");
    if (in[OFFSETS] && p->mode == TG_BAG_MAX)
        return tg_fail(t->ctx, TG_ERR_UNSUPPORTED,
                       "TG_BAG_MAX has no offsets; make each bag a row of ids [b, l], filled "
                       "up with an ignored id");
    return TG_OK;
}

static tg_status check(tg_tape *t, const bag_params *p, tg_tensor *const *in) {
    const tg_tensor *ids = in[IDS], *offsets = in[OFFSETS], *weights = in[WEIGHTS];
    TG_TRY(check_modes(t, p, in));
    if (in[TABLE]->ndim != 2 || ids->ndim != (offsets ? 1 : 2) || (offsets && offsets->ndim != 1))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "table must be [v, h], and ids [b, l], or [n] with offsets [b]");
    if (offsets && offsets->shape[0] < (p->last ? 1 : 0))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "offsets is empty; with include_last_offset it has one number or more");
    if (offsets && !offsets->shape[0] && ids->shape[0])
        return tg_fail(t->ctx, TG_ERR_SHAPE, "offsets is empty, but there are %s; expected the beginning of each bag",
                       tg_count(ids->shape[0], "id").text);
    if (weights && !tg_same_shape(weights, ids))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "weights must have the shape of ids");
    if (!tg_is_float(in[TABLE]->dtype) || (weights && weights->dtype != in[TABLE]->dtype))
        return tg_fail(t->ctx, TG_ERR_DTYPE, "table and weights must have one float dtype");
    if (ids->dtype != TG_I64 && ids->dtype != TG_I32)
        return tg_fail(t->ctx, TG_ERR_DTYPE, "ids is %s; expected int64 or int32", tg_dtype_name((tg_dtype)ids->dtype));
    if (offsets && offsets->dtype != TG_I64)
        return tg_fail(t->ctx, TG_ERR_DTYPE, "offsets is %s; expected int64", tg_dtype_name((tg_dtype)offsets->dtype));
    return TG_OK;
}

/* ---- Offsets ---- */

/* Checks offsets that the host can read: the first is 0, and none is less than the one before it or greater than n. */
static tg_status check_offsets(const tg_tape *t, const tg_tensor *offsets, int64_t n) {
    const int64_t *at = tg_data(offsets);
    for (int64_t i = 0, before = 0; i < offsets->shape[0]; i++) {
        int64_t now = at[i * offsets->stride[0]];
        if (now < before || now > (i ? n : 0))
            return tg_fail(t->ctx, TG_ERR_DATA,
                           "offsets[%lld] is %lld; the first must be 0, and none may be less than the one before it "
                           "or greater than %lld, the number of ids",
                           (long long)i, (long long)now, (long long)n);
        before = now;
    }
    return TG_OK;
}

/* Returns offsets with -1 in place of each that is less than the one before it. -1 is no valid index, so a device that
 * reports errors in data later names the place of that offset. */
static tg_tensor *mark_decreases(tg_tape *t, tg_tensor *offsets) {
    int64_t n = tg_dim(offsets, 0);
    if (n < 2) return offsets;
    tg_tensor *before = tg_slice(t, offsets, 0, 0, n - 1, 1), *later = tg_slice(t, offsets, 0, 1, n, 1);
    tg_tensor *less = tg_lt(t, later, before), *marked = tg_masked_fill(t, later, less, -1);
    tg_tensor *all = tg_concat(t, (tg_tensor *[]){tg_slice(t, offsets, 0, 0, 1, 1), marked}, 2, 0);
    tg_discard(less);
    tg_discard(marked);
    return all;
}

/* Returns the offsets after a check, which takes place now or, if the host cannot read them, on the device. A first
 * offset above 0 leaves the ids before it without a bag, which the device reports. */
static tg_tensor *checked_offsets(tg_tape *t, tg_tensor *offsets, int64_t n) {
    if (t->ctx->meta) return offsets;
    if (!t->ctx->host) return mark_decreases(t, offsets);
    return check_offsets(t, offsets, n) == TG_OK ? offsets : tg_inert(t->ctx);
}

/* Adds x to `to` at indices that come from the offsets. A device that reports errors in data later names the
 * offsets. */
static tg_tensor *add_by_offsets(tg_tape *t, tg_tensor *to, tg_tensor *index, tg_tensor *x) {
    const char *composer = t->ctx->run.composer;
    t->ctx->run.composer = "embedding_bag from its offsets";
    tg_tensor *y = tg_scatter_add(t, to, 0, index, x);
    t->ctx->run.composer = composer;
    return y;
}

/* ---- Sums ---- */

/* Returns the bag of each of n ids: the number of offsets at or before its place, less 1. [n], int64. Offsets mark the
 * places where bags begin, and a cumulative sum counts them. One place more takes the offsets of empty bags at the
 * end. */
static tg_tensor *bag_of_ids(tg_tape *t, tg_tensor *offsets, int64_t n) {
    tg_tensor *ones = tg_full(t, TG_I64, TG_SHAPE(tg_dim(offsets, 0)), 1);
    tg_tensor *at = checked_offsets(t, offsets, n);
    tg_tensor *begins = add_by_offsets(t, tg_full(t, TG_I64, TG_SHAPE(n + 1), 0), at, ones);
    if (at != offsets) tg_discard(at);
    return tg_add_scalar(t, tg_slice(t, tg_cumsum(t, begins, 0), 0, 0, n, 1), -1);
}

/* Returns the sums of the rows of x [n, ..] in each bag, [bags, ..]. bag [n] is the bag of each row. */
static tg_tensor *add_to_bags(tg_tape *t, tg_tensor *x, tg_tensor *bag, int64_t bags) {
    tg_shape shape = tg_shape_kept(x);
    tg_tensor *index = x->ndim == 2 ? tg_expand(t, tg_unsqueeze(t, bag, 1), shape) : bag;
    shape.dim[0] = bags;
    return add_by_offsets(t, tg_full(t, (tg_dtype)x->dtype, shape, 0), index, x);
}

/* Returns the sums over bags of x: rows [.., h], or one number for each id. If bag is NULL, each row of ids is a
 * bag. */
static tg_tensor *sums(tg_tape *t, tg_tensor *x, tg_tensor *bag, int64_t bags) {
    return bag ? add_to_bags(t, x, bag, bags) : tg_sum(t, x, TG_DIMS(1), false);
}

/* Divides sums [b, h] by the numbers of ids that count, but at least by 1. */
static tg_tensor *means(tg_tape *t, tg_tensor *sum, const tg_tensor *ids, tg_tensor *ignored, tg_tensor *bag) {
    tg_tensor *ones = tg_full(t, (tg_dtype)sum->dtype, tg_shape_kept(ids), 1);
    tg_tensor *n = sums(t, ignored ? tg_masked_fill(t, ones, ignored, 0) : ones, bag, tg_dim(sum, 0));
    return tg_div(t, sum, tg_unsqueeze(t, tg_maximum(t, n, tg_number_like(t, n, 1)), 1));
}

/* Returns the maxima [b, h] of rows [b, l, h] over the ids that count; 0 for a bag without such ids. Of equal elements
 * the first gets the gradient. */
static tg_tensor *maxima(tg_tape *t, tg_tensor *rows, tg_tensor *ignored) {
    if (tg_dim(rows, 1) == 0) return tg_sum(t, rows, TG_DIMS(1), false);
    tg_tensor *values = tg_detach(t, rows), *hidden = ignored ? tg_unsqueeze(t, ignored, 2) : NULL;
    if (ignored) values = tg_masked_fill(t, values, hidden, -INFINITY);
    tg_tensor *most = tg_squeeze(t, tg_gather(t, rows, 1, tg_argmax(t, values, 1, true)), 1);
    return ignored ? tg_masked_fill(t, most, tg_all(t, hidden, TG_DIMS(1), false), 0) : most;
}

/* Returns the rows of the table, times the weights. Ignored ids read row 0. */
static tg_tensor *rows_of(tg_tape *t, tg_tensor *const *in, tg_tensor *ignored) {
    tg_tensor *ids = ignored ? tg_masked_fill(t, in[IDS], ignored, 0) : in[IDS];
    tg_tensor *rows = tg_wide(t, tg_embedding(t, in[TABLE], ids));
    return in[WEIGHTS] ? tg_mul(t, rows, tg_unsqueeze(t, tg_wide(t, in[WEIGHTS]), -1)) : rows;
}

/* Computes the result in the accumulation dtype. If the end of the last bag is given, the ids from there on are summed
 * in one more row, which is then left out. */
static tg_tensor *bags_of(tg_tape *t, const bag_params *p, tg_tensor *const *in, tg_tensor *rows, tg_tensor *ignored) {
    tg_tensor *offsets = in[OFFSETS], *bag = NULL;
    if (p->mode == TG_BAG_MAX) return maxima(t, rows, ignored);
    if (offsets) bag = bag_of_ids(t, offsets, in[IDS]->shape[0]);
    if (ignored) rows = tg_masked_fill(t, rows, tg_unsqueeze(t, ignored, -1), 0);
    tg_tensor *y = sums(t, rows, bag, offsets ? offsets->shape[0] : in[IDS]->shape[0]);
    if (p->mode == TG_BAG_MEAN) y = means(t, y, in[IDS], ignored, bag);
    return p->last ? tg_slice(t, y, 0, 0, offsets->shape[0] - 1, 1) : y;
}

static tg_status embedding_bag_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                       const void *site) {
    const bag_params *p = params;
    tg_tensor *ids = in[IDS], *ignored = NULL;
    (void)site;
    TG_TRY(check(t, p, in));
    if (p->ignore != TG_NONE) ignored = tg_eq(t, ids, tg_full(t, (tg_dtype)ids->dtype, TG_SHAPE(), (double)p->ignore));
    tg_tensor *rows = rows_of(t, in, ignored);
    if (!tg_is_alive(rows)) return t->ctx->run.status;
    tg_tensor *y = bags_of(t, p, in, rows, ignored);
    out[0] = y->dtype == in[TABLE]->dtype ? y : tg_cast(t, y, (tg_dtype)in[TABLE]->dtype);
    return t->ctx->run.status;
}

#define BAG_(mode_, ignore_, last_)                                                                                    \
    &(const bag_params) { .mode = TG_BAG_##mode_, .ignore = ignore_, .last = last_, .given = sizeof(tg_bag_opts) }
#define BAG(mode_) BAG_(mode_, TG_NONE, false)
#define FOUR(...)  .n_in = 4, .input = {__VA_ARGS__}
#define ROWS(...)  TG_S_INDEX(5, __VA_ARGS__)
static const tg_sample bag_samples[] = {
    {.note = "means of rows", .params = BAG(MEAN), FOUR(TG_S(5, 3), ROWS(2, 4), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "sums with weights", .params = BAG(SUM), FOUR(TG_S(5, 3), ROWS(2, 4), TG_S_ABSENT, TG_S(2, 4))},
    {.note = "maxima", .params = BAG(MAX), FOUR(TG_S(5, 3), ROWS(3, 4), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "maxima, some ignored",
     .params = BAG_(MAX, 1, false),
     FOUR(TG_S(5, 2), TG_S_INDEX(2, 4, 2), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "means of parts", .params = BAG(MEAN), FOUR(TG_S(5, 3), ROWS(9), TG_S_STARTS(9, 4), TG_S_ABSENT)},
    {.note = "sums of parts with weights, some ignored",
     .params = BAG_(SUM, 1, false),
     FOUR(TG_S(5, 3), ROWS(9), TG_S_STARTS(6, 3), TG_S(9))},
    {.note = "means of parts, the last offset",
     .params = BAG_(MEAN, 0, true),
     FOUR(TG_S(5, 2), ROWS(6), TG_S_STARTS(6, 3), TG_S_ABSENT)},
    {.note = "means of parts, ids after the last",
     .params = BAG_(MEAN, 0, true),
     FOUR(TG_S(5, 2), ROWS(6), TG_S_STARTS(4, 3), TG_S_ABSENT)},
    {.note = "strided table",
     .params = BAG(SUM),
     FOUR(TG_S_AS(TG_SAMPLE_STRIDED, 5, 3), ROWS(2, 2), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "empty bags", .params = BAG(MEAN), FOUR(TG_S(5, 3), ROWS(2, 0), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "no such row",
     .params = BAG(SUM),
     FOUR(TG_S(2, 3), TG_S_INDEX(99, 3, 3), TG_S_ABSENT, TG_S_ABSENT),
     .refused = TG_ERR_DATA},
    {.note = "means with weights",
     .params = BAG(MEAN),
     FOUR(TG_S(5, 3), ROWS(2, 4), TG_S_ABSENT, TG_S(2, 4)),
     .refused = TG_ERR_ARGUMENT},
    {.note = "weights of another shape",
     .params = BAG(SUM),
     FOUR(TG_S(5, 3), ROWS(2, 4), TG_S_ABSENT, TG_S(4, 2)),
     .refused = TG_ERR_SHAPE},
    {.note = "maxima of parts",
     .params = BAG(MAX),
     FOUR(TG_S(5, 3), ROWS(9), TG_S_STARTS(9, 4), TG_S_ABSENT),
     .refused = TG_ERR_UNSUPPORTED},
    {.note = "parts of a matrix",
     .params = BAG(SUM),
     FOUR(TG_S(5, 3), ROWS(2, 4), TG_S_STARTS(8, 2), TG_S_ABSENT),
     .refused = TG_ERR_SHAPE},
    {.note = "float ids",
     .params = BAG(SUM),
     FOUR(TG_S(5, 3), TG_S(2, 4), TG_S_ABSENT, TG_S_ABSENT),
     .refused = TG_ERR_DTYPE},
    {.note = "recommendations",
     .params = BAG(SUM),
     FOUR(TG_S(10000, 64), TG_S_INDEX(10000, 2048, 20), TG_S_ABSENT, TG_S_ABSENT),
     .bench = true},
};

static const tg_field bag_fields[] = {
    TG_ARG(bag_params, mode, ENUM, "Sum, mean or maximum of the rows of a bag.", .of = "tg_bag_mode"),
    TG_ARG_AS(bag_params, ignore, "ignore_index", INT64, "Ids with this value do not count; -1: all count."),
    TG_ARG_AS(bag_params, last, "include_last_offset", BOOL, "offsets has one number more, the end of the last bag."),
};

const tg_op tg_op_embedding_bag = {.size = sizeof(tg_op),
                                   .name = "embedding_bag",
                                   .formula = "sums, means or maxima of table[id] over bags of ids",
                                   .inputs = "table ids offsets weights",
                                   .n_in = INPUTS,
                                   .n_out = 1,
                                   .params_size = sizeof(bag_params),
                                   .optional = 1u << OFFSETS | 1u << WEIGHTS,
                                   .compose = embedding_bag_compose,
                                   TG_FIELDS(bag_fields),
                                   .preset = BAG(MEAN),
                                   TG_SAMPLES(bag_samples)};

/* Returns the sum, mean or maximum [b, h] of the rows of table [v, h] in each bag: a row of ids [b, l], or the part of
 * ids [n] from one of offsets [b] to the next. 16-bit sums run in float32. */
tg_tensor *tg_embedding_bag(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_tensor *offsets, tg_tensor *weights,
                            const tg_bag_opts *opts) {
    tg_bag_opts o;
    tg_op_options(&o, &tg_bag_opts_struct, opts);
    const bag_params p = {.mode = o.mode, .ignore = o.ignore_index, .last = o.include_last_offset, .given = o.size};
    return TG_RECORD(t, tg_op_embedding_bag, &p, table, ids, offsets, weights);
}
