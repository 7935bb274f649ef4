/* The op vocab_parallel_embedding: rows of a table [v, h] at ids [..], where each rank holds [v/n, h] of the table. On
 * each rank the result is zero where the row of an id lies on another rank, so that the sum over ranks is the
 * embedding. Forward and backward need no mask: a read at an index out of range leaves the zeros, and an addition there
 * does nothing. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/nn_op.h"
#include "parallel/tp/layers.h"
#include "parallel/tp/vocab/vocab.h"

static tg_status embedding_infer(tg_call *c) {
    const tg_mapping_params *p = c->params;
    const tg_tensor *table = c->input[0], *ids = c->input[1];
    int64_t shape[TG_MAX_DIMS], all;
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_need_index(c, 1));
    if (table->ndim != 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "the table has %s, expected 2: [v/n, h]",
                            tg_count(table->ndim, "dim").text);
    if (__builtin_mul_overflow(table->shape[0], (int64_t)tg_comm_size(p->comm), &all))
        return tg_call_fail(c, TG_ERR_SHAPE, "the size of the whole vocabulary is too large for 64 bits");
    if (p->rows < 0 || p->rows > all)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "the number of valid rows is %lld, expected 0 to the table's %lld",
                            (long long)p->rows, (long long)all);
    if (ids->ndim == TG_MAX_DIMS)
        return tg_call_fail(c, TG_ERR_SHAPE, "ids has %d dims, expected fewer, because the result has one more",
                            TG_MAX_DIMS);
    if (ids->ndim) memcpy(shape, ids->shape, ids->ndim * sizeof *shape);
    shape[ids->ndim] = table->shape[1];
    TG_TRY(tg_call_role(c, 0, 1, ids->ndim));
    for (int d = 0; d < ids->ndim; d++) TG_TRY(tg_call_role(c, 1, d, d));
    TG_TRY(tg_call_linear(c, 1));
    TG_TRY(tg_call_out(c, 0, (tg_dtype)table->dtype, ids->ndim + 1, shape));
    tg_placement rows = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS};
    return tg_call_convert(c, 0, rows, 0, tg_at_p, p->comm,
                           "the table must be split by rows (tg_embedding takes a whole one), and ids must be the same "
                           "on every rank (tg_gather_from)");
}

/* Sets *out to the positions of the ids among this rank's rows, each repeated for the h columns: [number of ids, h]. A
 * position is out of range if the row is another rank's. */
static tg_status local_ids(tg_call *c, int64_t h, tg_extent *e, tg_array *out) {
    const tg_mapping_params *p = c->params;
    const tg_tensor *ids = c->input[1];
    tg_tensor *at = tg_call_temp(c, TG_I64, ids->ndim, ids->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    double first = (double)(tg_comm_rank(p->comm) * c->input[0]->shape[0]);
    TG_TRY(tg_op_map(c, TG_FN_affine, at, TG_T1(ids), 1, 1, -first, false));
    *e = (tg_extent){.shape = {at->numel, h}, .stride = {1, 0}};
    *out = (tg_array){tg_data(at), e->shape, e->stride, at->numel * h, 2, TG_I64, false};
    return TG_OK;
}

/* Fails with TG_ERR_DATA unless every id is the number of a valid row, from 0 to v - 1. To check this, takes for each
 * id the element with that index of an array of v elements, because the device reports an index out of range. All
 * elements of the array are one number in memory (stride 0). */
static tg_status check_ids(tg_call *c) {
    const tg_mapping_params *p = c->params;
    const tg_tensor *ids = c->input[1];
    int64_t v = p->rows ? p->rows : c->input[0]->shape[0] * tg_comm_size(p->comm), bad = 0;
    tg_tensor *flat = c->input[1];
    TG_TRY(tg_op_dense(c, &flat));
    tg_tensor *word = tg_call_temp(c, TG_I64, 1, (int64_t[]){1}), *read = tg_call_temp(c, TG_I64, 1, &ids->numel);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(word), 0));
    tg_extent all = {.shape = {v}, .stride = {0}}, row = {.shape = {ids->numel}, .stride = {1}};
    tg_array words = {tg_data(word), all.shape, all.stride, v, 1, TG_I64, false};
    tg_array index = {tg_data(flat), row.shape, row.stride, ids->numel, 1, ids->dtype, true};
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(read), words, index, 0, &bad));
    return tg_op_bad_index(c, bad, index, v);
}

static tg_status embedding_forward(tg_call *c) {
    tg_tensor *y = c->out[0];
    int64_t h = c->input[0]->shape[1];
    tg_extent index, e = {.shape = {c->input[1]->numel, h}, .stride = {h, 1}};
    tg_array ids, to = {tg_data(y), e.shape, e.stride, y->numel, 2, y->dtype, true};
    TG_TRY(check_ids(c));
    TG_TRY(local_ids(c, h, &index, &ids));
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, to, 0));
    return tg_ctx_ops(c->ctx)->take(c->ctx, to, tg_array_of(c->input[0]), ids, 0, NULL);
}

