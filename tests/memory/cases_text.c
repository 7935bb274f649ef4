/* Text: tokenizers of every kind of file, their training, and chat templates. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <tapegrad/template.h>
#include <tapegrad/tokenizer.h>

#include "memory/faults.h"
#include "unit/tokenizer_files.h"

typedef struct text {
    tg_tokenizer *k;
    tg_bpe *bpe;
    tg_template *t;
    tg_ids ids;
    char said[2048];
    size_t n;
} text;

static const char sample[] = "abc ab [X] caf\xc3\xa9 bc  abab\n12 words and words again";

static void close_text(trial *r) {
    text *d = r->state;
    tg_ids_free(&d->ids);
    tg_bpe_free(d->bpe);
    tg_tokenizer_free(d->k);
    tg_template_free(d->t);
}

static void note_text(trial *r) {
    text *d = r->state;
    note_bytes(r, d->ids.ids, (size_t)d->ids.count * sizeof *d->ids.ids);
    note_bytes(r, d->said, d->n);
}

/* Appends a piece of text. */
static void say(text *d, const char *piece, size_t n) {
    if (!piece || d->n + n > sizeof d->said) return;
    memcpy(d->said + d->n, piece, n);
    d->n += n;
}

/* Encodes the sample, and decodes its ids. A decoder that lacks memory returns NULL, without an error. */
static void there_and_back(trial *r) {
    text *d = r->state;
    size_t n;
    tg_ids_free(&d->ids);
    d->n = 0;
    tg_tokenizer_encode(d->k, sample, sizeof sample - 1, TG_ENCODE(.special = true), &d->ids);
    tg_decoder *decoder = tg_decoder_new(d->k, false);
    for (int64_t i = 0; i <= d->ids.count && tg_ctx_status(r->ctx) == TG_OK; i++) {
        const char *piece = i < d->ids.count ? tg_decoder_push(decoder, d->ids.ids[i], &n)
                                             : tg_decoder_finish(decoder, &n);
        if (!piece) tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for a piece of text");
        say(d, piece, n);
    }
    tg_decoder_free(decoder);
}

/* ---- Tokenizers ---- */

#define SPLIT                                                                                                        \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "                   \
    "\"[^ ]+| +\"}, \"behavior\": \"Isolated\", \"invert\": false}, "                                                  \
    "{\"type\": \"Digits\", \"individual_digits\": true}]}"
#define BYTE_LEVEL FILE_OF(MODEL, ADDED, "{\"type\": \"NFKC\"}", SPLIT, "null", DECODER)

static const struct {
    const char *name, *file;
} tokenizers[] = {{"bytes", NULL}, {"SentencePiece", SENTENCE_PIECE}, {"patterns", BYTE_LEVEL}};

static const char *tokenizer_name(int i) { return i < 3 ? tokenizers[i].name : NULL; }

static void open_tokenizer(trial *r) {
    text *d = r->state;
    for (int i = 1; i < 3; i++)
        if (!strcmp(r->name, tokenizers[i].name)) {
            tg_file_save(r->ctx, in_dir(r, "tokenizer.json"), tokenizers[i].file, strlen(tokenizers[i].file));
            d->k = tg_tokenizer_load(r->ctx, r->dir);
        }
    if (!strcmp(r->name, "bytes")) d->k = tg_tokenizer_new_bytes(r->ctx);
}

/* ---- Training ---- */

static void open_training(trial *r) {
    text *d = r->state;
    d->bpe = tg_bpe_new(r->ctx, TG_BPE(.vocab = 270, .min_frequency = 1));
}

static void step_training(trial *r) {
    text *d = r->state;
    tg_bpe_free(d->bpe);
    d->bpe = tg_bpe_new(r->ctx, TG_BPE(.vocab = 270, .min_frequency = 1));
    for (int i = 0; i < 2; i++) tg_bpe_add(d->bpe, sample, sizeof sample - 1);
    tg_bpe_save(d->bpe, r->dir, NULL, NULL);
    tg_tokenizer_free(d->k);
    d->k = tg_tokenizer_load(r->ctx, r->dir);
    there_and_back(r);
}

/* ---- Templates ---- */

static const char *const templates[] = {"chatml", "llama3", "mistral", "qwen3"};

static const char *template_name(int i) { return i < 4 ? templates[i] : NULL; }

static void open_template(trial *r) {
    char path[128], source[1 << 15];
    snprintf(path, sizeof path, "tests/text/templates/%s.jinja", r->name);
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, source, sizeof source - 1);
    close(fd);
    source[n > 0 ? n : 0] = 0;
    ((text *)r->state)->t = tg_template_new(r->ctx, source, r->name);
}

static void step_template(trial *r) {
    text *d = r->state;
    tg_rendered out = {0};
    d->n = 0;
    tg_chat_render(d->t,
                   "[{\"role\": \"user\", \"content\": \"Hello!\"}, {\"role\": \"assistant\", \"content\": \"Hi\"}, "
                   "{\"role\": \"user\", \"content\": \"What is 1 + 1?\"}]",
                   TG_CHAT(.bos = "<s>", .eos = "</s>", .generation_prompt = true, .now = 43200), &out);
    say(d, out.text, out.n_text);
    tg_rendered_free(&out);
}

static const memory_case rows[] = {
    {"tokenizer", tokenizer_name, sizeof(text), false, false, open_tokenizer, there_and_back, note_text, close_text},
    {"training of a tokenizer", NULL, sizeof(text), false, false, open_training, step_training, note_text, close_text},
    {"template", template_name, sizeof(text), false, false, open_template, step_template, note_text, close_text},
};
const memory_cases text_cases = {rows, sizeof rows / sizeof *rows};
