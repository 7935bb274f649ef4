/* Tokenizers: text to token ids and back, by the file tokenizer.json that published language models come with, and the
 * training of such a file. docs/tokenizers.md says which tokenizers are read.
 *
 *     tg_tokenizer *k = tg_tokenizer_load(ctx, "smollm");
 *     tg_ids ids = {0};
 *     tg_tokenizer_encode(k, text, strlen(text), TG_ENCODE(.special = true), &ids);
 *     ...
 *     tg_ids_free(&ids);
 *     tg_tokenizer_free(k);
 *
 * Ids and texts are those of Hugging Face's library `tokenizers` for the same file. A file that has something that this
 * library does not know is refused with TG_ERR_UNSUPPORTED, and the message names it.
 *
 * Text is UTF-8 with a length: it may contain zero bytes.
 *
 * A loaded tokenizer does not change. Several threads may use one tokenizer at the same time, each with its own tg_ids
 * and tg_decoder. Free it before its context is freed. All functions accept NULL in place of a tokenizer: those that
 * find or count return NULL, -1 or 0. Errors are recorded in the context. */
#ifndef TAPEGRAD_TOKENIZER_H
#define TAPEGRAD_TOKENIZER_H

#include <tapegrad/io.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_tokenizer tg_tokenizer;

/* Reads a tokenizer. path is a tokenizer.json, or a directory that contains one. Of a directory the function also reads
 * tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json, for the tokens that begin and
 * end a text, and chat_template.jinja; each of them may be missing. Returns NULL on error: TG_ERR_FORMAT if a file is
 * malformed, TG_ERR_UNSUPPORTED if it needs what this library does not know, or the plugin libtapegrad-text.so, which
 * is not installed. */
TG_API tg_tokenizer *tg_tokenizer_load(tg_ctx *ctx, const char *path);
/* Returns the tokenizer of models that were trained on bytes: 256 ids, each a byte. It encodes any bytes, UTF-8 or not.
 * NULL on error. */
TG_API tg_tokenizer *tg_tokenizer_new_bytes(tg_ctx *ctx);
TG_API void tg_tokenizer_free(tg_tokenizer *k);

/* Returns the size of a table with a row for each id: the greatest id plus 1. */
TG_API int64_t tg_tokenizer_size(const tg_tokenizer *k);
/* Returns the id of a token, written as in the file; -1 if there is none. */
TG_API int64_t tg_tokenizer_id(const tg_tokenizer *k, const char *token);
/* Returns the token of an id, as the file has it; NULL if there is none. It belongs to the tokenizer. Files write bytes
 * as characters, so it is not always the text of the token, which tg_decoder_push gives. */
TG_API const char *tg_tokenizer_token(const tg_tokenizer *k, int64_t id);
/* Returns whether the id is that of a special token: one that stands for no text, such as the end of a text. */
TG_API bool tg_tokenizer_is_special(const tg_tokenizer *k, int64_t id);
/* Returns the id of the token that begins a text; -1 if the files name none. */
TG_API int64_t tg_tokenizer_bos(const tg_tokenizer *k);
/* Writes the ids of the tokens that end a text, or an answer of a chat, to ids[n]: at most n of them. ids may be NULL
 * if n is 0. Returns their number, also where it is larger than n. The first one is the tokenizer's eos_token, if it
 * has one. */
TG_API int tg_tokenizer_ends(const tg_tokenizer *k, int64_t *ids, int n);
/* Returns the Jinja template of a chat, which belongs to the tokenizer; NULL if the files have none. */
TG_API const char *tg_tokenizer_chat_template(const tg_tokenizer *k);

/* A list of ids that grows. Begin with {0}, and end with tg_ids_free. The memory is malloc's. */
typedef struct tg_ids {
    int64_t *ids;
    int64_t count, capacity;
} tg_ids;

TG_API void tg_ids_free(tg_ids *ids); /* also empties it, so that it can be used again */

/* Options of an encoding. */
typedef struct tg_encode_opts {
    size_t size;
    bool special; /* adds the tokens with which the file begins and ends a text; false by default */
    bool literal; /* special tokens in the text are ordinary characters; false by default */
    /* Records errors. A thread must give a context of its own here if another thread may use the tokenizer's context at
     * the same time. NULL, the default, means the tokenizer's context. */
    tg_ctx *errors;
} tg_encode_opts;

