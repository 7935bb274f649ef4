/* Creates language models: the whole model, or the part of it that a chunk of a pipeline stage has. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "core/random/keys.h"
#include "models/lm/lm.h"

/* ---- The module ---- */

static void lm_free(void *state) {
    tg_lm *s = state;
    for (int64_t i = 0; i < s->n_layers; i++) tg_drop(s->layer[i].weight);
    tg_host_strfree(s->ctx, (char *)s->c.layout);
    tg_host_strfree(s->ctx, (char *)s->c.attention_kinds);
    tg_host_strfree(s->ctx, (char *)s->c.extra);
    tg_host_free(s->ctx, s, s->bytes);
}

static tg_tensor *lm_forward(tg_module *m, tg_tape *t, tg_tensor *ids) {
    return tg_lm_logits_of_ids(m, t, ids, NULL, "tg_module_forward", TG_SITE);
}

const tg_module_ops tg_lm_ops = {.size = sizeof(tg_module_ops), .kind = "lm", .forward = lm_forward, .free = lm_free};
const tg_module_ops tg_lm_gpt_ops = {
    .size = sizeof(tg_module_ops), .kind = "gpt", .forward = lm_forward, .free = lm_free};
const tg_module_ops tg_lm_list_ops = {.size = sizeof(tg_module_ops), .kind = "list"};

const tg_lm_config *tg_lm_config_of(const tg_module *lm) { return tg_is_lm(lm) ? &tg_lm_of(lm)->c : NULL; }

tg_module *tg_lm_body(const tg_module *lm) { return tg_module_part(lm, tg_lm_names_of(&tg_lm_of(lm)->c)->body); }

/* ---- Keys of random draws ---- */

static bool has_key(const tg_lm *s) { return s->c.key != (uint64_t)TG_NONE; }

void tg_lm_key_open(const tg_lm *s, uint64_t key, const void *site) {
    if (has_key(s)) tg_key_open_at(s->ctx, s->c.key, site);
    tg_key_open_at(s->ctx, key, site);
}

void tg_lm_key_close(const tg_lm *s) {
    tg_key_close(s->ctx);
    if (has_key(s)) tg_key_close(s->ctx);
}

/* ---- Children ---- */

static char *copy(tg_ctx *ctx, const char *text) { return text ? tg_host_strdup(ctx, text) : NULL; }

/* Creates the module of a model, still without children. Returns NULL or an inert module on an error. */
static tg_module *empty(tg_ctx *ctx, const tg_lm_config *c, const tg_gpt_config *gpt, const tg_lm_stage *stage,
                        const void *site) {
    int64_t n = stage->layers + (stage->head ? c->mtp : 0);
    size_t bytes = sizeof(tg_lm) + (size_t)n * sizeof(tg_layer_fn);
    tg_lm *s = tg_host_alloc(ctx, bytes);
    if (!s) return NULL;
    *s = (tg_lm){.ctx = ctx, .c = *c, .stage = *stage, .site = site, .bytes = bytes, .n_layers = n};
    if (gpt) s->gpt = *gpt;
    s->c.layout = copy(ctx, c->layout);
    s->c.attention_kinds = copy(ctx, c->attention_kinds);
    s->c.extra = copy(ctx, c->extra);
    s->gpt.layout = s->c.layout;
    return tg_module_new(ctx, gpt ? &tg_lm_gpt_ops : &tg_lm_ops, s);
}

/* Creates the list of this part's layers, named by their numbers in the whole model. */
static tg_module *layer_list(tg_module *lm) {
    tg_lm *s = tg_lm_of(lm);
    tg_module *list = tg_module_new(s->ctx, &tg_lm_list_ops, NULL);
    for (int64_t i = 0; i < s->stage.layers && tg_module_ok(list); i++) {
        s->layer[i].lm = lm;
        snprintf(s->layer[i].name, sizeof s->layer[i].name, "%lld", (long long)(s->stage.first + i));
        tg_lm_key_open(s, (uint64_t)(s->stage.first + i), s->site);
        const tg_lm_config own = tg_lm_config_of_layer(&s->c, s->stage.first + i);
        tg_module_add_child(list, s->layer[i].name, tg_lm_layer_new(s->ctx, &own));
        tg_lm_key_close(s);
    }
    return list;
}

