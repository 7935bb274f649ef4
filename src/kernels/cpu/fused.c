/* The drivers of the fused kernels, except those of attention (attention.c). A driver views the arrays as rows, divides
 * the rows into units of work, and runs the kernel over the units. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/stream.h"
#include "kernels/prepare.h"

#if defined(__x86_64__)
#define TG_COPIES(name, T) {tg_##name##_##T##_portable, tg_##name##_##T##_avx2, tg_##name##_##T##_avx512}
#else
#define TG_COPIES(name, T) {tg_##name##_##T##_portable, tg_##name##_##T##_portable, tg_##name##_##T##_portable}
#endif

void tg_fused_run(tg_ctx *ctx, tg_fused kernel, bool f64, int64_t units, void *job) {
#define TG_X(name) {TG_COPIES(name, f32), TG_COPIES(name, f64)},
    static const tg_range_fn copies[TG_FUSED_COUNT][2][3] = {TG_FUSED_LIST(TG_X)};
#undef TG_X
    tg_cpu_level_t level = tg_cpu_level(ctx);
    tg_parallel_run(ctx, units, copies[kernel][f64][level > TG_CPU_AVX512 ? TG_CPU_AVX512 : level], job);
}

int64_t tg_rows_per_unit(int64_t count, int64_t n) {
    enum { UNIT = 16384, MAX_UNITS = 4096 };
    int64_t per = n < UNIT ? UNIT / (n ? n : 1) : 1, least = tg_units(count, MAX_UNITS);
    return per > least ? per : least;
}

/* ---- Softmax ---- */

tg_status tg_cpu_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log) {
    tg_softmax_job job = {.y = tg_rows_of(&y, 1), .x = tg_rows_of(&x, 1), .log = log};
    job.per_unit = tg_rows_per_unit(job.x.count, job.x.n);
    tg_fused_run(ctx, TG_FUSED_softmax, x.dtype == TG_F64, tg_units(job.x.count, job.per_unit), &job);
    return TG_OK;
}

tg_status tg_cpu_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    tg_softmax_job job = {
        .gx = tg_rows_of(&gx, 1), .gy = tg_rows_of(&gy, 1), .y = tg_rows_of(&y, 1), .log = log, .add = add};
    job.per_unit = tg_rows_per_unit(job.gx.count, job.gx.n);
    tg_fused_run(ctx, TG_FUSED_softmax_grad, y.dtype == TG_F64, tg_units(job.gx.count, job.per_unit), &job);
    return TG_OK;
}

/* ---- Norms ---- */

static tg_norm_job norm_job(const tg_norm_args *a) {
    return (tg_norm_job){
        .x = tg_rows_of(&a->x, 1),
        .w = tg_rows_of(&a->w, 1),
        .b = tg_rows_of(&a->b, 1),
        .y = tg_rows_of(&a->y, 1),
        .mean = tg_rows_of(&a->mean, 0),
        .rstd = tg_rows_of(&a->rstd, 0),
        .gy = tg_rows_of(&a->gy, 1),
        .gx = tg_rows_of(&a->gx, 1),
        .eps = a->eps,
        .rms = a->rms,
        .add_x = a->add_x,
    };
}

tg_status tg_cpu_norm(tg_ctx *ctx, const tg_norm_args *a) {
    tg_norm_job job = norm_job(a);
    job.per_unit = tg_rows_per_unit(job.x.count, job.x.n);
    bool plain = a->y.contiguous && a->y.dtype == a->x.dtype && (a->y.dtype == TG_F32 || a->y.dtype == TG_F64);
    job.streams = plain && tg_streams(a->y.data, a->y.numel * job.y.size, job.y.n * job.y.size);
    tg_fused_run(ctx, TG_FUSED_norm, a->x.dtype == TG_F64, tg_units(job.x.count, job.per_unit), &job);
    return TG_OK;
}

/* Computes g (+)= the sum of `units` parts, each of the size of g. */
static void sum_units(tg_ctx *ctx, bool f64, const tg_array *g, const void *parts, int64_t units, bool add) {
    tg_sum_job job = {.out = tg_rows_of(g, 1), .parts = parts, .count = units, .part_size = g->numel, .add = add};
    job.tiles = tg_units(job.out.n, TG_TILE);
    tg_fused_run(ctx, TG_FUSED_sum_partials, f64, job.tiles, &job);
}

