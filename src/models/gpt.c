/* The GPT language model: embedding, transformer layers, last norm and output, and generation with a cache. */
#include <math.h>
#include <stdio.h>
#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#include "base/host_memory.h"
#include "tape/tape.h"
#include "models/gpt.h"
#include "comm/comm.h"

/* One layer as a function of tensors, for recomputation and scopes. The layer is looked up by its name at each call,
 * because the caller may free or replace it. */
typedef struct layer_fn {
    tg_module *gpt;
    char name[24];
} layer_fn;

typedef struct gpt_state {
    tg_ctx *ctx;
    tg_gpt_config c;
    const void *site; /* call site of the function that created it */
    size_t bytes;     /* size of this struct with layer[] */
    layer_fn layer[];
} gpt_state;

static gpt_state *state_of(const tg_module *gpt) { return gpt->state; }

static void gpt_free(void *state) {
    gpt_state *s = state;
    tg_host_free(s->ctx, s, s->bytes);
}

static tg_tensor *gpt_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return tg_gpt_logits(m, t, x); }

static const tg_module_ops gpt_ops = {
    .size = sizeof(tg_module_ops), .kind = "gpt", .forward = gpt_forward, .free = gpt_free};
static const tg_module_ops list_ops = {.size = sizeof(tg_module_ops), .kind = "list"};

/* ---- Keys of random draws ---- */

/* Open and close one of the model's keys. `site` is the call outside of the library that led here. */
static void open_key(const gpt_state *s, uint64_t key, const void *site) {
    if (s->c.key) tg_key_open_at(s->ctx, s->c.key, site);
    tg_key_open_at(s->ctx, key, site);
}

static void close_key(const gpt_state *s) {
    tg_key_close(s->ctx);
    if (s->c.key) tg_key_close(s->ctx);
}

/* ---- Config ---- */

/* Fails unless v is 1 to 2^40 - 1. */
static tg_status positive(tg_ctx *ctx, const char *who, const char *name, int64_t v) {
    const int64_t most = ((int64_t)1 << 40) - 1;
    if (v > 0 && v <= most) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected 1 to %lld", who, name, (long long)v,
                   (long long)most);
}

/* Checks the options of recomputation and parallelism, and that tensor parallelism divides the model. */
static tg_status check_parallel(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    int tp = tg_gpt_tp(c);
    if ((unsigned)c->recompute > TG_GPT_DISTRIBUTED)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: recompute is %d, expected TG_GPT_KEEP to TG_GPT_DISTRIBUTED", who,
                       (int)c->recompute);
    if ((unsigned)c->wgrad > TG_WGRAD_DEFERRED)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: wgrad is %d, expected TG_WGRAD_FUSED, _PLAIN or _DEFERRED", who,
                       (int)c->wgrad);
    if (c->parallel && tg_parallel_ctx(c->parallel) != ctx)
        return tg_fail(ctx, TG_ERR_HANDLE, "%s: parallel belongs to another context than the model", who);
    if (c->heads % tp)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: heads is %lld, expected a multiple of tp = %d", who, (long long)c->heads,
                       tp);
    if (c->kv_heads < tp ? tp % c->kv_heads : c->kv_heads % tp)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "%s: kv_heads is %lld and tp is %d, expected one to be a multiple of the other", who,
                       (long long)c->kv_heads, tp);
    if (c->ffn % tp)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: ffn is %lld, expected a multiple of tp = %d", who, (long long)c->ffn,
                       tp);
    return TG_OK;
}

/* Fails if `parallel` has pipeline stages, because every rank of a GPT holds all layers. */
static tg_status check_stages(tg_ctx *ctx, const tg_gpt_config *c) {
    int pp = tg_parallel_size(c->parallel, TG_PP);
    if (pp == 1) return TG_OK;
    return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                   "tg_gpt_new: parallel has pp = %d, but pipeline stages of a GPT are not supported; make the groups "
                   "with pp 1, or build each stage from tg_nn_transformer_layer",
                   pp);
}

