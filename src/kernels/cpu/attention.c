/* The drivers of attention and its gradient: units of work, scratch memory and partial sums. */
#include "base/runtime.h"
#include "kernels/cpu/attention.h"

/* Returns a job with the sizes and mask rules of the call. */
static tg_attention_job attention_job(const tg_attention_args *a) {
    tg_attention_job job = {
        .a = a,
        .batch = a->q.shape[0],
        .heads = a->q.shape[1],
        .groups = a->k.shape[1],
        .sq = a->q.shape[2],
        .sk = a->k.shape[2],
        .dk = a->q.shape[3],
        .dv = a->v.shape[3],
        .chunks = 1,
    };
    job.pad_k = tg_lanes(job.dk);
    job.pad_v = tg_lanes(job.dv);
    job.blocks = tg_units(job.sq, TG_QUERIES);
    job.rules = tg_mask_rules_of(a);
    return job;
}

static size_t real_size(const tg_attention_job *job) {
    return job->a->q.dtype == TG_F64 ? sizeof(double) : sizeof(float);
}

/* Runs the kernel over all units of the job. Each range of units gets job->slice elements of scratch memory. */
static tg_status run(tg_ctx *ctx, tg_attention_job *job, tg_fused kernel) {
    enum { MAX_RANGES = 64 };
    job->ranges = job->units < MAX_RANGES ? job->units : MAX_RANGES;
    if (!job->ranges)
        return TG_OK;
    job->scratch = tg_workspace(ctx, TG_WS_SCRATCH, (size_t)(job->ranges * job->slice) * real_size(job));
    if (!job->scratch)
        return TG_ERR_MEMORY;
    tg_fused_run(ctx, kernel, job->a->q.dtype == TG_F64, job->ranges, job);
    return TG_OK;
}

/* Returns how many elements forward_block or few_block, whichever needs more, takes from scratch. Rows of q are
 * converted in the buffer of the keys. */
static int64_t scratch_of(const tg_attention_job *job) {
    int64_t rows = job->pad_k + job->pad_v, tiles = job->a->mask.data ? 3 : 2;
    int64_t many = TG_QUERIES * rows + tiles * TG_KEYS * TG_QUERIES + TG_KEYS * rows;
    int64_t few = TG_KEYS * job->pad_k + TG_FEW_QUERIES * (rows + TG_KEYS) + TG_KEYS * rows;
    return many > few ? many : few;
}

tg_status tg_cpu_attention(tg_ctx *ctx, const tg_attention_args *a) {
    tg_attention_job job = attention_job(a);
    if (a->bad && (*a->bad = tg_mask_bad(&job.rules, job.batch)) != 0) return TG_OK;
    job.units = job.batch * job.heads * job.blocks;
    job.slice = scratch_of(&job);
    return run(ctx, &job, TG_FUSED_attention);
}

/* Returns whether products can be summed directly in the gradient g; true if g is not wanted. */
static bool sums_in_place(const tg_attention_job *job, const tg_array *g) {
    tg_dtype compute = job->a->q.dtype == TG_F64 ? TG_F64 : TG_F32;
    return !g->data || (g->dtype == compute && g->stride[3] == 1 && g->shape[3] % TG_LANES == 0);
}

/* Returns the number of chunks into which the query blocks of a group are divided. With few groups, one chunk
 * per group would leave threads idle. The number depends on shapes alone. */
static int64_t chunks_of(const tg_attention_job *job) {
    enum { ENOUGH_UNITS = 16 };
    int64_t groups = job->batch * job->groups, blocks = job->blocks * (job->heads / job->groups);
    int64_t chunks = groups < ENOUGH_UNITS ? ENOUGH_UNITS / groups : 1;
    return chunks < blocks ? chunks : blocks ? blocks : 1;
}

