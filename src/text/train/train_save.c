/* Writing what a training has made: tokenizer.json, as the library tokenizers writes it, and tokenizer_config.json. */
#include "io/json.h"
#include "text/train/train.h"

/* ---- Parts of the file ---- */

static json_t *byte_level(bool trims, bool splits) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", trims,
                     "use_regex", splits);
}

/* The pre-tokenizer: ByteLevel splits by GPT-2's expression; another one is a step of its own. */
static json_t *pre_tokenizer(const tg_bpe *b) {
    if (!b->opts.pattern) return byte_level(true, true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", b->opts.pattern, "behavior", "Isolated", "invert", 0, byte_level(true, false));
}

/* Appends a value to a list. Without memory for one of them, frees the list and sets it to NULL, which json_pack
 * refuses. */
static void append(json_t **list, json_t *value) {
    if (*list && json_array_append_new(*list, value) == 0) return;
    json_decref(*list);
    *list = NULL;
}

static json_t *added_tokens(const tg_bpe *b, const tg_trained *t) {
    json_t *list = json_array();
    const char *at = b->opts.special;
    for (tg_span token; tg_next_special(&at, &token) && list;)
        append(&list, json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id",
                                tg_vocab_find(&t->vocab, token.at, token.n), "content", token.at, token.n,
                                "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    return list;
}

static json_t *vocab(const tg_trained *t) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (int64_t i = 0; i < t->vocab.size && good; i++)
        good = json_object_set_new(object, t->vocab.token[i].at, json_integer(i)) == 0;
    if (good) return object;
    json_decref(object);
    return NULL;
}

/* Returns whether the same pair is merged again later, where other merges have made its parts again. Then only its last
 * merge is written. */
static bool comes_again(const tg_model *last, const tg_merge *merge) {
    return tg_merges_find(last, merge->left, merge->right)->rank != merge->rank;
}

static json_t *merges(const tg_trained *t, const tg_model *last) {
    json_t *list = json_array();
    for (int64_t i = 0; i < t->n_merges && list; i++) {
        const tg_merge *m = t->merges + i;
        if (!comes_again(last, m))
            append(&list, json_pack("[s, s]", t->vocab.token[m->left].at, t->vocab.token[m->right].at));
    }
    return list;
}

static json_t *model(const tg_trained *t, const tg_model *last) {
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                     "ignore_merges", 0, "vocab", vocab(t), "merges", merges(t, last));
}

/* ---- Files ---- */

/* Saves a document as NAME in the directory, and frees it. */
static tg_status save(const tg_bpe *b, const char *directory, const char *name, json_t *root) {
    char *path = tg_format_path(b->ctx, "%s/%s", directory, name);
    tg_status s = tg_ctx_status(b->ctx);
    if (path && !root) s = tg_fail(b->ctx, TG_ERR_MEMORY, "tg_bpe_save: no memory for '%s'", path);
    if (path && root) s = tg_json_save(b->ctx, path, root);
    tg_host_strfree(b->ctx, path);
    json_decref(root);
    return s;
}

static json_t *config(const tg_bpe *b) {
    const char *at = b->opts.special;
    tg_span end;
    json_t *root =
        json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
    if (!tg_next_special(&at, &end) || !json_object_set_new(root, "eos_token", json_stringn(end.at, end.n)))
        return root;
    json_decref(root);
    return NULL;
}

tg_status tg_trained_save(const tg_bpe *b, const tg_trained *t, const char *directory) {
    tg_pieces memory = {.ctx = b->ctx};
    tg_model last = {0};
    tg_status s = tg_merges_open(&last, &memory, t->n_merges);
    for (int64_t i = 0; i < t->n_merges && s == TG_OK; i++) tg_merges_add(&last, t->merges[i]);
    if (s == TG_OK) {
        json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation",
                                 "padding", "added_tokens", added_tokens(b, t), "normalizer", "pre_tokenizer",
                                 pre_tokenizer(b), "post_processor", byte_level(false, true), "decoder",
                                 byte_level(true, true), "model", model(t, &last));
        s = save(b, directory, "tokenizer.json", root);
    }
    tg_pieces_free(&memory);
    return s == TG_OK ? save(b, directory, "tokenizer_config.json", config(b)) : s;
}
