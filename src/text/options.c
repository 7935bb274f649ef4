/* The structs of options of tokenizers. */
#include <tapegrad/tokenizer.h>

#include "base/options.h"

static const tg_field encode_fields[] = {
    TG_FIELD(tg_encode_opts, special, BOOL, "Adds what a text begins and ends with."),
    TG_FIELD(tg_encode_opts, literal, BOOL, "Special tokens in the text are ordinary characters."),
    TG_FIELD_OF(tg_encode_opts, errors, POINTER, "tg_ctx", "Records errors; NULL: the tokenizer's context does."),
};
const tg_struct tg_encode_opts_struct = TG_STRUCT(tg_encode_opts, ENCODE, encode_fields, "Options of an encoding.");

static const tg_field bpe_fields[] = {
    TG_FIELD(tg_bpe_opts, vocab, INT64, "Number of ids, 257 or more."),
    TG_FIELD(tg_bpe_opts, min_frequency, INT64, "A pair that is rarer is not merged."),
    TG_FIELD(tg_bpe_opts, max_length, INT64,
             "A merged token of 3 bytes or more has fewer bytes than this; TG_NONE: no limit."),
    TG_FIELD(tg_bpe_opts, pattern, TEXT, "A regular expression that matches a word; NULL: that of GPT-2."),
    TG_FIELD(tg_bpe_opts, special, TEXT, "The special tokens, one a line."),
};
const tg_struct tg_bpe_opts_struct =
    TG_STRUCT(tg_bpe_opts, BPE, bpe_fields, "Options of the training of a byte-level BPE.");
