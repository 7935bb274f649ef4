/* A tokenizer in memory, and the functions that the files of this folder share. Text goes through a tokenizer in this
 * order: added tokens are cut out (added.c), the rest is normalized (normalize.c), further added tokens are cut out of
 * the normalized text (added.c), the rest is cut into words (split.c), and each word becomes ids (word.c). decode.c
 * turns ids into text. */
#ifndef TG_TEXT_TOKENIZER_H
#define TG_TEXT_TOKENIZER_H

#include <pthread.h>

#include <tapegrad/tokenizer.h>

#include "text/memory.h"
#include "text/patterns.h"

enum { TG_NO_ID = -1, TG_MAX_STEPS = 16, TG_MAX_ENDS = 16 };

/* ---- The model (vocab.c) ---- */

/* The tokens by id, and a hash table of their ids. */
typedef struct tg_vocab {
    tg_span *token;         /* [capacity], by id; at is NULL where there is none */
    int64_t size, capacity; /* size: the greatest id plus 1 */
    int32_t *slots;         /* ids, or TG_NO_ID; [mask + 1] */
    uint64_t mask;
} tg_vocab;

typedef struct tg_merge {
    uint32_t left, right; /* ids; left is UINT32_MAX in an empty slot */
    uint32_t rank, made;  /* merges of lower rank are made first; made: the id of the token that the merge makes */
} tg_merge;

typedef struct tg_model {
    tg_vocab vocab;   /* the model's own tokens, of which some may be added tokens too (tg_added) */
    tg_merge *merges; /* a hash table of [merge_mask + 1] slots */
    uint64_t merge_mask;
    int32_t byte_ids[256];     /* byte-level: the token of each byte, or TG_NO_ID */
    int32_t fallback_ids[256]; /* the tokens <0x00> to <0xFF>, or TG_NO_ID */
    int32_t unknown;           /* the id of characters that become no other tokens; TG_NO_ID: they are left out */
    bool byte_level;           /* words are bytes, which are written as the characters of tg_byte_char */
    bool byte_fallback;        /* a character that the vocabulary lacks becomes its bytes, if all have tokens */
    bool fuse_unknown;         /* neighboring unknown characters are one token */
    bool ignore_merges;        /* a word that is a token is not made by merges */
    bool any_bytes;            /* the tokenizer of tg_tokenizer_new_bytes: text need not be UTF-8 */
} tg_model;

/* Prepares a table for tokens with ids below `size`. */
tg_status tg_vocab_open(tg_vocab *v, tg_pieces *memory, int64_t size);
/* Adds a token whose id is below v->capacity and whose text is new. The text must live as long as v. */
void tg_vocab_add(tg_vocab *v, tg_span token, int32_t id);
int32_t tg_vocab_find(const tg_vocab *v, const char *at, size_t n); /* returns an id, or TG_NO_ID */

/* Prepares a table for `count` merges. */
tg_status tg_merges_open(tg_model *m, tg_pieces *memory, int64_t count);
/* Adds a merge. If the pair has one already, replaces that. */
void tg_merges_add(tg_model *m, tg_merge merge);
/* Returns the merge of two neighbors; NULL if there is none. */
static inline const tg_merge *tg_merges_find(const tg_model *m, uint32_t left, uint32_t right) {
    for (uint64_t i = tg_pair_hash(left, right) & m->merge_mask;; i = (i + 1) & m->merge_mask) {
        const tg_merge *found = m->merges + i;
        if (found->left == left && found->right == right) return found;
        if (found->left == UINT32_MAX) return NULL;
    }
}

/* ---- Added tokens (added.c) ---- */

typedef struct tg_added_token {
    tg_span content, shown; /* shown: what decoding gives; the content, normalized if `normalized` is true */
    int32_t id;
    bool special;
    bool normalized;     /* is sought in normalized text */
    bool single_word;    /* is found only where no character of a word is next to it */
    bool lstrip, rstrip; /* takes the white space before it (lstrip) or after it (rstrip) */
} tg_added_token;

/* A trie of tokens. Node 0 is the root. */
typedef struct tg_trie_node {
    int32_t child, sibling; /* node numbers; 0: none */
    int32_t token;          /* the number of the token that ends here, or -1 */
    unsigned char byte;
} tg_trie_node;

