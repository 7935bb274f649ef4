/* Tokenizers: text to token ids and back. A tokenizer is read from the file tokenizer.json that published language
 * models come with. This header also has functions that train a tokenizer and write such a file. docs/tokenizers.md
 * says which tokenizers this library can read.
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
 * and tg_decoder. Free a tokenizer after its decoders and before its context. All functions accept NULL in place of a
 * tokenizer, a decoder or a training: those that find or count return NULL, -1, 0 or false, and those that return a
 * status return TG_ERR_ARGUMENT. Errors are recorded in the context of the tokenizer, unless tg_encode_opts.errors
 * names another one. */
#ifndef TAPEGRAD_TOKENIZER_H
#define TAPEGRAD_TOKENIZER_H

#include <tapegrad/io.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_tokenizer tg_tokenizer;

/* Reads a tokenizer, which tg_tokenizer_free releases. path is a tokenizer.json, or a directory that contains one. In a
 * directory the function also reads tokenizer_config.json, special_tokens_map.json and generation_config.json, which
 * name the tokens that begin and end a text, and config.json if these files lack one of the two. It takes the chat
 * template from chat_template.jinja or, if that is missing, from tokenizer_config.json. Each of these other files may
 * be missing. Returns NULL on an error. Fails with TG_ERR_FORMAT if a file is malformed, and with TG_ERR_UNSUPPORTED if
 * the tokenizer needs something that this library does not know, or if it needs the plugin libtapegrad-text.so and the
 * plugin is not installed. */
TG_API tg_tokenizer *tg_tokenizer_load(tg_ctx *ctx, const char *path);
/* Returns the tokenizer of models that were trained on bytes. It has 256 ids; id b is the byte b. It encodes any bytes,
 * UTF-8 or not. Returns NULL on an error. */
TG_API tg_tokenizer *tg_tokenizer_new_bytes(tg_ctx *ctx);
TG_API void tg_tokenizer_free(tg_tokenizer *k);

/* Returns the size of a table with a row for each id: the greatest id plus 1. */
TG_API int64_t tg_tokenizer_size(const tg_tokenizer *k);
/* Returns the id of a token, which is given as the file writes it; -1 if the tokenizer does not have it. */
TG_API int64_t tg_tokenizer_id(const tg_tokenizer *k, const char *token);
/* Returns the token of an id, as the file has it; NULL if there is none. The string belongs to the tokenizer. Files
 * write bytes as characters, so the string is not always the text that the token stands for. tg_decoder_push gives that
 * text. */
TG_API const char *tg_tokenizer_token(const tg_tokenizer *k, int64_t id);
/* Returns whether the file marks the token of this id as special. Special tokens stand for no text; one example is the
 * token that ends a text. */
TG_API bool tg_tokenizer_is_special(const tg_tokenizer *k, int64_t id);
/* Returns the id of the token that begins a text; -1 if the files name none, as when only a tokenizer.json was read. */
TG_API int64_t tg_tokenizer_bos(const tg_tokenizer *k);
/* Writes the ids of the tokens that end a text, or an answer of a chat, to ids[n]: at most n of them. ids may be NULL
 * if n is 0. Returns how many there are, 0 to 16, even if that is more than n. If the files name an eos_token, its id
 * is the first one. */
TG_API int tg_tokenizer_ends(const tg_tokenizer *k, int64_t *ids, int n);
/* Returns the Jinja template of a chat (template.h); NULL if the files have none. It belongs to the tokenizer. */
TG_API const char *tg_tokenizer_chat_template(const tg_tokenizer *k);

/* A list of ids that grows. Begin with {0}, and end with tg_ids_free. The memory comes from malloc. */
typedef struct tg_ids {
    int64_t *ids;
    int64_t count, capacity;
} tg_ids;

TG_API void tg_ids_free(tg_ids *ids); /* also empties the list, so that it can be used again; ids may be NULL */

/* Options of an encoding. */
typedef struct tg_encode_opts {
    size_t size;
    bool special; /* add the tokens with which the tokenizer begins and ends a text; false by default */
    /* false, the default: a special token that is written in the text becomes its id. true: it is encoded as ordinary
     * characters. */
    bool literal;
    /* The context that records errors. A thread must give a context of its own here if another thread may use the
     * tokenizer's context at the same time. NULL, the default, means the tokenizer's context. */
    tg_ctx *errors;
} tg_encode_opts;

#define TG_ENCODE_DEFAULTS .size = sizeof(tg_encode_opts)
#define TG_ENCODE(...)     (&(tg_encode_opts){TG_ENCODE_DEFAULTS, __VA_ARGS__})

/* Appends the ids of n bytes of text to out. text may be NULL if n is 0. opts may be NULL. Text that is not UTF-8 fails
 * with TG_ERR_DATA, except with the tokenizer of tg_tokenizer_new_bytes; the message has the offset of the first wrong
 * byte. Text that the tokenizer cannot encode fails with TG_ERR_UNSUPPORTED. On an error out has the same ids as
 * before. */
