/* The infer function of the op ContextAttention: checks the inputs and the options, cuts the sequence into blocks, and
 * declares the result, what backward reads, and the placements. */
#include "ops/attention.h"
#include "parallel/cp/cp.h"

static int64_t size(const tg_call *c, int i, int dim) { return c->input[i]->shape[dim]; }

/* Checks `kind` and `inner`, and sets the number of holders, this rank's holder and its number in that group. */
static tg_status kind_fits(tg_call *c) {
    tg_cp_params *p = c->params;
    tg_context_attention_opts *o = &p->opts;
    int n = tg_comm_size(p->comm);
    if ((unsigned)o->kind > TG_CP_HIERARCHY)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "kind is %d; it must be TG_CP_RING, _GATHER, _ULYSSES or _HIERARCHY",
                            (int)o->kind);
    if (o->inner != TG_AUTO && o->kind != TG_CP_HIERARCHY)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "inner is %d, but only TG_CP_HIERARCHY has groups of ranks; leave it out", o->inner);
    if (o->inner != TG_AUTO && (o->inner < 1 || n % o->inner))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "inner is %d; it must divide the %d ranks of group \"%s\"", o->inner, n,
                            tg_comm_name(p->comm));
    if (o->inner == TG_AUTO) o->inner = o->kind == TG_CP_ULYSSES || o->kind == TG_CP_HIERARCHY ? n : 1;
    p->outer = n / o->inner;
    if (p->outer == 1 && o->kind == TG_CP_GATHER) o->kind = TG_CP_RING; /* one rank gathers nothing */
    p->holder = tg_comm_rank(p->comm) / o->inner;
    p->member = tg_comm_rank(p->comm) % o->inner;
    return TG_OK;
}

/* Checks that the ranks of a group can exchange heads, and sets the numbers of heads that this rank works on. */
static tg_status heads_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    int64_t h = size(c, CP_Q, 1), g = size(c, CP_K, 1), inner = p->opts.inner;
    if (h % inner || (g % inner && inner % (g ? g : 1)))
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "q has %s and k has %lld, and %lld ranks exchange heads: they must divide the heads of q, "
                            "and divide those of k or be divided by them; choose TG_CP_RING, or a smaller `inner`",
                            tg_count(h, "head").text, (long long)g, (long long)inner);
    p->heads = h / inner;
    p->groups = g % inner ? 1 : g / inner;
    return TG_OK;
}

/* Checks the dtype and shape of the starts of packed sequences. */
static tg_status starts_fit(tg_call *c) {
    const tg_cp_params *p = c->params;
    const tg_tensor *x = c->input[CP_STARTS];
    int64_t b = size(c, CP_Q, 0);
    bool rows = !p->cut_apart && x->ndim == 2 && x->dtype == TG_I64;
    if (!rows) TG_TRY(tg_attention_index_vector(c, CP_STARTS, "starts"));
    if (x->shape[x->ndim - 1] >= 2 && b == (rows ? x->shape[0] : 1)) return TG_OK;
    char is[160];
    tg_describe(x, is, sizeof is);
    return tg_call_fail(c, TG_ERR_SHAPE,
                        "starts is %s and the batch size is %lld; starts must have m + 1 elements for m packed "
                        "sequences, and %s",
                        is, (long long)b,
                        p->cut_apart ? "the batch size must be 1, or set cut_as_one"
                                     : "if the batch size is above 1, a row of them for each batch entry");
}

/* Checks the rows of this rank, and cuts the sequence into blocks. If packed sequences are cut apart, there is a block
 * for each chunk: the rows of a chunk are contiguous in each sequence, but those of two chunks are not. */
static tg_status rows_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    int64_t rows = size(c, CP_Q, 2), n = tg_comm_size(p->comm);
    if (size(c, CP_K, 2) != rows || rows % 2)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "q has %s and k has %lld; both must have the same even number of rows, two chunks of the "
                            "sequence",
                            tg_count(rows, "row").text, (long long)size(c, CP_K, 2));
    if (__builtin_mul_overflow(rows, n, &p->length) || p->length > INT32_MAX)
        return tg_call_fail(c, TG_ERR_SHAPE, "the %lld ranks have more than 2^31 - 1 rows together", (long long)n);
    p->packed = c->input[CP_STARTS] != NULL;
    p->cut_apart = p->packed && !p->opts.cut_as_one;
    int per = p->cut_apart ? p->opts.inner : 1;
    p->blocks = (tg_cp_blocks){.rows = rows / 2 * p->opts.inner / per, .total = 2 * p->outer * per, .count = 2 * per};
    if (p->outer == 1 && !p->cut_apart) p->blocks = (tg_cp_blocks){.rows = p->length, .total = 1, .count = 1};
    return p->packed ? starts_fit(c) : TG_OK;
}

/* Checks the other options and resolves their defaults. Takes the draws of dropout. */
static tg_status options_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    tg_context_attention_opts *o = &p->opts;
    TG_TRY(tg_attention_numbers(c, &o->scale, o->dropout, &o->softcap));
    if (o->left < TG_NONE)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "left is %lld; it must be the extent of a window, 0 or more, or TG_NONE for no bound",
                            (long long)o->left);
    p->left_bound = o->left != TG_NONE;
    if (!p->left_bound) o->left = 0;
    if (o->left > p->length) o->left = p->length;
    if (!tg_is_training(c->tape)) o->dropout = 0;
    if (o->dropout == 0) return TG_OK;
    if (p->cut_apart)
        return tg_call_fail(c, TG_ERR_UNSUPPORTED,
                            "dropout of packed sequences that are each cut by itself: the place of a weight in the "
                            "matrix of one rank depends on starts; set cut_as_one, or leave dropout or starts out");
    return tg_cp_take_draws(c);
}