tg_status tg_cpu_norm_grad(tg_ctx *ctx, const tg_norm_args *a) {
    enum { MAX_UNITS = 64, LEAST_ROWS = 16 };
    bool f64 = a->x.dtype == TG_F64;
    tg_norm_job job = norm_job(a);
    int64_t per = tg_units(job.x.count, MAX_UNITS);
    job.per_unit = per > LEAST_ROWS ? per : LEAST_ROWS;
    /* If there are no rows, there is still one unit. It writes zeros, the sum over no rows. */
    int64_t units = job.x.count ? tg_units(job.x.count, job.per_unit) : 1;
    size_t bytes = (size_t)(units * job.x.n) * (f64 ? sizeof(double) : sizeof(float));
    if (a->gw.data || a->gb.data) {
        char *parts = tg_workspace(ctx, TG_WS_PARTIALS, 2 * bytes + 1);
        if (!parts)
            return TG_ERR_MEMORY;
        job.gw = a->gw.data ? parts : NULL;
        job.gb = a->gb.data ? parts + bytes : NULL;
    }
    tg_fused_run(ctx, TG_FUSED_norm_grad, f64, units, &job);
    if (job.gw)
        sum_units(ctx, f64, &a->gw, job.gw, units, a->add_w);
    if (job.gb)
        sum_units(ctx, f64, &a->gb, job.gb, units, a->add_b);
    return TG_OK;
}

/* ---- Cross-entropy ---- */

static tg_cross_entropy_job cross_entropy_job(const tg_cross_entropy_args *a) {
    tg_cross_entropy_job job = {
        .logits = tg_rows_of(&a->logits, 1),
        .target = tg_rows_of(&a->target, 0),
        .loss = tg_rows_of(&a->loss, 0),
        .top = tg_rows_of(&a->top, 0),
        .mass = tg_rows_of(&a->mass, 0),
        .gloss = tg_rows_of(&a->gloss, 0),
        .glogits = tg_rows_of(&a->glogits, 1),
        .ignore_index = a->ignore_index,
        .first = a->first,
        .classes = a->classes ? a->classes : a->logits.shape[1],
        .smoothing = a->smoothing,
        .shard = a->classes != 0,
        .add = a->add,
    };
    if (!a->logits.numel) { /* the rows of a shard without columns count even if it has no data */
        job.logits.count = a->logits.shape[0];
        job.logits.n = 0;
    }
    job.per_unit = tg_rows_per_unit(job.logits.count, job.logits.n);
    return job;
}

/* Sets *bad to 1 + the number of the first row whose target is out of range. Leaves *bad unchanged if no target is. */
static void find_bad(const tg_cross_entropy_job *job, int64_t *bad) {
    for (int64_t r = 0; r < job->logits.count; r++) {
        int64_t t = *(const int64_t *)tg_row_at(&job->target, r, 0);
        if (t != job->ignore_index && (t < 0 || t >= job->classes)) {
            *bad = r + 1;
            return;
        }
    }
}

tg_status tg_cpu_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    tg_cross_entropy_job job = cross_entropy_job(a);
    if (a->bad)
        find_bad(&job, a->bad);
    int64_t units = tg_units(job.logits.count, job.per_unit);
    tg_fused_run(ctx, TG_FUSED_cross_entropy, a->logits.dtype == TG_F64, units, &job);
    return TG_OK;
}

tg_status tg_cpu_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    tg_cross_entropy_job job = cross_entropy_job(a);
    int64_t units = tg_units(job.logits.count, job.per_unit);
    tg_fused_run(ctx, TG_FUSED_cross_entropy_grad, a->logits.dtype == TG_F64, units, &job);
    return TG_OK;
}

/* ---- Element-wise ---- */

tg_status tg_cpu_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    bool flat = x.contiguous && y.contiguous;
    tg_dropout_job job = {.y = flat ? tg_flat_of(&y) : tg_rows_of(&y, 1),
                          .x = flat ? tg_flat_of(&x) : tg_rows_of(&x, 1),
                          .p = p,
                          .draws = *draws,
                          .add = add};
    job.tiles = tg_units(job.x.n, TG_TILE);
    tg_fused_run(ctx, TG_FUSED_dropout, x.dtype == TG_F64, job.x.count * job.tiles, &job);
    return TG_OK;
}

tg_status tg_cpu_prepare(tg_ctx *ctx, const tg_prepare_args *a) {
    (void)ctx;
    tg_prepare_step(a, false);
    return TG_OK;
}

/* Makes the step of one parameter, unless the step is skipped or no rank has used the parameter. */
static void step_one(tg_ctx *ctx, const tg_adamw_args *a) {
    if (a->step[TG_SCALAR_SKIP] != 0 || (a->used && *a->used == 0))
        return;
    tg_adamw_job job = {
        .param = tg_flat_of(&a->param),
        .grad = tg_flat_of(&a->grad),
        .m = tg_flat_of(&a->m),
        .v = tg_flat_of(&a->v),
        .master = tg_flat_of(&a->master),
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .eps = a->eps,
        .weight_decay = a->weight_decay,
        .decoupled = a->decoupled,
        .step = a->step,
    };
    tg_fused_run(ctx, TG_FUSED_adamw, a->param.dtype == TG_F64, tg_units(a->param.numel, TG_TILE), &job);
}

tg_status tg_cpu_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n) {
    for (int i = 0; i < n; i++)
        step_one(ctx, &a[i]);
    return TG_OK;
}