int64_t tg_gpt_rows(const tg_gpt_config *c) {
    int64_t unit = 128 * (int64_t)tg_gpt_tp(c);
    return tg_gpt_tp(c) == 1 ? c->vocab : (c->vocab + unit - 1) / unit * unit;
}

/* Fails if an option is set that the architecture does not use. */
static tg_status check_unused(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    bool gpt2 = c->arch == TG_GPT2;
    if (gpt2 ? c->tied : c->untied)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is set, but %s; leave it false", who, gpt2 ? "tied" : "untied",
                       gpt2 ? "the output of a GPT-2 is tied unless untied is set"
                            : "a Llama has an output matrix of its own unless tied is set");
    if (gpt2 && c->rope_base != 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_base is %g, expected 0, because GPT-2 learns its positions", who,
                       c->rope_base);
    if (!gpt2 && c->dropout > 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: dropout is %g, expected 0, because a Llama model has none", who,
                       c->dropout);
    return TG_OK;
}

/* Checks what must be given before defaults can be filled in. */
static tg_status check_given(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    TG_TRY(positive(ctx, who, "vocab", c->vocab));
    TG_TRY(positive(ctx, who, "layers", c->layers));
    TG_TRY(positive(ctx, who, "heads", c->heads));
    TG_TRY(positive(ctx, who, "hidden", c->hidden));
    TG_TRY(positive(ctx, who, "positions", c->positions));
    if (c->arch != TG_GPT2 && c->arch != TG_LLAMA)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: arch is %d, expected TG_GPT2 or TG_LLAMA", who, (int)c->arch);
    TG_TRY(check_unused(ctx, c, who));
    if (!c->head_dim && c->hidden % c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: hidden is %lld, which is not a multiple of heads = %lld; set head_dim", who,
                       (long long)c->hidden, (long long)c->heads);
    return TG_OK;
}

static void fill_defaults(tg_gpt_config *c) {
    bool gpt2 = c->arch == TG_GPT2;
    if (!c->head_dim) c->head_dim = c->hidden / c->heads;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->ffn) c->ffn = gpt2 ? 4 * c->hidden : (8 * c->hidden / 3 + 63) / 64 * 64;
    if (c->norm_eps == 0) c->norm_eps = gpt2 ? 1e-5 : 1e-6;
    if (c->rope_base == 0 && !gpt2) c->rope_base = 10000;
    if (c->init_std == 0) c->init_std = 0.02;
}

static tg_status check_heads(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    if (c->head_dim >= ((int64_t)1 << 40) / c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: heads is %lld and head_dim %lld, expected a product below 2^40", who,
                       (long long)c->heads, (long long)c->head_dim);
    if (c->kv_heads < 0 || c->heads % c->kv_heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: kv_heads is %lld, expected a divisor of heads = %lld", who,
                       (long long)c->kv_heads, (long long)c->heads);
    if (c->arch == TG_GPT2 && (c->kv_heads != c->heads || c->head_dim * c->heads != c->hidden))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "%s: kv_heads is %lld and head_dim %lld; GPT-2 needs kv_heads = heads = %lld and head_dim = hidden / "
            "heads; leave both 0",
            who, (long long)c->kv_heads, (long long)c->head_dim, (long long)c->heads);
    return TG_OK;
}

static tg_status check_numbers(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    if (c->dropout >= 0 && c->dropout < 1 && c->norm_eps > 0 && c->init_std > 0 &&
        (c->arch == TG_GPT2 || c->rope_base > 0) && isfinite(c->norm_eps + c->init_std + c->rope_base))
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: dropout %g, norm_eps %g, init_std %g, rope_base %g; expected dropout in [0, 1), the others "
                   "positive and finite",
                   who, c->dropout, c->norm_eps, c->init_std, c->rope_base);
}