/* Creates a table with a row for each token of the vocabulary. With tensor parallelism the vocabulary is padded, and
 * each rank holds its part of the rows. */
static tg_module *word_table(tg_ctx *ctx, const tg_lm_config *c) {
    if (tg_lm_tp(c) == 1) return tg_nn_embedding(ctx, c->vocab, c->hidden, c->init_std);
    return tg_nn_padded_embedding(c->parallel, c->vocab, tg_lm_rows(c), c->hidden, c->init_std, NULL);
}

/* Creates the output matrix of an untied model. With tensor parallelism it is stored like an embedding. */
static tg_module *output_matrix(tg_ctx *ctx, const tg_lm_config *c) {
    if (tg_lm_tp(c) == 1) return tg_nn_linear(ctx, c->hidden, c->vocab, c->head_bias, c->init_std);
    tg_module *m = tg_layer_begin(ctx, &tg_lm_output_ops, c);
    if (m) tg_module_wrap(m, word_table(ctx, c), "tg_lm_new");
    return tg_layer_finish(m);
}

/* Returns whether this part has the word embedding. The first part has it. The last part has a copy if the model is
 * tied, so that the embedding is the output matrix, or if multi-token prediction looks tokens up. */
static bool has_words(const tg_lm *s) { return s->stage.embedding || (s->stage.head && (s->c.tied || s->c.mtp)); }

/* Adds the word embedding, or the last part's copy of it. The first part also gets the position embeddings if the model
 * learns them. */
static void add_embedding(tg_module *lm, tg_module *body) {
    const tg_lm *s = tg_lm_of(lm);
    const tg_lm_config *c = &s->c;
    const tg_lm_name_table *names = tg_lm_names_of(c);
    tg_lm_key_open(s, TG_LM_KEY_EMBEDDING, s->site);
    tg_module_add_child(body, names->embedding, word_table(s->ctx, c));
    if (s->stage.embedding && c->position_kind == TG_LM_LEARNED)
        tg_module_add_child(body, names->positions, tg_nn_embedding(s->ctx, c->positions, c->hidden, c->init_std));
    tg_lm_key_close(s);
}

/* Returns whether a copy of the embedding is drawn after the layers. The order matters to draws by order only: in
 * Megatron-Core a copy that serves as the output matrix is drawn as the output layer. */
static bool draws_words_last(const tg_lm *s) {
    return !s->stage.embedding && !s->c.mtp && tg_parallel_rng(s->c.parallel) == TG_RNG_MEGATRON;
}

/* Adds the children of the body that this part has. */
static void fill_body(tg_module *lm, tg_module *body) {
    const tg_lm *s = tg_lm_of(lm);
    const tg_lm_name_table *names = tg_lm_names_of(&s->c);
    bool words = has_words(s), last = draws_words_last(s);
    if (words && !last) add_embedding(lm, body);
    tg_module_add_child(body, names->layers, layer_list(lm));
    if (s->stage.head) tg_module_add_child(body, names->last_norm, tg_lm_norm_new(s->ctx, &s->c, s->c.hidden));
    if (words && last) add_embedding(lm, body);
}

/* Adds the children that the last part has outside of the body: the output matrix and multi-token prediction. */
static void add_head(tg_module *lm) {
    const tg_lm *s = tg_lm_of(lm);
    if (!s->c.tied) {
        tg_lm_key_open(s, TG_LM_KEY_HEAD, s->site);
        tg_module_add_child(lm, "lm_head", output_matrix(s->ctx, &s->c));
        tg_lm_key_close(s);
    }
    if (s->c.mtp) tg_module_add_child(lm, "mtp", tg_mtp_new(lm));
}

/* ---- Creation ---- */

