/* GPTs on ranks: every combination of tensor, sequence and data parallelism, recomputation, weight-gradient mode and
 * dropout gives one rank's loss and gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>
#include <tapegrad/tensor_parallel.h>

#include "device_ranks.h"

enum { BATCH = 4, LENGTH = 8, VOCAB = 50 };

typedef struct composition {
    tg_gpt_arch arch;
    int tp, dp, kv_heads;
    bool sp, dropout, batch_is_opaque;
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
} composition;

/* Results of one rank. */
typedef struct reference {
    double loss;
    int n;
    char name[64][64];
    double *g[64];
    tg_shape shape[64];
} reference;

typedef struct job {
    const composition *c;
    reference *want;
    double *bits; /* sums of gradients of every rank, to compare two runs */
} job;

static int passed, failed;

static void name_of(const composition *c, char *buf, size_t n) {
    static const char *const recompute[] = {"none", "full", "selective", "distributed"};
    static const char *const wgrad[] = {"fused", "plain", "deferred"};
    snprintf(buf, n, "%s tp %d%s dp %d kv %d recompute %s wgrad %s%s", c->arch == TG_GPT2 ? "gpt2" : "llama", c->tp,
             c->sp ? " sp" : "", c->dp, c->kv_heads, recompute[c->recompute], wgrad[c->wgrad],
             c->dropout ? " dropout" : "");
}

static tg_module *make(tg_ctx *ctx, const composition *c, const tg_parallel *p) {
    return tg_gpt_new(ctx, TG_GPT(.arch = c->arch, .vocab = VOCAB, .layers = 2, .heads = 4,
                                  .kv_heads = c->kv_heads ? c->kv_heads : TG_AUTO,
                                  .hidden = 16, .ffn = 24, .positions = LENGTH, .dropout = c->dropout ? 0.1 : 0,
                                  .recompute = c->recompute, .wgrad = c->wgrad, .init_std = 0.2, .parallel = p));
}

static void fill(int64_t *ids, int64_t *target) {
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ids[i] = (7 * i + i * i) % VOCAB;
        target[i] = (11 * i + 3) % VOCAB;
    }
}

/* ---- One rank ---- */

static void one_rank(const composition *given, reference *out) {
    composition c = *given;
    c.recompute = TG_GPT_KEEP;
    c.wgrad = TG_WGRAD_PLAIN;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64, .seed = 4, .threads = 1));
    tg_module *gpt = make(ctx, &c, NULL);
    tg_tape *t = tg_tape_new(ctx);
    int64_t ids[BATCH * LENGTH], target[BATCH * LENGTH];
    fill(ids, target);
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), target);
    tg_draws_step(ctx, 1);
    tg_tensor *loss = tg_gpt_loss(gpt, t, x, y, TG_LOSS_SUM);
    tg_backward(t, loss);
    *out = (reference){.loss = tg_item(loss), .n = tg_module_param_count(gpt)};
    for (int i = 0; i < out->n; i++) {
        const char *path;
        tg_tensor *p = tg_module_param(gpt, i, &path);
        snprintf(out->name[i], sizeof out->name[i], "%s", path);
        out->shape[i] = tg_shape_of(p);
        out->g[i] = malloc((size_t)tg_numel(p) * sizeof(double));
        tg_read_f64(tg_grad_of(p), out->g[i], tg_numel(p));
    }
    if (tg_ctx_status(ctx) != TG_OK) printf("FAIL one rank: %s\n", tg_ctx_message(ctx)), failed++;
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
}

/* ---- A rank's shard compared with the whole ---- */

/* Returns the index in the whole dim of an index of a shard's dim. */
static int64_t global_index(tg_placement p, int rank, int size, int64_t local, int64_t n) {
    if (p.layout == TG_CONTIGUOUS) return rank * n + local;
    int64_t part = n / p.chunks;
    return (local / part * size + rank) * part + local % part;
}