TG_API tg_status tg_tokenizer_encode(const tg_tokenizer *k, const char *text, size_t n, const tg_encode_opts *opts,
                                     tg_ids *out);

/* A stream of ids that becomes text, piece by piece. All pieces together are the text that the library `tokenizers`
 * decodes from all ids together. Each piece is valid UTF-8: bytes that form no character become U+FFFD, as in that
 * library. */
typedef struct tg_decoder tg_decoder;

/* Begins a stream. If skip_special is true, special tokens give no text; otherwise they give their text in the file.
 * The decoder uses k, and must be freed before k. Returns NULL on an error, or if k is NULL. The call reads the
 * tokenizer's context, so make it on a thread that may use that context. */
TG_API tg_decoder *tg_decoder_new(const tg_tokenizer *k, bool skip_special);
/* Returns the text that became certain with this id, and sets *n to its length in bytes, which may be 0. The text
 * belongs to the decoder, ends with a zero byte, and is valid until the next call for this decoder. An id that the
 * tokenizer does not have gives no text. If d is NULL or there is no memory, returns NULL, sets *n to 0, and records no
 * error. n may be NULL. */
TG_API const char *tg_decoder_push(tg_decoder *d, int64_t id, size_t *n);
/* Ends the text, and returns its rest like tg_decoder_push. The next id begins a new text. */
TG_API const char *tg_decoder_finish(tg_decoder *d, size_t *n);
TG_API void tg_decoder_free(tg_decoder *d);

/* ---- Training ---- */

/* Options of the training of a byte-level BPE. */
typedef struct tg_bpe_opts {
    size_t size;
    /* Number of ids to be reached, 257 to 2^31 - 1; 32000 by default. The 256 bytes and the special tokens count. There
     * are fewer ids if no more pairs can be merged, and more if the special tokens alone need more. */
    int64_t vocab;
    int64_t min_frequency; /* a pair that is rarer is not merged; 0 or more, 2 by default */
    /* A merged token has fewer bytes than this, as in `tokenizers`, but may always have 2 bytes. 2 or more. TG_NONE,
     * the default, means no limit. */
    int64_t max_length;
    /* A regular expression that matches a word, as tokenizer files have it (docs/tokenizers.md); not "". Merges take
     * place only within words. NULL, the default, means the expression of GPT-2. */
    const char *pattern;
    /* The special tokens, one a line; the first one ends a text. "<|endoftext|>" by default. NULL or "" means that
     * there are none. */
    const char *special;
} tg_bpe_opts;

#define TG_BPE_DEFAULTS                                                                                                \
    .size = sizeof(tg_bpe_opts), .vocab = 32000, .min_frequency = 2, .max_length = TG_NONE, .special = "<|endoftext|>"
#define TG_BPE(...) (&(tg_bpe_opts){TG_BPE_DEFAULTS, __VA_ARGS__})

/* The training of a byte-level BPE: byte pair encoding (Sennrich, Haddow and Birch, ACL 2016) over bytes (Radford et
 * al., 2019). The result is that of BpeTrainer of the library `tokenizers`, also where pairs are equally frequent. */
typedef struct tg_bpe tg_bpe;

/* Begins a training. opts may be NULL; its texts are copied. Needs the plugin libtapegrad-text.so (TG_ERR_UNSUPPORTED).
 * Returns NULL on an error. Free the training before the context. */
TG_API tg_bpe *tg_bpe_new(tg_ctx *ctx, const tg_bpe_opts *opts);
/* Counts the words of a text of n bytes. A word does not go on in the text of the next call. text may be NULL if n is
 * 0. Text that is not UTF-8 fails with TG_ERR_DATA, and nothing is counted. Text that is too difficult for the pattern
 * fails with TG_ERR_UNSUPPORTED; the words before it may have been counted. */
TG_API tg_status tg_bpe_add(tg_bpe *b, const char *text, size_t n);
/* A function of the caller that tg_bpe_save calls after each merge. ids is the number of ids so far, and vocab the
 * number to be reached (tg_bpe_opts). */
typedef void (*tg_bpe_progress_fn)(void *user, int64_t ids, int64_t vocab);
/* Merges the most frequent pairs, and writes tokenizer.json and tokenizer_config.json to a directory, which must exist.
 * Replaces older files of these names. progress may be NULL; user is its first argument. The counts of words are kept,
 * so a program may add more text and call tg_bpe_save again. */
TG_API tg_status tg_bpe_save(tg_bpe *b, const char *directory, tg_bpe_progress_fn progress, void *user);
TG_API int64_t tg_bpe_words(const tg_bpe *b); /* Returns the number of different words so far; 0 if b is NULL. */
TG_API void tg_bpe_free(tg_bpe *b);

#ifdef __cplusplus
}
#endif

#endif