/* Allocates the counts of exchanges, and the flags of blocks. */
static tg_status allocate(tg_call *c) {
    tg_cp_params *p = c->params;
    const tg_tensor *q = c->input[CP_Q];
    int n = tg_comm_size(p->comm), me = tg_comm_rank(p->comm), inner = p->opts.inner;
    int64_t rows = q->shape[0] * q->shape[2], dk = q->shape[3], dv = size(c, CP_V, 3);
    int64_t *counts = tg_tape_alloc(c->tape, 4 * (size_t)n * sizeof *counts);
    p->begun = tg_tape_alloc(c->tape, 2 * (size_t)p->blocks.count);
    if (!counts || !p->begun) return c->ctx->run.status;
    memset(counts, 0, 4 * (size_t)n * sizeof *counts);
    p->ring_send = counts, p->ring_recv = counts + n, p->exchange_qkv = counts + 2 * n,
    p->exchange_out = counts + 3 * n;
    counts[(me + inner) % n] = counts[n + (me - inner + n) % n] = inner * rows * p->groups * (dk + dv);
    for (int r = p->holder * inner; r < (p->holder + 1) * inner; r++) {
        counts[2 * n + r] = rows * (p->heads * dk + p->groups * (dk + dv));
        counts[3 * n + r] = rows * p->heads * dv;
    }
    return TG_OK;
}

/* Declares what backward reads in addition to top and mass, and drops the inputs and the result that it then does not
 * read. */
static tg_status save_more(tg_call *c) {
    const tg_cp_params *p = c->params;
    tg_dtype dtype = (tg_dtype)c->input[CP_Q]->dtype;
    int64_t b = size(c, CP_Q, 0), rows = p->blocks.count * p->blocks.rows;
    int64_t dk = size(c, CP_Q, 3), dv = size(c, CP_V, 3);
    if (p->opts.kind == TG_CP_GATHER) {
        int64_t half = p->outer * b * p->groups * p->blocks.rows * (dk + dv);
        c->saves_in &= ~(1u << CP_K | 1u << CP_V);
        TG_TRY(tg_call_save(c, CP_EARLY, dtype, 1, &half));
        return tg_call_save(c, CP_LATE, dtype, 1, &half);
    }
    if (p->opts.inner == 1) return TG_OK;
    c->saves_in &= ~(1u << CP_Q | 1u << CP_K | 1u << CP_V);
    c->saves_out = 0;
    TG_TRY(tg_call_save(c, CP_SAVED_Q, dtype, 4, (int64_t[]){b, p->heads, rows, dk}));
    TG_TRY(tg_call_save(c, CP_SAVED_K, dtype, 4, (int64_t[]){b, p->groups, rows, dk}));
    TG_TRY(tg_call_save(c, CP_SAVED_V, dtype, 4, (int64_t[]){b, p->groups, rows, dv}));
    return tg_call_save(c, CP_SAVED_OUT, dtype, 4, (int64_t[]){b, p->heads, rows, dv});
}

/* States the placements: q, k, v and the result are zigzag shards of dim 2, and the sink is R. */
static tg_status place(tg_call *c) {
    const tg_cp_params *p = c->params;
    const tg_placement shard = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = 2};
    c->dims = 1u << 2;
    for (int i = CP_Q; i <= CP_V; i++)
        TG_TRY(tg_call_convert(c, i, shard, 0, shard, p->comm,
                               "cut the sequence with tg_shard_as and TG_SHARD_ZIGZAG, or place the tokens so"));
    if (c->input[CP_STARTS] && c->input[CP_STARTS]->ndim == 2) TG_TRY(tg_call_role(c, CP_STARTS, 0, 0));
    if (!c->input[CP_SINK]) return TG_OK;
    TG_TRY(tg_call_role(c, CP_SINK, 0, 1));
    return tg_call_convert(c, CP_SINK, tg_at_r, 0, shard, p->comm, "declare the sink R (tg_place)");
}

tg_status tg_cp_infer(tg_call *c) {
    tg_cp_params *p = c->params;
    const tg_tensor *q = c->input[CP_Q];
    tg_dtype dtype = (tg_dtype)q->dtype;
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_size_check(c->ctx, p->opts.size, sizeof p->opts, "the options"));
    TG_TRY(tg_need_float(c, CP_Q));
    TG_TRY(tg_need_same_dtype(c, CP_Q, CP_K));
    TG_TRY(tg_need_same_dtype(c, CP_Q, CP_V));
    TG_TRY(tg_attention_shapes(c));
    TG_TRY(tg_attention_sink_fits(c, CP_SINK));
    TG_TRY(kind_fits(c));
    TG_TRY(heads_fit(c));
    TG_TRY(rows_fit(c));
    TG_TRY(options_fit(c));
    TG_TRY(allocate(c));
    const int64_t rows[] = {q->shape[0], p->heads, p->blocks.count * p->blocks.rows};
    TG_TRY(tg_call_save(c, CP_TOP, tg_accumulate_dtype(dtype), 3, rows));
    TG_TRY(tg_call_save(c, CP_MASS, tg_accumulate_dtype(dtype), 3, rows));
    TG_TRY(save_more(c));
    TG_TRY(tg_call_out(c, 0, dtype, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, CP_V, 3)}));
    return place(c);
}
