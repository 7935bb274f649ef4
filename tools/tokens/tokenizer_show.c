/* tapegrad tokenizer show: prints the special tokens of a tokenizer, or the tokens of a text. */
#include <string.h>

#include "common/program.h"
#include "common/text.h"
#include "tokens/tokenizer.h"

/* Prints a row of a token: its id and its text, with control characters escaped. */
static void say_token(const tg_tokenizer *k, int64_t id, const char *note) {
    char text[400];
    const char *token = tg_tokenizer_token(k, id);
    say("  %7lld  %s%s\n", (long long)id, text_escape(text, sizeof text, token ? token : ""), note);
}

/* Returns what to print after a token that begins or ends a text; "" for other tokens. */
static const char *note_of(const tg_tokenizer *k, int64_t id) {
    int64_t ends[16];
    int n = tg_tokenizer_ends(k, ends, 16);
    if (id == tg_tokenizer_bos(k)) return "  (begins a text)";
    for (int i = 0; i < n && i < 16; i++)
        if (ends[i] == id) return "  (ends a text)";
    return "";
}

static void say_special(const tg_tokenizer *k) {
    enum { MOST = 40 };
    int64_t found = 0, shown = 0;
    say("special tokens:\n");
    for (int64_t id = 0; id < tg_tokenizer_size(k); id++) {
        bool named = *note_of(k, id) != 0;
        if (!tg_tokenizer_is_special(k, id) && !named) continue;
        if (found++ >= MOST && !named) continue;
        say_token(k, id, note_of(k, id));
        shown++;
    }
    if (found > shown) say("  and more: %lld in all\n", (long long)found);
    if (!found) say("  none\n");
}

static bool say_text(tg_ctx *ctx, const tg_tokenizer *k, const char *text) {
    tg_ids ids = {0};
    bool good = tg_tokenizer_encode(k, text, strlen(text), TG_ENCODE(.special = true), &ids) == TG_OK || check(ctx);
    if (good) say("%lld token%s:\n", (long long)ids.count, plural(ids.count));
    for (int64_t i = 0; good && i < ids.count; i++) say_token(k, ids.ids[i], "");
    tg_ids_free(&ids);
    return good;
}

int show_tokenizer(const char *path, const char *text) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tokenizer *k = tg_tokenizer_load(ctx, path);
    bool good = check(ctx);
    if (good && text) good = say_text(ctx, k, text);
    if (good && !text) {
        say("%lld ids%s\n", (long long)tg_tokenizer_size(k),
            tg_tokenizer_chat_template(k) ? ", with a chat template" : "");
        say_special(k);
    }
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    return good ? 0 : 1;
}
