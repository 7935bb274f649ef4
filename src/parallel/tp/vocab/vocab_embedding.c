/* The vocabulary-parallel embedding (Megatron-Core's VocabParallelEmbedding): each rank holds vocab / tp rows of the
 * table. */
#include "base/memory/host_memory.h"

#include <tapegrad/megatron.h>

#include "base/options.h"
#include "nn/init/init.h"
#include "tape/tape.h"
#include "placement/draws.h"
#include "parallel/tp/layers.h"

typedef struct embedding {
    tg_ctx *ctx;
    tg_comm *comm;
    int64_t vocab; /* number of rows that are not padding */
    bool scatter, batch_first;
} embedding;

/* ids [b, s] -> [s, b, h]. Transposes before the lookup, because the ids are smaller than the result. With batch_first,
 * or for ids [n], nothing is transposed. */
static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *ids) {
    const embedding *s = m->state;
    tg_tensor *table = tg_module_own(m, "weight");
    if (tg_ok(m->ctx) && tg_is_alive(ids) && ids->ndim != 1 && ids->ndim != 2) {
        char what[160];
        tg_describe(ids, what, sizeof what);
        tg_fail(m->ctx, TG_ERR_SHAPE, "vocab_embedding: ids is %s, expected 1 or 2 dims, [n] or [b, s]", what);
    }
    if (!s->batch_first && tg_is_alive(ids) && ids->ndim == 2) ids = tg_transpose(t, ids, 0, 1);
    if (tg_comm_size(s->comm) == 1) return tg_embedding(t, table, ids);
    tg_tensor *y = tg_padded_embedding(t, table, ids, s->comm, s->vocab);
    return s->scatter ? tg_reduce_scatter_to_sp(t, y, s->comm, NULL) : tg_reduce_from_tp(t, y, s->comm);
}

static void embedding_free(void *state) {
    embedding *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static const tg_module_ops ops = {
    .size = sizeof(tg_module_ops), .kind = "vocab_embedding", .forward = forward, .free = embedding_free};

/* Sets the rows from `vocab` on to zero and, if the table `draws` its values, rewinds the random stream by the numbers
 * that these rows drew, so that later draws are the same as without padding. */
static tg_status clear_padding(tg_tensor *table, tg_axis axis, int64_t vocab, int64_t rows, bool draws) {
    tg_ctx *ctx = table->ctx;
    TG_TRY(ctx->run.status);
    int64_t width = table->shape[1], first = tg_grid_of(ctx)->rank[axis] * table->shape[0], from = vocab - first;
    from = from < 0 ? 0 : from < table->shape[0] ? from : table->shape[0];
    if (draws) TG_TRY(tg_draws_give_back(table, (table->shape[0] - from) * width, (rows - vocab) * width));
    if (from == table->shape[0]) return TG_OK;
    tg_tensor *padding = tg_temp_new(ctx, table->dtype, 2, (int64_t[]){table->shape[0] - from, width}, table->stride,
                                     tg_storage_ref(table->storage), table->offset + from * width);
    if (!padding) return ctx->run.status;
    tg_status s = ctx->run.ops->fill(ctx, tg_array_of(padding), 0);
    tg_temp_free(padding);
    return s;
}

/* Reads and checks the options. If o->init is not NULL, copies *o->init to *init, and points o->init to that. */
static tg_status check(const tg_parallel *p, int64_t rows, int64_t hidden, double std, tg_vocab_embedding_opts *o,
                       tg_init *init, const tg_vocab_embedding_opts *given) {
    static const char *const who = "tg_nn_vocab_embedding";
    tg_ctx *ctx = tg_parallel_ctx(p);
    TG_TRY(tg_options(ctx, o, &tg_vocab_embedding_opts_struct, given, "tg_nn_vocab_embedding: the options"));
    if (!tg_layer_finite(ctx, who, "std", std)) return ctx->run.status;
    if (o->init && std != 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: std is %g, expected 0, because init is given", who, std);
    if (o->dtype && !tg_is_float(o->dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype is %s, expected a floating-point dtype", who,
                       tg_dtype_name(o->dtype));
    if (o->reduce_scatter < TG_AUTO || o->reduce_scatter > 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: reduce_scatter is %d, expected 0, 1 or TG_AUTO", who,
                       o->reduce_scatter);
    TG_TRY(tg_layer_read_init(p, who, "init", o->dtype, true, o->init, init));
    if (o->init) o->init = init;
    TG_TRY(tg_layer_check_axis(p, who, o->axis, o->init ? tg_init_draws_part(init) : std != 0));
    TG_TRY(tg_layer_divide(p, who, "vocab", rows, o->axis));
    if (hidden > 0) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: hidden is %lld, expected a positive number", who, (long long)hidden);
}

/* Makes the module without its table. */
static tg_module *empty(const tg_parallel *p, int64_t vocab, const tg_vocab_embedding_opts *o) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    bool usual = o->axis == TG_TP && tg_is_sequence_parallel(p);
    bool scatter = o->reduce_scatter == TG_AUTO ? usual : o->reduce_scatter;
    embedding *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return tg_layer_checked(NULL);
    *s = (embedding){.ctx = ctx,
                     .comm = tg_parallel_comm(p, o->axis),
                     .vocab = vocab,
                     .batch_first = o->batch_first,
                     .scatter = scatter};
    return tg_module_new(ctx, &ops, s);
}

tg_module *tg_nn_padded_embedding(const tg_parallel *p, int64_t vocab, int64_t rows, int64_t hidden, double std,
                                  const tg_vocab_embedding_opts *opts) {
    tg_vocab_embedding_opts o;
    tg_init init;
    bool good = tg_ok(tg_parallel_ctx(p)) && check(p, rows, hidden, std, &o, &init, opts) == TG_OK;
    tg_module *m = good ? empty(p, vocab, &o) : tg_layer_checked(NULL);
    if (!tg_module_ok(m)) return m;
    tg_tensor *w = tg_layer_param(p, "weight", o.dtype, (tg_shape){2, {rows, hidden}}, std, o.axis, TG_SHARD(0));
    tg_layer_add(m, "weight", tg_layer_init(w, o.init, "tg_nn_vocab_embedding"));
    bool draws = o.init ? tg_init_draws(&init) : std > 0;
    if (rows > vocab && tg_module_ok(m) && !tg_param_is_unfilled(w))
        clear_padding(tg_module_own(m, "weight"), o.axis, vocab, rows, draws);
    return tg_layer_checked(m);
}

tg_module *tg_nn_vocab_embedding(const tg_parallel *p, int64_t vocab, int64_t hidden, double std,
                                 const tg_vocab_embedding_opts *opts) {
    return tg_nn_padded_embedding(p, vocab, vocab, hidden, std, opts);
}
