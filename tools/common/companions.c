/* Copies the tokenizer and its kin from one model directory to another, so that what is trained or converted from a
 * published model is as complete as that. */
#include <stdlib.h>

#include <tapegrad/io.h>

#include "common/companions.h"

/* The names that Hugging Face transformers and tokenizers, and SentencePiece, give to these files. */
static const char *const names[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
};

const char *companion(size_t i) { return i < sizeof names / sizeof *names ? names[i] : NULL; }

static bool copy_file(tg_ctx *ctx, const char *from, const char *to) {
    size_t n = 0;
    char *data = read_whole(from, &n);
    bool good = data && tg_file_save(ctx, to, data, n) == TG_OK;
    free(data);
    return good;
}

bool copy_companions(tg_ctx *ctx, const char *from, const char *to) {
    bool good = true;
    for (size_t i = 0; good && companion(i); i++) {
        if (!is_there(from, companion(i))) continue;
        char *source = path_in(from, companion(i)), *target = path_in(to, companion(i));
        good = source && target && copy_file(ctx, source, target);
        free(source);
        free(target);
    }
    return good;
}