tg_status tg_gpt_complete(tg_ctx *ctx, tg_gpt_config *c, const char *who) {
    TG_TRY(check_given(ctx, c, who));
    fill_defaults(c);
    TG_TRY(positive(ctx, who, "head_dim", c->head_dim));
    TG_TRY(positive(ctx, who, "ffn", c->ffn));
    TG_TRY(check_heads(ctx, c, who));
    TG_TRY(check_parallel(ctx, c, who));
    if (c->arch == TG_LLAMA && c->head_dim % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: head_dim is %lld, expected an even number, because rotary positions use pairs", who,
                       (long long)c->head_dim);
    return check_numbers(ctx, c, who);
}

const tg_gpt_config *tg_gpt_config_of(const tg_module *gpt) {
    return gpt && gpt->ops == &gpt_ops ? &state_of(gpt)->c : NULL;
}

/* ---- Creation ---- */

/* Creates the list of transformer layers, named "0", "1" and so on. */
static tg_module *layer_list(tg_module *gpt) {
    gpt_state *s = state_of(gpt);
    tg_module *list = tg_module_new(s->ctx, &list_ops, NULL);
    for (int64_t i = 0; i < s->c.layers && tg_module_ok(list); i++) {
        s->layer[i].gpt = gpt;
        snprintf(s->layer[i].name, sizeof s->layer[i].name, "%lld", (long long)i);
        open_key(s, (uint64_t)i, s->site);
        tg_module_add_child(list, s->layer[i].name, tg_nn_transformer_layer(s->ctx, &s->c));
        close_key(s);
    }
    return list;
}

/* Creates the embedding. With tensor parallelism each rank holds its rows of the padded vocabulary. */
static tg_module *word_embedding(tg_ctx *ctx, const tg_gpt_config *c) {
    if (tg_gpt_tp(c) == 1) return tg_nn_embedding(ctx, c->vocab, c->hidden, c->init_std);
    return tg_nn_padded_embedding(c->parallel, c->vocab, tg_gpt_rows(c), c->hidden, c->init_std, NULL);
}

static void fill_gpt2(tg_module *gpt, tg_module *body) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    tg_ctx *ctx = gpt->ctx;
    open_key(state_of(gpt), TG_GPT_KEY_EMBEDDING, state_of(gpt)->site);
    tg_module_add_child(body, "wte", word_embedding(ctx, c));
    tg_module_add_child(body, "wpe", tg_nn_embedding(ctx, c->positions, c->hidden, c->init_std));
    close_key(state_of(gpt));
    tg_module_add_child(body, "h", layer_list(gpt));
    tg_module_add_child(body, "ln_f", tg_nn_layer_norm(ctx, c->hidden, c->norm_eps));
}

static void fill_llama(tg_module *gpt, tg_module *body) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    tg_ctx *ctx = gpt->ctx;
    open_key(state_of(gpt), TG_GPT_KEY_EMBEDDING, state_of(gpt)->site);
    tg_module_add_child(body, "embed_tokens", word_embedding(ctx, c));
    close_key(state_of(gpt));
    tg_module_add_child(body, "layers", layer_list(gpt));
    tg_module_add_child(body, "norm", tg_nn_rms_norm(ctx, c->hidden, c->norm_eps));
}

static bool is_tied(const tg_gpt_config *c) { return c->arch == TG_GPT2 ? !c->untied : c->tied; }

/* Completes the config and creates a GPT without children. Returns NULL on error. */
static tg_module *empty_gpt(tg_ctx *ctx, const tg_gpt_config *given, const void *site) {
    tg_gpt_config c;
    if (!tg_ok(ctx)) return NULL;
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_new: the config is NULL");
    tg_options(ctx, &c, sizeof c, given, "tg_gpt_new: the config");
    c.size = sizeof c;
    if (ctx->run.status != TG_OK || tg_gpt_complete(ctx, &c, "tg_gpt_new") != TG_OK || check_stages(ctx, &c) != TG_OK)
        return NULL;
    size_t bytes = sizeof(gpt_state) + (size_t)c.layers * sizeof(layer_fn);
    gpt_state *s = tg_host_alloc(ctx, bytes);
    if (!s) return NULL;
    s->ctx = ctx;
    s->c = c;
    s->site = site;
    s->bytes = bytes;
    return tg_module_new(ctx, &gpt_ops, s);
}

