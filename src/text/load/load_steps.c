/* Reading the steps of a tokenizer.json: normalizer, pre-tokenizer and decoder. */
#include "text/load/load.h"
#include "text/unicode.h"

/* The expression of GPT-2 (Radford et al., 2019), which ByteLevel has by default. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static tg_status check_room(const tg_tokenizer *k, const char *what, int n) {
    if (n < TG_MAX_STEPS) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_UNSUPPORTED, "'%s': %s has too many steps, expected at most %d", k->path, what,
                   TG_MAX_STEPS);
}

/* ---- The normalizer ---- */

static tg_status read_form(tg_tokenizer *k, const char *type, tg_normal_step *s) {
    static const char *const names[] = {[TG_NFC] = "NFC", [TG_NFD] = "NFD", [TG_NFKC] = "NFKC", [TG_NFKD] = "NFKD"};
    for (int i = 0; i < TG_LEN(names); i++) {
        if (strcmp(type, names[i]) != 0) continue;
        *s = (tg_normal_step){.kind = TG_NORMAL_FORM, .form = (tg_normal_form)i};
        return tg_tokenizer_needs_functions(k);
    }
    return tg_load_refuse(k, "the normalizer", type);
}

tg_status tg_load_normal_step(tg_tokenizer *k, const tg_json *j) {
    const char *type = tg_load_type(j);
    TG_TRY(check_room(k, "the normalizer", k->n_normal));
    tg_normal_step *s = k->normal + k->n_normal++;
    if (!strcmp(type, "Prepend")) {
        s->kind = TG_NORMAL_PREPEND;
        return tg_load_string(k, j, "prepend", &s->content);
    }
    if (!strcmp(type, "Replace")) {
        s->kind = TG_NORMAL_REPLACE;
        TG_TRY(tg_load_string(k, j, "content", &s->content));
        return tg_load_pattern(k, j, "the normalizer Replace", &s->sought, &s->pattern);
    }
    if (!strcmp(type, "Strip")) {
        s->kind = TG_NORMAL_STRIP;
        TG_TRY(tg_load_bool(j, "strip_left", &s->left));
        return tg_load_bool(j, "strip_right", &s->right);
    }
    return read_form(k, type, s);
}

/* ---- The pre-tokenizer ---- */

static tg_status read_behavior(tg_tokenizer *k, const tg_json *j, tg_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name;
    TG_TRY(tg_json_string(j, "behavior", &name));
    for (int i = 0; i < TG_LEN(names); i++)
        if (!strcmp(name, names[i])) return *out = (tg_behavior)i, TG_OK;
    return tg_load_refuse(k, "the behavior of the pre-tokenizer", name);
}

static tg_status read_split(tg_tokenizer *k, const tg_json *j, tg_split_step *s) {
    TG_TRY(read_behavior(k, j, &s->behavior));
    TG_TRY(tg_load_bool(j, "invert", &s->invert));
    return tg_load_pattern(k, j, "the pre-tokenizer Split", &s->sought, &s->pattern);
}

static tg_status read_digits(tg_tokenizer *k, const tg_json *j, tg_split_step *s) {
    bool individual = false;
    TG_TRY(tg_load_bool(j, "individual_digits", &individual));
    s->behavior = individual ? TG_CUT_ISOLATED : TG_CUT_CONTIGUOUS;
    return tg_tokenizer_pattern(k, "\\p{N}", 5, true, &s->pattern);
}

static tg_status check_character(const tg_tokenizer *k, tg_span text, const char *what) {
    if (text.n && text.n == tg_char_length(text.at[0])) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_UNSUPPORTED, "'%s': %s is '%s', expected one character", k->path, what,
                   text.at ? text.at : "");
}

/* Reads the mark of Metaspace, one character. */
static tg_status read_mark(tg_tokenizer *k, const tg_json *j, tg_span *mark) {
    *mark = (tg_span){"\xe2\x96\x81", 3};
    TG_TRY(tg_load_string(k, j, "replacement", mark));
    return check_character(k, *mark, "the replacement of Metaspace");
}

/* Reads when Metaspace puts a mark before the text. prepend_scheme replaces the older key add_prefix_space. */
static tg_status read_prepend(tg_tokenizer *k, const tg_json *j, tg_prepend *out) {
    static const char *const names[] = {"always", "first", "never"};
    bool adds = true;
    const char *name = "always";
    TG_TRY(tg_load_bool(j, "add_prefix_space", &adds));
    if (tg_json_has(j, "prepend_scheme"))
        TG_TRY(tg_json_string(j, "prepend_scheme", &name));
    else if (!adds)
        name = "never";
    for (int i = 0; i < TG_LEN(names); i++)
        if (!strcmp(name, names[i])) return *out = (tg_prepend)i, TG_OK;
    return tg_load_refuse(k, "the prepend_scheme of Metaspace", name);
}

