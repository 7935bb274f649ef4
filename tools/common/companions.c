/* Copies the tokenizer and the other companions (companions.h) from one model directory to another, so that a model
 * that was trained or converted from a published one is as complete as that. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/companions.h"
#include "common/text.h"
#include "io/file.h"

/* The names that Hugging Face transformers and tokenizers, and SentencePiece, give to these files. */
static const char *const names[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
};

const char *companion(size_t i) { return i < sizeof names / sizeof *names ? names[i] : NULL; }

/* Copies the bytes of a file in parts, because a tokenizer.json may have tens of megabytes. */
static tg_status copy_bytes(tg_ctx *ctx, FILE *f, const char *from, tg_writer *to) {
    enum { PART = 1 << 16 };
    char part[PART];
    size_t n;
    while ((n = fread(part, 1, PART, f)) > 0)
        if (tg_writer_put(to, part, n) != TG_OK) return tg_ctx_status(ctx);
    if (ferror(f)) return tg_ctx_fail(ctx, TG_ERR_IO, "cannot read '%s': %s", from, strerror(errno));
    return tg_writer_commit(to);
}

static bool copy_file(tg_ctx *ctx, const char *from, const char *to) {
    tg_writer w = {0};
    const char *is = not_regular(from);
    FILE *f = is ? NULL : fopen(from, "re");
    if (!f) tg_ctx_fail(ctx, TG_ERR_IO, "cannot read '%s': %s", from, is ? is : strerror(errno));
    bool good = f && tg_writer_open(&w, ctx, to) == TG_OK && copy_bytes(ctx, f, from, &w) == TG_OK;
    tg_writer_abandon(&w);
    if (f) fclose(f);
    return good;
}

/* Copies the file `name` of the directory `from` to the directory `to`, where it is called `as`. */
static bool copy_named(tg_ctx *ctx, const char *from, const char *name, const char *to, const char *as) {
    char *source = path_in(from, name), *target = path_in(to, as);
    if (!source || !target) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for the path of '%s'", name);
    bool good = source && target && copy_file(ctx, source, target);
    free(source);
    free(target);
    return good;
}

bool copy_companions(tg_ctx *ctx, const char *from, const char *to) {
    bool good = true;
    for (size_t i = 0; good && companion(i); i++)
        if (is_there(from, companion(i))) good = copy_named(ctx, from, companion(i), to, companion(i));
    return good;
}

/* Copies the tokenizer from a file of any name. The files next to it are copied first, because they may include another
 * tokenizer.json, which must not replace it. */
static bool copy_tokenizer_file(tg_ctx *ctx, const char *from, const char *to) {
    size_t n;
    const char *name = text_last_part(from, &n);
    char *dir = name == from ? strdup(".") : strndup(from, (size_t)(name - from));
    if (!dir) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for the directory of '%s'", from);
    bool good = dir && copy_companions(ctx, dir, to) && copy_named(ctx, dir, name, to, names[0]);
    free(dir);
    return good;
}

bool tokenizer_copy(tg_ctx *ctx, const char *from, const char *to) {
    bool good = not_regular(from) ? copy_companions(ctx, from, to) : copy_tokenizer_file(ctx, from, to);
    return check(ctx) && good;
}