/* Creates the output matrix of an untied model. With tensor parallelism it is stored like an embedding: each rank holds
 * its rows of the padded vocabulary. */
static tg_module *output_matrix(tg_ctx *ctx, const tg_gpt_config *c) {
    if (tg_gpt_tp(c) == 1) return tg_nn_linear(ctx, c->hidden, c->vocab, false, c->init_std);
    return tg_nn_padded_embedding(c->parallel, c->vocab, tg_gpt_rows(c), c->hidden, c->init_std, NULL);
}

static void add_head(tg_module *gpt) {
    const gpt_state *s = state_of(gpt);
    open_key(s, TG_GPT_KEY_HEAD, s->site);
    tg_module_add_child(gpt, "lm_head", output_matrix(s->ctx, &s->c));
    close_key(s);
}

tg_module *tg_gpt_new(tg_ctx *ctx, const tg_gpt_config *given) {
    tg_module *m = empty_gpt(ctx, given, TG_SITE);
    if (!tg_module_ok(m)) return m ? m : tg_module_new(NULL, &gpt_ops, NULL);
    const tg_gpt_config *c = &state_of(m)->c;
    tg_module *body = tg_module_new(ctx, &list_ops, NULL);
    c->arch == TG_GPT2 ? fill_gpt2(m, body) : fill_llama(m, body);
    tg_module_add_child(m, c->arch == TG_GPT2 ? "transformer" : "model", body);
    if (!is_tied(c)) add_head(m);
    if (tg_module_ok(m) && (!c->parallel || tg_module_replicate(m, c->parallel) == TG_OK)) return m;
    tg_module_free(m);
    return tg_module_new(NULL, &gpt_ops, NULL);
}

/* ---- Forward ---- */

/* Returns the child that has everything but the output matrix. */
static tg_module *body_of(const tg_module *gpt) {
    return tg_module_part(gpt, state_of(gpt)->c.arch == TG_GPT2 ? "transformer" : "model");
}

static tg_module *layers_of(const tg_module *gpt) {
    return tg_module_part(body_of(gpt), state_of(gpt)->c.arch == TG_GPT2 ? "h" : "layers");
}

tg_tensor *tg_gpt_head(const tg_module *gpt) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    const char *embedding = c->arch == TG_GPT2 ? "wte" : "embed_tokens";
    tg_tensor *w = is_tied(c) ? tg_module_own_at(body_of(gpt), embedding, "weight")
                                : tg_module_own_at(gpt, "lm_head", "weight");
    if (!w)
        tg_fail(gpt->ctx, TG_ERR_STATE,
                "gpt: the output matrix is missing, because the module that had it was replaced or freed");
    return w;
}

/* Returns the embeddings of positions offset to offset + n - 1, [n, h]. The library's own embedding needs no ids:
 * the rows are a slice of its weight. Any other module is called with the positions as ids. */
static tg_tensor *position_rows(tg_module *gpt, tg_tape *t, int64_t offset, int64_t n) {
    const tg_module *wpe = tg_module_part(body_of(gpt), "wpe");
    if (tg_is_own_embedding(wpe)) return tg_slice(t, tg_module_own(wpe, "weight"), 0, offset, offset + n, 1);
    tg_tensor *at = tg_arange(t, TG_I64, (double)offset, (double)(offset + n), 1);
    return tg_module_run(body_of(gpt), "wpe", t, at);
}

/* Returns the position embeddings [n, 1, h]; under sequence parallelism this rank's part of them. */
static tg_tensor *positions(tg_module *gpt, tg_tape *t, int64_t offset, int64_t n) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    tg_tensor *p = position_rows(gpt, t, offset, n);
    if (tg_is_sequence_parallel(c->parallel)) p = tg_shard(t, p, 0, tg_gpt_tp_comm(c));
    return tg_unsqueeze(t, p, 1);
}