/* Adds in the order of the ids, so that every run gives the same bits. */
static tg_status embedding_backward(tg_call *c) {
    int64_t h = c->input[0]->shape[1];
    tg_tensor *g = c->gout[0];
    tg_extent index, e = {.shape = {c->input[1]->numel, h}, .stride = {h, 1}};
    tg_array ids;
    TG_TRY(tg_op_zero(c, 0));
    TG_TRY(tg_op_dense(c, &g));
    TG_TRY(local_ids(c, h, &index, &ids));
    tg_array from = {tg_data(g), e.shape, e.stride, g->numel, 2, g->dtype, true};
    return tg_ctx_ops(c->ctx)->put_add(c->ctx, tg_array_of(c->gin[0]), from, ids, 0, NULL);
}

/* Records the lookup of this rank's rows, and fills in zeros for ids of other ranks. */
static tg_status embedding_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_mapping_params *p = tg_node_params(n);
    tg_tensor *table = tg_node_input(n, 0), *elsewhere;
    tg_tensor *at = tg_vocab_local_ids(t, tg_node_input(n, 1), tg_comm_rank(p->comm) * table->shape[0], table->shape[0],
                                       &elsewhere);
    tg_tensor *rows = tg_embedding(t, tg_as_opaque(t, table, p->comm), at);
    out[0] = tg_as_partial(t, tg_masked_fill(t, rows, tg_unsqueeze(t, elsewhere, -1), 0), p->comm);
    return TG_OK;
}

TG_COMPOSED(embedding)

static const tg_sample embedding_samples[] = {
    {.note = "ids of two dims", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3), TG_S_INDEX(8, 2, 5)}},
    {.note = "some twice", .ranks = 3, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(1, 4), TG_S_INDEX(3, 8)}},
    {.note = "other strides", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 2),
            {.shape = TG_S_SHAPE(3, 2), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_TRANSPOSED, .hi = 6}}},
    {.note = "table strided, int32", .ranks = 4, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 2),
            {.shape = TG_S_SHAPE(7), .kind = TG_SAMPLE_INDEX, .hi = 12, .dtype = TG_I32}}},
    {.note = "one id", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3), {.kind = TG_SAMPLE_INDEX, .hi = 8}}},
    {.note = "no ids", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2, .input = {TG_S(4, 3), TG_S_INDEX(8,
                                                                                                                  0)}},
    {.note = "out of range", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3), {.shape = TG_S_SHAPE(3), .kind = TG_SAMPLE_INDEX, .lo = 8, .hi = 9}},
         .refused = TG_ERR_DATA},
    {.note = "negative", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3), {.shape = TG_S_SHAPE(3), .kind = TG_SAMPLE_INDEX, .lo = -1, .hi = 0}},
         .refused = TG_ERR_DATA},
    {.note = "rows of padding, not looked up", .ranks = 2, .params = TG_M_OPTS(.rows = 7), .n_in = 2,
     .input = {TG_S(4, 3), TG_S_INDEX(7, 5)}},
    {.note = "in the padding", .ranks = 2, .params = TG_M_OPTS(.rows = 7), .n_in = 2,
     .input = {TG_S(4, 3), {.shape = TG_S_SHAPE(3), .kind = TG_SAMPLE_INDEX, .lo = 7, .hi = 8}},
         .refused = TG_ERR_DATA},
    {.note = "more rows than there are", .ranks = 2, .params = TG_M_OPTS(.rows = 9), .n_in = 2,
     .input = {TG_S(4, 3), TG_S_INDEX(8, 2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "table of three dims", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3, 1), TG_S_INDEX(8, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "ids of floats", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 2,
     .input = {TG_S(4, 3), TG_S(2)}, .refused = TG_ERR_DTYPE},
    {.note = "no communicator", .params = TG_M_OPTS(.comm = NULL), .n_in = 2, .input = {TG_S(4, 3), TG_S_INDEX(8, 2)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field vocab_parallel_embedding_fields[] = {
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_op tg_op_vocab_parallel_embedding = {
    .size = sizeof(tg_op),
    .name = "vocab_parallel_embedding",
    .formula = "y[.., :] = table[ids[..], :], table's rows split over the group",
    .inputs = "table ids",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(tg_mapping_params),
    .saves_in = 2,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .infer = embedding_infer,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .vjp = embedding_vjp,
    .jvp = embedding_jvp,
    TG_FIELDS(vocab_parallel_embedding_fields),
    TG_SAMPLES(embedding_samples),
};

tg_tensor *tg_padded_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c, int64_t rows) {
    tg_mapping_params p = {.comm = c, .rows = rows};
    return TG_RECORD(t, tg_op_vocab_parallel_embedding, &p, table, ids);
}

/* Looks up rows of a table [v, h], of which this rank holds [v/n, h], at global ids [..] (int64 or int32) that are the
 * same on every rank. The result [.., h] is P (placement.h). An id outside [0, v) fails with TG_ERR_DATA on every
 * rank. */
tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c) {
    tg_mapping_params p = {.comm = c};
    return TG_RECORD(t, tg_op_vocab_parallel_embedding, &p, table, ids);
}