/* Reserves memory for the partial sums of gk and gv, where they are not summed directly in the gradient. */
static tg_status take_partials(tg_ctx *ctx, tg_attention_job *job) {
    bool partial_k = job->a->gk.data && (job->chunks > 1 || !sums_in_place(job, &job->a->gk));
    bool partial_v = job->a->gv.data && (job->chunks > 1 || !sums_in_place(job, &job->a->gv));
    int64_t rows = job->chunks * job->batch * job->groups * job->sk;
    size_t k = partial_k ? (size_t)(rows * job->pad_k) * real_size(job) : 0;
    size_t v = partial_v ? (size_t)(rows * job->pad_v) * real_size(job) : 0;
    char *parts = k + v ? tg_workspace(ctx, TG_WS_PARTIALS, k + v) : NULL;
    if (k + v && !parts)
        return TG_ERR_MEMORY;
    job->gk = k ? parts : NULL;
    job->gv = v ? parts + k : NULL;
    return TG_OK;
}

/* Computes g (+)= the sum of its chunks in `parts`. Does nothing if `parts` is NULL. */
static void sum_chunks(tg_ctx *ctx, const tg_attention_job *job, const tg_array *g, const void *parts, int64_t pad,
                       bool add) {
    if (!parts)
        return;
    tg_sum_job sum = {
        .out = tg_rows_of(g, 1),
        .parts = parts,
        .count = job->chunks,
        .part_size = job->batch * job->groups * job->sk * pad,
        .row_size = pad,
        .tiles = tg_units(g->shape[3], TG_TILE),
        .add = add,
    };
    tg_fused_run(ctx, TG_FUSED_sum_partials, job->a->q.dtype == TG_F64, sum.out.count * sum.tiles, &sum);
}

/* Computes those of gq, gk and gv that are wanted. */
static tg_status main_grad(tg_ctx *ctx, tg_attention_job *job) {
    const tg_attention_args *a = job->a;
    if (!a->gq.data && !a->gk.data && !a->gv.data) return TG_OK;
    job->chunks = chunks_of(job);
    job->units = job->batch * job->groups * job->chunks;
    TG_TRY(take_partials(ctx, job));
    TG_TRY(run(ctx, job, TG_FUSED_attention_grad));
    sum_chunks(ctx, job, &a->gk, job->gk, job->pad_k, a->add_k);
    sum_chunks(ctx, job, &a->gv, job->gv, job->pad_v, a->add_v);
    return TG_OK;
}

/* Computes the mask's gradient if it is wanted. A unit is one tile of that gradient. */
static tg_status mask_grad(tg_ctx *ctx, tg_attention_job *job) {
    const tg_array *g = &job->a->gmask;
    const int64_t all[4] = {job->batch, job->heads, job->blocks, tg_units(job->sk, TG_KEYS)};
    if (!g->data) return TG_OK;
    job->units = 1;
    for (int d = 0; d < 4; d++) {
        job->summed[d] = g->stride[d] == 0;
        job->parts[d] = job->summed[d] ? 1 : all[d];
        job->units *= job->parts[d];
    }
    return run(ctx, job, TG_FUSED_attention_grad_mask);
}

/* Computes the sink's gradient if it is wanted. A unit is one head. */
static tg_status sink_grad(tg_ctx *ctx, tg_attention_job *job) {
    job->units = job->a->gsink.data ? job->heads : 0;
    return run(ctx, job, TG_FUSED_attention_grad_sink);
}

tg_status tg_cpu_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    tg_attention_job job = attention_job(a);
    /* The memory that carve_tiles takes from scratch. */
    job.slice = TG_QUERIES * (job.dk + job.dv) + 3 * TG_KEYS * TG_QUERIES + TG_QUERIES * (2 * job.pad_k + job.pad_v) +
                TG_KEYS * (job.pad_k + job.pad_v);
    job.slice += ((a->mask.data != NULL) + (a->softcap > 0)) * TG_KEYS * TG_QUERIES;
    if (job.batch && job.groups) TG_TRY(main_grad(ctx, &job));
    if (a->gmask.data) job.slice += TG_KEYS * TG_QUERIES; /* the sums of mask_unit */
    TG_TRY(mask_grad(ctx, &job));
    return sink_grad(ctx, &job);
}