/* Returns the embeddings of ids [b, n]: [n, b, h]. For GPT-2 the position embeddings are added to them. */
static tg_tensor *embed_in_key(tg_module *gpt, tg_tape *t, tg_tensor *ids, int64_t offset) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    tg_tensor *x = tg_gpt_tp(c) == 1 ? tg_transpose(t, ids, 0, 1) : ids;
    x = tg_module_run(body_of(gpt), c->arch == TG_GPT2 ? "wte" : "embed_tokens", t, x);
    if (c->arch == TG_LLAMA) return x;
    x = tg_add(t, x, positions(gpt, t, offset, tg_dim(ids, 1)));
    return c->dropout > 0 ? tg_dropout(t, x, c->dropout) : x;
}

static tg_tensor *embed(tg_module *gpt, tg_tape *t, tg_tensor *ids, int64_t offset) {
    open_key(state_of(gpt), TG_GPT_KEY_EMBEDDING, tg_scope_site(t->scope, TG_SITE));
    tg_tensor *x = embed_in_key(gpt, t, ids, offset);
    close_key(state_of(gpt));
    return x;
}

static tg_status layer_call(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    const layer_fn *f = state;
    out[0] = tg_module_run(layers_of(f->gpt), f->name, t, in[0]);
    return t->ctx->run.status;
}

/* Runs layer i in a scope of the layer's name: with the cache if past is not NULL, else with recomputation if the
 * config says so. */
static tg_tensor *run_layer(gpt_state *s, int64_t i, tg_tape *t, tg_tensor *x, const tg_past *past) {
    layer_fn *f = &s->layer[i];
    if (tg_scope_open(t, f->name) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(s->ctx);
    tg_tensor *y = NULL;
    open_key(s, (uint64_t)i, tg_scope_site(t->scope, TG_SITE));
    bool whole = s->c.recompute == TG_GPT_FULL || s->c.recompute == TG_GPT_DISTRIBUTED;
    /* Under sequence parallelism the input is already this rank's part. */
    bool distribute =
        s->c.recompute == TG_GPT_DISTRIBUTED && tg_gpt_tp(&s->c) > 1 && !tg_is_sequence_parallel(s->c.parallel);
    if (past)
        y = tg_transformer_layer(tg_module_part(layers_of(f->gpt), f->name), t, x, past);
    else if (!whole)
        y = tg_module_run(layers_of(f->gpt), f->name, t, x);
    else
        tg_recompute(
            t, layer_call, f, &x, 1, &y, 1,
            TG_RECOMPUTE(.name = "transformer_layer", .distribute = distribute ? tg_gpt_tp_comm(&s->c) : NULL));
    close_key(s);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(s->ctx);
}

static tg_status check_ids(const tg_module *gpt, tg_tensor *ids, int64_t offset) {
    tg_ctx *ctx = gpt->ctx;
    const tg_gpt_config *c = &state_of(gpt)->c;
    TG_TRY(tg_check(ctx, ids, "gpt: ids"));
    char what[160];
    tg_describe(ids, what, sizeof what);
    if (ids->dtype != TG_I64 || ids->ndim != 2)
        return tg_fail(ctx, TG_ERR_SHAPE, "gpt: ids are %s, expected i64[batch, sequence]", what);
    if (offset + ids->shape[1] > c->positions)
        return tg_fail(ctx, TG_ERR_SHAPE, "gpt: ids are %s from position %lld on, but the model has %lld positions",
                       what, (long long)offset, (long long)c->positions);
    return TG_OK;
}

tg_tensor *tg_gpt_trunk(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache) {
    gpt_state *s = state_of(gpt);
    int64_t offset = cache ? cache->length : 0;
    if (tg_tape_check(t, "gpt") != TG_OK || check_ids(gpt, ids, offset) != TG_OK) return tg_inert(s->ctx);
    bool training = tg_module_use_mode(gpt, t);
    tg_tensor *x = embed(gpt, t, ids, offset);
    for (int64_t i = 0; i < s->c.layers && tg_ok(s->ctx); i++) {
        tg_past past = {cache ? cache->kv[2 * i] : NULL, cache ? cache->kv[2 * i + 1] : NULL, offset};
        x = run_layer(s, i, t, x, cache ? &past : NULL);
    }
    x = tg_module_run(body_of(gpt), s->c.arch == TG_GPT2 ? "ln_f" : "norm", t, x);
    tg_tape_set_training(t, training);
    return x;
}

/* Makes the checks with which every public function begins. */
static tg_status enter(const tg_module *gpt, const tg_tape *t, const char *who) {
    if (!gpt) return TG_ERR_ARGUMENT;
    if (gpt->ctx->run.status != TG_OK) return gpt->ctx->run.status;
    if (gpt->ops != &gpt_ops)
        return tg_fail(gpt->ctx, TG_ERR_ARGUMENT, "%s: the module is a \"%s\", expected a gpt (tg_gpt_new)", who,
                       gpt->ops->kind);
    if (t && t->ctx != gpt->ctx)
        return tg_fail(gpt->ctx, TG_ERR_HANDLE, "%s: tape and model are of different contexts", who);
    return t ? TG_OK : tg_fail(gpt->ctx, TG_ERR_ARGUMENT, "%s: the tape is NULL", who);
}

/* Returns the input of the product with the output matrix: the trunk's output, gathered or copied if the matrix is
 * sharded. */
static tg_tensor *head_input(const tg_gpt_config *c, tg_tape *t, tg_tensor *x) {
    if (tg_gpt_tp(c) == 1) return x;
    return tg_is_sequence_parallel(c->parallel) ? tg_gather_from_sp(t, x, tg_gpt_tp_comm(c), NULL)
                                       : tg_copy_to_tp(t, x, tg_gpt_tp_comm(c));
}

/* Returns whether the caller has replaced lm_head by a module of another kind. That module is then called. It returns
 * logits [.., vocab], whole or, over tp ranks, as shards of the last dim. */
static bool head_is_given(const tg_module *gpt) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    const tg_module *head = is_tied(c) ? NULL : tg_module_child(gpt, "lm_head");
    return head && !(tg_gpt_tp(c) == 1 ? tg_is_own_linear(head) : tg_is_vocab_embedding(head));
}

