/* Finds which of llama.cpp's ways to cut and normalize text is that of a tokenizer.json. llama.cpp has no expressions
 * in its files: it knows them by name. */
#include <string.h>

#include "convert/gguf.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define CL100K(digits)                                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                               \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                                                                   \
    "\\s+(?!\\S)|\\s+"
/* The same expression in tiktoken's spelling. */
#define CL100K_TIKTOKEN                                                                                                \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"   \
    "\\s+(?!\\S)|\\s+"
#define CASES(contractions, digits)                                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" contractions           \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" contractions          \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K  CASES("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")
#define TEKKEN CASES("", "\\p{N}")

/* The ways to cut text into words for byte-level BPE: the expression, and llama.cpp's name for it. digits: each digit
 * is a word. whole ("ignore_merges"): a word that is a token is that token, even if no merges lead to it. */
static const struct {
    const char *expression, *pre;
    bool digits, whole;
} cuts[] = {
    {GPT2, "gpt-2", false, false},
    {GPT2 "|\\s+", "gpt-2", false, false},
    {GPT2, "smollm", true, false},
    {GPT2 "|\\s+", "smollm", true, false},
    {CL100K("\\p{N}{1,3}"), "llama-bpe", false, true},
    {CL100K("\\p{N}{1,3}"), "smaug-bpe", false, false},
    {CL100K("\\p{N}"), "qwen2", false, false},
    {CL100K_TIKTOKEN, "llama-bpe", false, true},
    {CL100K_TIKTOKEN, "smaug-bpe", false, false},
    {O200K, "gpt-4o", false, false},
    {TEKKEN, "tekken", false, true},
};

enum { MOST_STEPS = 8 };

/* The steps of a normalizer, or of a pre-tokenizer, which cuts text into words. */
typedef struct steps {
    const json_t *at[MOST_STEPS];
    int n;
} steps;

static const char *text_of(const json_t *j, const char *key) {
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

static bool is_type(const json_t *j, const char *type) { return strcmp(text_of(j, "type"), type) == 0; }

static tg_status refuse(tg_ctx *ctx, const char *path, const char *what, const char *type) {
    return tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED,
                       "'%s': llama.cpp has no tokenizer with %s \"%s\"; --no-tokenizer writes the model without one",
                       path, what, type);
}

/* Lists the steps of root[key]: it is one step, or a sequence whose key `list` has the steps; null has none. */
static tg_status list_steps(tg_ctx *ctx, const json_t *root, const char *path, const char *key, const char *list,
                            steps *out) {
    const json_t *step = json_object_get(root, key), *all = json_object_get(step, list);
    size_t n = all ? json_array_size(all) : json_is_object(step);
    if (n > MOST_STEPS) return refuse(ctx, path, "more than 8 steps of the", key);
    for (size_t i = 0; i < n; i++) out->at[out->n++] = all ? json_array_get(all, i) : step;
    return TG_OK;
}

/* Returns whether the step cuts the text by an expression so that each match is a word: either matches become words of
 * their own ("Isolated"), or everything else is removed. */
static bool is_cut(const json_t *step) {
    bool inverted = json_is_true(json_object_get(step, "invert"));
    return is_type(step, "Split") && strcmp(text_of(step, "behavior"), inverted ? "Removed" : "Isolated") == 0;
}

/* ---- Byte-level BPE ---- */

static tg_status find_cut(tg_ctx *ctx, const char *path, const char *expression, bool digits, bool whole,
                          gguf_splits *out) {
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (strcmp(cuts[i].expression, expression) == 0 && cuts[i].digits == digits && cuts[i].whole == whole)
            return out->pre = cuts[i].pre, TG_OK;
    return refuse(ctx, path, whole ? "\"ignore_merges\" and the expression" : "the expression", expression);
}