static tg_status read_metaspace(tg_tokenizer *k, const tg_json *j, tg_split_step *s) {
    s->kind = TG_SPLIT_META;
    s->splits = true;
    TG_TRY(read_mark(k, j, &s->sought));
    TG_TRY(read_prepend(k, j, &s->prepend));
    return tg_load_bool(j, "split", &s->splits);
}

tg_status tg_tokenizer_split_bytes(tg_tokenizer *k, const char *pattern) {
    tg_split_step *s = k->split + k->n_split++;
    const char *text = pattern ? pattern : GPT2;
    k->model.byte_level = true;
    s->behavior = TG_CUT_ISOLATED;
    return tg_tokenizer_pattern(k, text, strlen(text), false, &s->pattern);
}

/* Reads ByteLevel, which is up to two steps: one that adds a space, for which the caller has taken s, and one that
 * splits. If there is no space to add, gives s back. */
static tg_status read_byte_level(tg_tokenizer *k, const tg_json *j, tg_split_step *s) {
    bool adds = true, splits = true;
    TG_TRY(tg_load_bool(j, "add_prefix_space", &adds));
    TG_TRY(tg_load_bool(j, "use_regex", &splits));
    k->model.byte_level = true;
    if (adds)
        s->kind = TG_SPLIT_SPACE;
    else
        k->n_split--;
    return splits ? tg_tokenizer_split_bytes(k, NULL) : TG_OK;
}

tg_status tg_load_split_step(tg_tokenizer *k, const tg_json *j) {
    const char *type = tg_load_type(j);
    bool twice = !strcmp(type, "ByteLevel"); /* it may be two steps */
    TG_TRY(check_room(k, "the pre-tokenizer", k->n_split + twice));
    if (k->model.byte_level) return tg_load_refuse(k, "the pre-tokenizer after ByteLevel", type);
    tg_split_step *s = k->split + k->n_split++;
    if (!strcmp(type, "Split")) return read_split(k, j, s);
    if (!strcmp(type, "Digits")) return read_digits(k, j, s);
    if (!strcmp(type, "Metaspace")) return read_metaspace(k, j, s);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(k, j, s);
    return tg_load_refuse(k, "the pre-tokenizer", type);
}

/* ---- The decoder ---- */

static tg_status read_strip(tg_tokenizer *k, const tg_json *j, tg_decode_step *s) {
    s->kind = TG_DECODE_STRIP;
    TG_TRY(tg_load_string(k, j, "content", &s->sought));
    TG_TRY(check_character(k, s->sought, "the content of the decoder Strip"));
    TG_TRY(tg_json_int(j, "start", 0, INT32_MAX, &s->left));
    return tg_json_int(j, "stop", 0, INT32_MAX, &s->right);
}

static tg_status read_replace(tg_tokenizer *k, const tg_json *j, tg_decode_step *s) {
    tg_pattern *pattern = NULL;
    s->kind = TG_DECODE_REPLACE;
    TG_TRY(tg_load_string(k, j, "content", &s->content));
    TG_TRY(tg_load_pattern(k, j, "the decoder Replace", &s->sought, &pattern));
    return pattern ? tg_load_refuse(k, "the pattern of the decoder Replace", "a regular expression") : TG_OK;
}

/* Reads the decoder Metaspace. */
static tg_status read_unmark(tg_tokenizer *k, const tg_json *j, tg_decode_step *s) {
    tg_prepend prepend;
    s->kind = TG_DECODE_META;
    TG_TRY(read_mark(k, j, &s->sought));
    TG_TRY(read_prepend(k, j, &prepend));
    s->drops_first = prepend != TG_PREPEND_NEVER;
    return TG_OK;
}

static tg_status read_decode_step(tg_tokenizer *k, const tg_json *j, const char *type, tg_decode_step *s) {
    if (!strcmp(type, "Strip")) return read_strip(k, j, s);
    if (s->joined && strcmp(type, "Fuse") != 0)
        return tg_load_refuse(k, "the decoder after the one that joins tokens", type);
    if (!strcmp(type, "Replace")) return read_replace(k, j, s);
    if (!strcmp(type, "Metaspace")) return read_unmark(k, j, s);
    if (!strcmp(type, "ByteLevel")) return s->kind = TG_DECODE_BYTES, TG_OK;
    if (!strcmp(type, "ByteFallback")) return s->kind = TG_DECODE_FALLBACK, TG_OK;
    if (!strcmp(type, "Fuse")) return s->kind = TG_DECODE_FUSE, TG_OK;
    return tg_load_refuse(k, "the decoder", type);
}

tg_status tg_load_decode_step(tg_tokenizer *k, const tg_json *j) {
    TG_TRY(check_room(k, "the decoder", k->n_decode));
    tg_decode_step *s = k->decode + k->n_decode++;
    const tg_decode_step *before = k->n_decode > 1 ? s - 1 : NULL;
    s->joined = before && (before->joined || before->kind == TG_DECODE_FUSE || before->kind == TG_DECODE_BYTES);
    return read_decode_step(k, j, tg_load_type(j), s);
}