/* Fails if the first and the last part both need the embedding matrix, are different parts, and belong to one stage.
 * The stage would then have two copies of the matrix. */
static tg_status check_ends(tg_ctx *ctx, const tg_lm_config *c, const tg_lm_stage *s, const char *who) {
    if ((!c->tied && !c->mtp) || s->parts == 1 || tg_parallel_size(c->parallel, TG_PP) > 1) return TG_OK;
    return tg_fail(
        ctx, TG_ERR_UNSUPPORTED,
        "%s: the model has %d parts on one stage and %s, so the stage would have two copies of the embedding; "
        "expected pp above 1, or one part",
        who, s->parts, c->tied ? "is tied" : "predicts several tokens (mtp)");
}

/* Declares the embedding matrix that the first and the last stage have. With draws by key both have drawn the same
 * values. With TG_RNG_MEGATRON each stage draws from a stream of its own, and the last one takes over the first one's
 * values, as in Megatron-Core. */
static void share_embedding(tg_module *lm) {
    const tg_lm *s = tg_lm_of(lm);
    const tg_parallel *p = s->c.parallel;
    if (!has_words(s) || (!s->c.tied && !s->c.mtp) || tg_parallel_size(p, TG_PP) == 1 || !tg_module_ok(lm)) return;
    tg_tensor *words = tg_module_own_at(tg_lm_body(lm), tg_lm_names_of(&s->c)->embedding, "weight");
    if (tg_parallel_rng(p) == TG_RNG_MEGATRON && !lm->ctx->unfilled)
        tg_comm_broadcast(tg_parallel_embedding(p), words, 0);
    tg_share(p, words, tg_parallel_embedding(p));
}

tg_module *tg_lm_make(tg_ctx *ctx, const tg_lm_config *c, const tg_gpt_config *gpt, const char *who, const void *site) {
    tg_lm_stage stage;
    bool good = tg_lm_stage_of(ctx, c, who, &stage) == TG_OK && check_ends(ctx, c, &stage, who) == TG_OK;
    tg_module *m = good ? empty(ctx, c, gpt, &stage, site) : NULL;
    if (!tg_module_ok(m)) return m ? m : tg_module_new(NULL, NULL, NULL);
    tg_module *body = tg_module_new(ctx, &tg_lm_list_ops, NULL);
    bool unfilled = ctx->unfilled; /* tg_gpt_load and tg_lm_load_dir set it */
    ctx->unfilled |= c->unfilled;
    fill_body(m, body);
    tg_module_add_child(m, tg_lm_names_of(c)->body, body);
    if (stage.head) add_head(m);
    if (tg_module_ok(m) && c->parallel) tg_module_replicate(m, c->parallel);
    share_embedding(m);
    ctx->unfilled = unfilled;
    if (tg_module_ok(m)) return m;
    tg_module_free(m);
    return tg_module_new(NULL, NULL, NULL);
}

tg_module *tg_lm_new(tg_ctx *ctx, const tg_lm_config *given) {
    tg_lm_config c;
    if (!tg_ok(ctx)) return tg_module_new(NULL, NULL, NULL);
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_new: the config is NULL");
    tg_options(ctx, &c, &tg_lm_config_struct, given, "tg_lm_new: the config");
    if (ctx->run.status != TG_OK || tg_lm_complete(ctx, &c, "tg_lm_new") != TG_OK)
        return tg_module_new(NULL, NULL, NULL);
    return tg_lm_make(ctx, &c, NULL, "tg_lm_new", TG_SITE);
}

tg_tensor *tg_lm_embedding_or_output_weight(tg_module *lm) {
    if (!tg_is_lm(lm) || lm->ctx->run.status != TG_OK) return NULL;
    const tg_lm *s = tg_lm_of(lm);
    if (s->stage.embedding) return tg_module_own_at(tg_lm_body(lm), tg_lm_names_of(&s->c)->embedding, "weight");
    return s->stage.head ? tg_lm_output_weight(lm) : NULL;
}