static bool is_shard(const tg_tensor *y) { return tg_placement_of(y, TG_TP).kind == TG_VARYING; }

/* Calls the module by which the caller has replaced lm_head. */
static tg_tensor *run_given_head(tg_module *gpt, tg_tape *t, tg_tensor *x) {
    open_key(state_of(gpt), TG_GPT_KEY_HEAD, tg_scope_site(t->scope, TG_SITE));
    tg_tensor *y = tg_module_run(gpt, "lm_head", t, x);
    close_key(state_of(gpt));
    return y;
}

/* Computes the logits [.., vocab], whole on every rank, of the trunk's output x [.., h]. */
static tg_tensor *logits_of(tg_module *gpt, tg_tape *t, tg_tensor *x) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    bool given = head_is_given(gpt);
    tg_tensor *y = given ? run_given_head(gpt, t, x)
                         : tg_linear(t, head_input(c, t, x), tg_gpt_head(gpt), NULL);
    if (given ? !is_shard(y) : tg_gpt_tp(c) == 1) return y;
    y = tg_gather_from_tp(t, y, tg_gpt_tp_comm(c));
    return tg_slice(t, y, tg_ndim(y) - 1, 0, c->vocab, 1);
}

/* Returns y. After an error, notifies the peers that this rank has missed their collectives. */
static tg_tensor *leave(const tg_module *gpt, tg_tensor *y) {
    if (gpt && gpt->ops == &gpt_ops) tg_comm_missed(tg_gpt_tp_comm(&state_of(gpt)->c), gpt->ctx->run.status);
    return y;
}

static tg_tensor *logits(tg_module *gpt, tg_tape *t, tg_tensor *ids, const void *site) {
    if (enter(gpt, t, "tg_gpt_logits") != TG_OK) return tg_inert(gpt ? gpt->ctx : &tg_dead_ctx);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = tg_transpose(t, logits_of(gpt, t, tg_gpt_trunk(gpt, t, ids, NULL)), 0, 1);
    tg_site_close(t, s);
    return y;
}