#define TG_ENCODE_DEFAULTS .size = sizeof(tg_encode_opts)
#define TG_ENCODE(...)     (&(tg_encode_opts){TG_ENCODE_DEFAULTS, __VA_ARGS__})

/* Appends the ids of n bytes of text to out. text may be NULL if n is 0. Text that is not UTF-8 fails with TG_ERR_DATA,
 * and the message has the offset of the first wrong byte. On an error out is as before. */
TG_API tg_status tg_tokenizer_encode(const tg_tokenizer *k, const char *text, size_t n, const tg_encode_opts *opts,
                                     tg_ids *out);

/* A stream of ids that becomes text. All pieces together are what the library `tokenizers` decodes from all ids
 * together. Each piece is valid UTF-8: bytes that form no character become U+FFFD, as there. */
typedef struct tg_decoder tg_decoder;

/* Begins a stream. skip_special: special tokens give no text. The decoder uses k, and must be freed before it. Returns
 * NULL if there is no memory, which is recorded in the tokenizer's context, or if k is NULL. */
TG_API tg_decoder *tg_decoder_new(const tg_tokenizer *k, bool skip_special);
/* Returns the text that is certain after this id, and sets *n to its length in bytes, which may be 0. The text belongs
 * to the decoder, ends with a zero byte, and is valid until the next call. An id that the tokenizer does not have gives
 * no text. Returns NULL if d is NULL or there is no memory, and *n is then 0. n may be NULL. */
TG_API const char *tg_decoder_push(tg_decoder *d, int64_t id, size_t *n);
/* Returns the rest of the text, as tg_decoder_push does. After that the decoder begins a new text. */
TG_API const char *tg_decoder_finish(tg_decoder *d, size_t *n);
TG_API void tg_decoder_free(tg_decoder *d);

/* ---- Training ---- */

/* Options of the training of a byte-level BPE. */
typedef struct tg_bpe_opts {
    size_t size;
    int64_t vocab;         /* number of ids, with the 256 bytes and the special tokens; 32000 by default */
    int64_t min_frequency; /* a pair that is rarer is not merged; 2 by default */
    /* A merged token of 3 bytes or more has fewer bytes than this, as in `tokenizers`. 2 or more; TG_NONE, the default:
     * no limit. */
    int64_t max_length;
    /* Separates words, within which merges take place: a regular expression that matches a word. NULL, the default, is
     * that of GPT-2. */
    const char *pattern;
    const char *special; /* the special tokens, one a line; the first one ends a text. "<|endoftext|>" by default */
} tg_bpe_opts;

#define TG_BPE_DEFAULTS                                                                                                \
    .size = sizeof(tg_bpe_opts), .vocab = 32000, .min_frequency = 2, .max_length = TG_NONE, .special = "<|endoftext|>"
#define TG_BPE(...) (&(tg_bpe_opts){TG_BPE_DEFAULTS, __VA_ARGS__})

/* The training of a byte-level BPE: byte pair encoding (Sennrich, Haddow and Birch, ACL 2016) over bytes (Radford et
 * al., 2019). The result is that of BpeTrainer of the library `tokenizers`, also where pairs are equally frequent. */
typedef struct tg_bpe tg_bpe;

/* Begins a training. Needs plugin libtapegrad-text.so. Returns NULL on error. */
TG_API tg_bpe *tg_bpe_new(tg_ctx *ctx, const tg_bpe_opts *opts);
/* Counts the words of a text. Text that is not UTF-8 fails with TG_ERR_DATA. */
TG_API tg_status tg_bpe_add(tg_bpe *b, const char *text, size_t n);
/* A function of the caller that gets the number of ids so far. vocab is the number to be reached. */
typedef void (*tg_bpe_progress_fn)(void *user, int64_t ids, int64_t vocab);
/* Merges the most frequent pairs, and writes tokenizer.json and tokenizer_config.json to a directory that exists. Calls
 * progress after each merge, unless it is NULL. The counts are kept: more text may be added, and tg_bpe_save called
 * again. */
TG_API tg_status tg_bpe_save(tg_bpe *b, const char *directory, tg_bpe_progress_fn progress, void *user);
TG_API int64_t tg_bpe_words(const tg_bpe *b); /* Returns the number of different words so far; 0 if b is NULL. */
TG_API void tg_bpe_free(tg_bpe *b);

#ifdef __cplusplus
}
#endif

#endif