/* A gradient has the placement of its parameter; rows beyond those of the whole are padding, and zero. */
static tg_status compare(tg_ctx *ctx, const tg_parallel *p, tg_tensor *x, int i, const reference *want, double *sum) {
    tg_placement at = tg_placement_of(x, TG_TP);
    int64_t n = tg_numel(x), rows = tg_ndim(x) == 2 ? tg_dim(x, 0) : n, columns = n / rows;
    const tg_shape *whole = &want->shape[i];
    int64_t width = whole->ndim == 2 ? whole->dim[1] : 1;
    double *g = malloc((size_t)n * sizeof *g), scale = 0;
    for (int64_t k = 0; k < whole->dim[0] * width; k++) scale = fmax(scale, fabs(want->g[i][k]));
    tg_status s = tg_read_f64(tg_grad_of(x), g, n);
    for (int64_t k = 0; k < n && s == TG_OK; k++) {
        int64_t r = k / columns, c = k % columns;
        *sum += g[k] * (double)(1 + k % 7);
        if (at.kind == TG_VARYING) {
            int64_t *d = at.dim ? &c : &r;
            *d = global_index(at, tg_parallel_rank(p, TG_TP), tg_parallel_size(p, TG_TP), *d, at.dim ? columns : rows);
        }
        double expected = r < whole->dim[0] ? want->g[i][r * width + c] : 0;
        if (fabs(g[k] - expected) <= 1e-10 * scale) continue;
        s = tg_ctx_fail(ctx, TG_ERR_GRADIENT, "gradient of %s at [%lld, %lld]: %.17g, one rank has %.17g",
                        want->name[i], (long long)r, (long long)c, g[k], expected);
    }
    free(g);
    return s;
}

/* ---- Ranks ---- */

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    const composition *c = j->c;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .sequence_parallel = c->sp));
    tg_module *gpt = make(ctx, c, p);
    tg_tape *t = tg_tape_new(ctx);
    int64_t ids[BATCH * LENGTH], target[BATCH * LENGTH], mine = BATCH / c->dp;
    int64_t first = tg_parallel_rank(p, TG_DP) * mine * LENGTH;
    fill(ids, target);
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(mine, LENGTH), ids + first);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(mine, LENGTH), target + first);
    for (int i = 0; i < 2; i++) {
        tg_place(p, i ? y : x, TG_TP, TG_I);
        if (!c->batch_is_opaque) tg_place(p, i ? y : x, TG_DP, TG_SHARD(0));
    }
    int n = tg_module_param_count(gpt);
    tg_tensor *params[64];
    tg_module_params(gpt, params, 64);
    /* Like the trainer does; of another size under sequence parallelism. */
    tg_flat *b = c->dp > 1 ? tg_flat_new(p, params, n, TG_FLAT(.bucket = c->sp ? 1000 : TG_AUTO)) : NULL;
    tg_draws_step(ctx, 1);
    tg_tensor *loss = tg_gpt_loss(gpt, t, x, y, TG_LOSS_SUM);
    tg_backward(t, loss);
    if (c->wgrad == TG_WGRAD_DEFERRED) tg_wgrads_drain(gpt);
    tg_grads_finalize(p, params, n, NULL);
    double total = tg_item(loss), sum = 0;
    if (c->dp > 1) {
        tg_tensor *l = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &total);
        tg_comm_all_reduce(tg_parallel_comm(p, TG_DP), l, l, TG_REDUCE_SUM);
        total = tg_item(l);
    }
    if (tg_ctx_status(ctx) == TG_OK && !(fabs(total - j->want->loss) <= 1e-10 * fabs(j->want->loss)))
        tg_ctx_fail(ctx, TG_ERR_GRADIENT, "loss %.17g, one rank has %.17g", total, j->want->loss);
    for (int i = 0; i < n && tg_ctx_status(ctx) == TG_OK; i++) compare(ctx, p, params[i], i, j->want, &sum);
    j->bits[tg_comm_rank(world)] = sum;
    tg_flat_free(b);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void try(const composition *c) {
    char message[1024] = "", name[128];
    reference want;
    double first[16] = {0}, second[16] = {0};
    name_of(c, name, sizeof name);
    one_rank(c, &want);
    job j = {c, &want, first};
    const tg_ranks_opts *o = TG_RANKS(.config = TG_CONFIG(.dtype = TG_F64, .seed = 4, .threads = 1), .message = message,
                                      .message_size = sizeof message);
    tg_status s = run_ranks(c->tp * c->dp, run_rank, &j, o);
    j.bits = second;
    if (s == TG_OK) s = run_ranks(c->tp * c->dp, run_rank, &j, o);
    bool good = s == TG_OK && !memcmp(first, second, sizeof first);
    *(good ? &passed : &failed) += 1;
    if (!good) printf("FAIL %s: %s\n", name, *message ? message : "two runs have other bits");
    for (int i = 0; i < want.n; i++) free(want.g[i]);
}