tg_tensor *tg_gpt_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids) {
    return leave(gpt, logits(gpt, t, ids, TG_SITE));
}

/* Checks target before anything is recorded. The trunk checks ids. */
static tg_status check_target(tg_ctx *ctx, const tg_tensor *ids, const tg_tensor *target, tg_loss_reduction reduction) {
    char want[160], got[160];
    TG_TRY(tg_check(ctx, ids, "tg_gpt_loss: ids"));
    TG_TRY(tg_check(ctx, target, "tg_gpt_loss: target"));
    if ((unsigned)reduction > TG_LOSS_NONE)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_loss: reduction is %d, expected TG_LOSS_MEAN, _SUM or _NONE",
                       (int)reduction);
    if (ids->dtype != TG_I64 || ids->ndim != 2) return TG_OK;
    if (target->dtype == TG_I64 && target->ndim == 2 && !memcmp(target->shape, ids->shape, 2 * sizeof *ids->shape))
        return TG_OK;
    tg_describe(ids, want, sizeof want);
    tg_describe(target, got, sizeof got);
    return tg_fail(ctx, TG_ERR_SHAPE, "tg_gpt_loss: target is %s, expected %s like ids", got, want);
}

static tg_tensor *loss_of_logits(const tg_gpt_config *c, tg_tape *t, tg_tensor *y, tg_tensor *to,
                                 tg_loss_reduction reduction) {
    if (!is_shard(y)) return tg_cross_entropy(t, y, to, TG_CROSS_ENTROPY(.reduction = reduction));
    return tg_vocab_parallel_cross_entropy(t, y, to, tg_gpt_tp_comm(c),
                                           TG_VOCAB(.reduction = reduction, .classes = c->vocab));
}

static tg_tensor *loss_of(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target, tg_loss_reduction reduction) {
    const tg_gpt_config *c = &state_of(gpt)->c;
    tg_tensor *x = tg_gpt_trunk(gpt, t, ids, NULL), *to = tg_transpose(t, target, 0, 1);
    if (head_is_given(gpt)) return loss_of_logits(c, t, run_given_head(gpt, t, x), to, reduction);
    x = head_input(c, t, x);
    if (tg_gpt_tp(c) == 1)
        return tg_linear_cross_entropy(t, x, tg_gpt_head(gpt), to, TG_CROSS_ENTROPY(.reduction = reduction));
    return tg_vocab_parallel_linear_cross_entropy(t, x, tg_gpt_head(gpt), to, tg_gpt_tp_comm(c),
                                                  TG_VOCAB(.reduction = reduction, .classes = c->vocab));
}

static tg_tensor *checked_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target,
                               tg_loss_reduction reduction, const void *site) {
    if (enter(gpt, t, "tg_gpt_loss") != TG_OK) return tg_inert(gpt ? gpt->ctx : &tg_dead_ctx);
    if (check_target(gpt->ctx, ids, target, reduction) != TG_OK) return tg_inert(gpt->ctx);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = loss_of(gpt, t, ids, target, reduction);
    tg_site_close(t, s);
    return y;
}

tg_tensor *tg_gpt_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target, tg_loss_reduction reduction) {
    return leave(gpt, checked_loss(gpt, t, ids, target, reduction, TG_SITE));
}

/* ---- Generation ---- */