static tg_status find_bytes(tg_ctx *ctx, const json_t *root, const char *path, const steps *normal, const steps *cut,
                            gguf_splits *out) {
    const json_t *model = json_object_get(root, "model"), *bytes = cut->at[cut->n - 1];
    bool digits = false, whole = json_is_true(json_object_get(model, "ignore_merges"));
    const char *expression = json_is_false(json_object_get(bytes, "use_regex")) ? "" : GPT2;
    for (int i = 0; i < normal->n; i++) /* llama.cpp does not normalize, but most text is in NFC already */
        if (!is_type(normal->at[i], "NFC")) return refuse(ctx, path, "the normalizer", text_of(normal->at[i], "type"));
    for (int i = 0; i < cut->n - 1; i++) {
        const json_t *step = cut->at[i];
        bool split = is_cut(step) && !*expression;
        bool single = is_type(step, "Digits") && json_is_true(json_object_get(step, "individual_digits"));
        if (!split && !single) return refuse(ctx, path, "the step", text_of(step, "type"));
        if (split) expression = text_of(json_object_get(step, "pattern"), "Regex");
        digits = digits || single;
    }
    if (json_is_true(json_object_get(bytes, "add_prefix_space")))
        return refuse(ctx, path, "the option", "add_prefix_space");
    out->model = "gpt2";
    return find_cut(ctx, path, expression, digits, whole, out);
}

/* ---- BPE of characters, as SentencePiece has it ---- */

#define SPACE "\xe2\x96\x81" /* U+2581, which stands for a space in tokens */

static bool is_replace(const json_t *step) {
    return is_type(step, "Replace") && strcmp(text_of(json_object_get(step, "pattern"), "String"), " ") == 0 &&
           strcmp(text_of(step, "content"), SPACE) == 0;
}

/* Returns whether the step cuts at spaces. It does nothing if the normalizer has replaced all spaces. */
static bool is_idle(const json_t *step) {
    return is_type(step, "Split") && strcmp(text_of(json_object_get(step, "pattern"), "String"), " ") == 0;
}

static bool puts_space_first(const json_t *metaspace) {
    const char *scheme = text_of(metaspace, "prepend_scheme");
    return *scheme ? strcmp(scheme, "never") != 0 : !json_is_false(json_object_get(metaspace, "add_prefix_space"));
}

static tg_status find_characters(tg_ctx *ctx, const char *path, const steps *normal, const steps *cut,
                                 gguf_splits *out) {
    bool replaced = false;
    for (int i = 0; i < normal->n; i++) {
        bool first = is_type(normal->at[i], "Prepend") && strcmp(text_of(normal->at[i], "prepend"), SPACE) == 0;
        if (!first && !is_replace(normal->at[i]))
            return refuse(ctx, path, "the normalizer", text_of(normal->at[i], "type"));
        out->space_first = out->space_first || first;
        replaced = replaced || !first;
    }
    for (int i = 0; i < cut->n; i++) {
        bool metaspace = is_type(cut->at[i], "Metaspace") && strcmp(text_of(cut->at[i], "replacement"), SPACE) == 0;
        if (!metaspace && !(is_idle(cut->at[i]) && replaced))
            return refuse(ctx, path, "the step", text_of(cut->at[i], "type"));
        out->space_first = out->space_first || (metaspace && puts_space_first(cut->at[i]));
        replaced = replaced || metaspace;
    }
    if (!replaced) return refuse(ctx, path, "BPE of characters that does not replace", " ");
    out->model = "llama";
    out->pre = "default";
    return TG_OK;
}

tg_status gguf_find_splits(tg_ctx *ctx, const json_t *root, const char *path, gguf_splits *out) {
    steps normal = {.n = 0}, cut = {.n = 0};
    const json_t *model = json_object_get(root, "model");
    *out = (gguf_splits){0};
    if (!is_type(model, "BPE")) return refuse(ctx, path, "the model", text_of(model, "type"));
    if (*text_of(model, "continuing_subword_prefix"))
        return refuse(ctx, path, "the option", "continuing_subword_prefix");
    if (*text_of(model, "end_of_word_suffix")) return refuse(ctx, path, "the option", "end_of_word_suffix");
    tg_status s = list_steps(ctx, root, path, "normalizer", "normalizers", &normal);
    if (!s) s = list_steps(ctx, root, path, "pre_tokenizer", "pretokenizers", &cut);
    if (s) return s;
    if (cut.n && is_type(cut.at[cut.n - 1], "ByteLevel")) return find_bytes(ctx, root, path, &normal, &cut, out);
    if (!json_is_true(json_object_get(model, "byte_fallback")))
        return refuse(ctx, path, "a BPE model that has neither ByteLevel nor", "byte_fallback");
    return find_characters(ctx, path, &normal, &cut, out);
}