/* ---- Combinations of options ---- */

static void all(void) {
    for (int i = 0; i < 2 * 3 * 2 * 2 * 4 * 3 * 2 * 3; i++) {
        int k = i;
        composition c = {0};
        c.arch = k % 2 ? TG_LLAMA : TG_GPT2, k /= 2;
        c.tp = 1 << k % 3, k /= 3;
        c.sp = k % 2, k /= 2;
        c.dp = 1 + k % 2, k /= 2;
        c.recompute = (tg_gpt_recompute)(k % 4), k /= 4;
        c.wgrad = (tg_gpt_wgrad)(k % 3), k /= 3;
        c.dropout = k % 2, k /= 2;
        c.kv_heads = k % 3; /* 0: all */
        if ((c.dropout && c.arch == TG_LLAMA) || (c.kv_heads && c.arch == TG_GPT2)) continue;
        try(&c);
    }
}

/* Every pair of values of two options occurs in some row. */
static const composition pairs[] = {
    {TG_GPT2, 1, 2, 0, false, true, false, TG_GPT_KEEP, TG_WGRAD_FUSED},
    {TG_GPT2, 2, 1, 0, false, false, false, TG_GPT_KEEP, TG_WGRAD_FUSED},
    {TG_GPT2, 2, 1, 0, true, true, false, TG_GPT_FULL, TG_WGRAD_PLAIN},
    {TG_GPT2, 2, 2, 0, false, true, false, TG_GPT_SELECTIVE, TG_WGRAD_DEFERRED},
    {TG_GPT2, 4, 1, 0, true, false, false, TG_GPT_SELECTIVE, TG_WGRAD_FUSED},
    {TG_GPT2, 4, 2, 0, true, true, false, TG_GPT_KEEP, TG_WGRAD_DEFERRED},
    {TG_GPT2, 4, 1, 0, false, true, false, TG_GPT_DISTRIBUTED, TG_WGRAD_PLAIN},
    {TG_GPT2, 2, 2, 0, true, false, false, TG_GPT_DISTRIBUTED, TG_WGRAD_FUSED},
    {TG_GPT2, 1, 1, 0, true, true, false, TG_GPT_SELECTIVE, TG_WGRAD_PLAIN},
    {TG_GPT2, 1, 2, 0, false, false, false, TG_GPT_FULL, TG_WGRAD_DEFERRED},
    {TG_LLAMA, 2, 1, 0, false, false, false, TG_GPT_SELECTIVE, TG_WGRAD_PLAIN},
    {TG_LLAMA, 4, 1, 2, false, false, false, TG_GPT_KEEP, TG_WGRAD_FUSED},
    {TG_LLAMA, 4, 1, 1, true, false, false, TG_GPT_FULL, TG_WGRAD_FUSED},
    {TG_LLAMA, 2, 2, 2, true, false, false, TG_GPT_KEEP, TG_WGRAD_DEFERRED},
    {TG_LLAMA, 1, 2, 1, false, false, false, TG_GPT_DISTRIBUTED, TG_WGRAD_PLAIN},
    {TG_LLAMA, 2, 1, 1, true, false, false, TG_GPT_SELECTIVE, TG_WGRAD_FUSED},
};

int main(void) {
    if (getenv("TG_LONG")) all();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        composition c = pairs[i];
        try(&c);
        c.batch_is_opaque = true; /* like undeclared data */
        if (!c.dropout && c.dp > 1) try(&c);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