tg_gpt_cache *tg_gpt_cache_new(tg_module *gpt, int64_t batch, int64_t positions) {
    if (!gpt || gpt->ctx->run.status != TG_OK) return NULL;
    tg_ctx *ctx = gpt->ctx;
    const tg_gpt_config *c = tg_gpt_config_of(gpt);
    if (!c || batch <= 0 || positions <= 0 || positions > c->positions) {
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_gpt_cache_new: batch is %lld and positions %lld, expected a gpt, a batch of 1 or more, and 1 to "
                "the model's number of positions",
                (long long)batch, (long long)positions);
        return NULL;
    }
    if (tg_gpt_tp(c) > 1 && tg_is_sequence_parallel(c->parallel)) {
        tg_fail(ctx, TG_ERR_STATE,
                "tg_gpt_cache_new: the model is sequence-parallel, but a single token cannot be split over ranks; make "
                "its groups without sequence_parallel");
        return NULL;
    }
    if (!head_is_given(gpt) && !tg_gpt_head(gpt)) return NULL;
    size_t bytes = sizeof(tg_gpt_cache) + 2 * (size_t)c->layers * sizeof(tg_tensor *);
    tg_gpt_cache *k = tg_host_alloc(ctx, bytes);
    if (!k) return NULL;
    *k = (tg_gpt_cache){
        .ctx = ctx, .gpt = gpt, .batch = batch, .positions = positions, .layers = c->layers, .bytes = bytes};
    tg_dtype dtype = tg_dtype_of(tg_module_param(gpt, 0, NULL));
    int64_t heads = c->kv_heads < tg_gpt_tp(c) ? 1 : c->kv_heads / tg_gpt_tp(c);
    for (int64_t i = 0; i < 2 * c->layers; i++) {
        k->kv[i] = tg_zeros(ctx, dtype, (tg_shape){4, {batch, heads, positions, c->head_dim}});
        if (tg_gpt_tp(c) > 1) tg_place(c->parallel, k->kv[i], TG_TP, TG_SHARD(1));
    }
    if (ctx->run.status == TG_OK) return k;
    tg_gpt_cache_free(k);
    return NULL;
}

void tg_gpt_cache_free(tg_gpt_cache *c) {
    if (!c) return;
    for (int64_t i = 0; i < 2 * c->layers; i++) tg_drop(c->kv[i]);
    tg_host_free(c->ctx, c, c->bytes);
}

int64_t tg_gpt_cache_length(const tg_gpt_cache *c) { return c ? c->length : 0; }

/* Computes the logits of the last position only: [n, b, h] -> [b, vocab]. */
static tg_tensor *next_logits(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids, const void *site) {
    if (tg_scope_open_at(t, "generate", site) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(c->ctx);
    tg_tensor *x = tg_gpt_trunk(gpt, t, ids, c);
    tg_tensor *y = logits_of(gpt, t, tg_select(t, x, 0, tg_dim(ids, 1) - 1));
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(c->ctx);
}

static tg_tensor *next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids, const void *site) {
    if (enter(gpt, t, "tg_gpt_next") != TG_OK) return tg_inert(gpt ? gpt->ctx : &tg_dead_ctx);
    tg_ctx *ctx = gpt->ctx;
    if (!c || c->gpt != gpt)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_next: the cache is NULL or belongs to another model"),
               tg_inert(ctx);
    if (tg_check(ctx, ids, "tg_gpt_next: ids") != TG_OK) return tg_inert(ctx);
    if (ids->ndim != 2 || ids->shape[0] != c->batch || ids->shape[1] < 1 || c->length + ids->shape[1] > c->positions) {
        char what[160];
        tg_describe(ids, what, sizeof what);
        tg_fail(ctx, TG_ERR_SHAPE,
                "tg_gpt_next: ids are %s, expected i64[%lld, 1 to %lld]: the cache holds %lld of %lld positions", what,
                (long long)c->batch, (long long)(c->positions - c->length), (long long)c->length,
                (long long)c->positions);
        return tg_inert(ctx);
    }
    int64_t n = ids->shape[1];
    bool grad = tg_tape_set_grad_mode(t, false), training = tg_tape_set_training(t, false);
    tg_tensor *y = next_logits(gpt, t, c, ids, site);
    tg_tape_set_grad_mode(t, grad);
    tg_tape_set_training(t, training);
    if (ctx->run.status == TG_OK) c->length += n;
    return y;
}

tg_tensor *tg_gpt_next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids) {
    return leave(gpt, next(gpt, t, c, ids, TG_SITE));
}