typedef struct tg_trie {
    tg_trie_node *nodes;
    int32_t count;
    int32_t first[256]; /* the node of each first byte; 0: no token begins so */
} tg_trie;

typedef struct tg_added {
    tg_added_token *tokens;
    int32_t count;
    tg_trie raw, normalized; /* tokens that are sought in text as given, and those sought in normalized text */
    tg_pattern *word;        /* matches a character of a word; NULL if no token is single_word */
} tg_added;

/* ---- Steps ---- */

typedef enum tg_normal_kind { TG_NORMAL_FORM, TG_NORMAL_PREPEND, TG_NORMAL_REPLACE, TG_NORMAL_STRIP } tg_normal_kind;

/* A step of the normalizer. */
typedef struct tg_normal_step {
    tg_normal_kind kind;
    tg_normal_form form;     /* FORM */
    tg_span sought, content; /* REPLACE: content replaces `sought`, or matches; PREPEND: content is put before text */
    tg_pattern *pattern;     /* REPLACE; NULL: `sought` is replaced */
    bool left, right;        /* STRIP: at which ends */
} tg_normal_step;

typedef enum tg_split_kind {
    TG_SPLIT_PATTERN, /* cuts at matches */
    TG_SPLIT_SPACE,   /* puts a space before text that does not begin with one */
    TG_SPLIT_META,    /* Metaspace: spaces become a mark, before which text may be cut */
    TG_SPLIT_MARKS,   /* cuts before marks where that changes no ids (load_complete.c) */
} tg_split_kind;
typedef enum tg_behavior {
    TG_CUT_REMOVED,
    TG_CUT_ISOLATED,
    TG_CUT_WITH_PREVIOUS,
    TG_CUT_WITH_NEXT,
    TG_CUT_CONTIGUOUS,
} tg_behavior;
typedef enum tg_prepend { TG_PREPEND_ALWAYS, TG_PREPEND_FIRST, TG_PREPEND_NEVER } tg_prepend;

/* A step of the pre-tokenizer. */
typedef struct tg_split_step {
    tg_split_kind kind;
    tg_behavior behavior; /* PATTERN: what becomes of matches of the pattern, or of the text `sought` */
    bool invert;          /* PATTERN: matches and the parts between them change roles */
    tg_pattern *pattern;  /* PATTERN; NULL: `sought` is searched for */
    tg_span sought;       /* PATTERN: a text; META: the character that replaces spaces; MARKS: the mark */
    tg_prepend prepend;   /* META: whether the text gets a mark at its beginning */
    bool splits;          /* META: text is cut before marks */
    const bool *joins; /* MARKS: [256], whether a merge may join a mark to a text before it that ends with this byte */
} tg_split_step;

typedef enum tg_decode_kind {
    TG_DECODE_REPLACE,
    TG_DECODE_FALLBACK, /* <0x0A> is a byte */
    TG_DECODE_META,     /* marks become spaces */
    TG_DECODE_STRIP,    /* removes a character at the ends */
    TG_DECODE_BYTES,    /* byte-level: characters become the bytes for which they stand */
    TG_DECODE_FUSE,     /* joins all tokens */
    TG_DECODE_SPACES,   /* there is no decoder: spaces between tokens */
} tg_decode_kind;

/* A step of the decoder. */
typedef struct tg_decode_step {
    tg_decode_kind kind;
    tg_span sought, content; /* REPLACE; STRIP and META: the character `sought` */
    int64_t left, right;     /* STRIP: the most characters that are removed at the beginning and at the end */
    bool drops_first;        /* META: marks of the first token give nothing */
    bool joined;             /* a step before this one has joined all tokens */
} tg_decode_step;

struct tg_encoder;

struct tg_tokenizer {
    tg_pieces memory;
    tg_ctx *ctx;
    const char *path; /* names the tokenizer in messages */
    tg_model model;
    tg_added added;
    tg_span *shown; /* [size]: what is decoded from each id */
    bool *special;  /* [size] */
    int64_t size;
    tg_normal_step normal[TG_MAX_STEPS];
    tg_split_step split[TG_MAX_STEPS];
    tg_decode_step decode[TG_MAX_STEPS];
    int n_normal, n_split, n_decode;
    int64_t *before, *after; /* ids that the post-processor adds */
    int n_before, n_after;
    int64_t bos, ends[TG_MAX_ENDS]; /* ids that begin and end a text; bos: TG_NO_ID if there is none */
    int n_ends;
    const char *chat_template;
    const tg_text_plugin_table *functions;      /* of the plugin; NULL if nothing needs them */
    tg_pattern *patterns[2 * TG_MAX_STEPS + 1]; /* at most one of each step that has any, and added.word */
    int n_patterns;
    pthread_mutex_t lock;    /* of the list below */
    struct tg_encoder *idle; /* encoders that no thread uses */
};

/* ---- Loading ---- */

/* Creates an empty tokenizer. Messages name it by `path`. Returns NULL after recording an error. */
tg_tokenizer *tg_tokenizer_make(tg_ctx *ctx, const char *path);
/* Compiles a pattern that the tokenizer keeps. is_ours: the text is in PCRE2's syntax already. */
tg_status tg_tokenizer_pattern(tg_tokenizer *k, const char *text, size_t n, bool is_ours, tg_pattern **out);
/* Appends the step of the pre-tokenizer ByteLevel that splits: by an expression of Oniguruma, or by that of GPT-2 if
 * pattern is NULL. */
tg_status tg_tokenizer_split_bytes(tg_tokenizer *k, const char *pattern);
/* Loads the plugin, unless it is loaded. */
tg_status tg_tokenizer_needs_functions(tg_tokenizer *k);
/* Makes the tables by id of a tokenizer whose model, steps and added tokens are set. */
tg_status tg_tokenizer_finish(tg_tokenizer *k);

/* Adds tokens to the model's. Their ids are set here: a token that the model has keeps the model's. */
tg_status tg_added_open(tg_tokenizer *k, tg_added_token *tokens, int32_t count);

/* ---- Encoding ---- */

/* What one thread needs to encode. */
typedef struct tg_encoder {
    struct tg_encoder *next;
    const tg_tokenizer *k;
    tg_matcher *matcher;
    tg_growing buffers[2];          /* of the normalizer */
    tg_growing texts[TG_MAX_STEPS]; /* of each step of the pre-tokenizer that changes text */
    struct tg_word_memory *words;
    bool (*word)(struct tg_encoder *e, tg_span word); /* gets each word */
    void *user;                                       /* for `word` */
    tg_ids *out;
    bool literal;        /* special tokens in the text are ordinary characters */
    const char *problem; /* what went wrong; NULL: no memory */
} tg_encoder;

/* A function that returns false has set e->problem, or has run out of memory. */

/* Metaspace may put a mark only before what comes from the first character of the whole text, as in the library
 * tokenizers. What comes from that character is called the head of a text: its first `head` bytes, none if the text
 * begins later in the whole text. The head grows with text that is put before it. If a text is cut, the head may be
 * longer than the first part. */

/* Returns the head of the rest of a text, which begins at `begin`. */
static inline size_t tg_head_after(size_t head, size_t begin) { return head > begin ? head - begin : 0; }

/* Normalizes text, and sets *head to what its head becomes: 0 if the first character was removed. The result is in the
 * encoder's buffers or is a part of the given text, and is valid until the next call. */
bool tg_normalize_text(tg_encoder *e, tg_span text, tg_span *out, size_t *head);
/* Cuts normalized text into words, from step `step` on, and calls e->word for each. */
bool tg_cut_words(tg_encoder *e, int step, tg_span text, size_t head);
/* Appends the ids of a word. */
bool tg_word_encode(tg_encoder *e, tg_span word);
struct tg_word_memory *tg_word_memory_new(void);
void tg_word_memory_free(struct tg_word_memory *w);
tg_encoder *tg_encoder_new(const tg_tokenizer *k); /* NULL: no memory */
void tg_encoder_free(tg_encoder *e);
bool tg_ids_add(tg_ids *out, int64_t id);

/* Cuts added tokens out of text: calls rest for the text between them, and appends their ids. literal: special tokens
 * are not cut out. */
typedef bool tg_rest_fn(tg_encoder *e, tg_span text, size_t head);
bool tg_added_cut(tg_encoder *e, const tg_trie *trie, tg_span text, size_t head, bool literal, tg_rest_fn *rest);

/* Returns the offset of the first place of `sought`, which is not empty, at `from` or later; n if there is none. */
size_t tg_find_text(const char *text, size_t n, size_t from, tg_span sought);

#endif
