/* The struct of options of context parallelism. */
#include <tapegrad/context_parallel.h>

#include "base/options.h"

static const tg_enum_value kind_values[] = {TG_ENUM_VALUE(TG_CP_RING), TG_ENUM_VALUE(TG_CP_GATHER),
                                            TG_ENUM_VALUE(TG_CP_ULYSSES), TG_ENUM_VALUE(TG_CP_HIERARCHY)};
const tg_enum tg_cp_kind_enum = TG_ENUM(tg_cp_kind, "TG_CP_", kind_values);

static const tg_field context_fields[] = {
    TG_FIELD_OF(tg_context_attention_opts, kind, ENUM, "tg_cp_kind", "How ranks exchange keys and values."),
    TG_FIELD(tg_context_attention_opts, inner, INT,
             "TG_CP_HIERARCHY: number of neighboring ranks that exchange heads, 1 or more; TG_AUTO: all."),
    TG_FIELD(tg_context_attention_opts, causal, BOOL, "Query i attends only to keys up to its own position."),
    TG_FIELD(tg_context_attention_opts, scale, DOUBLE, "Factor of the scores, 0 or more; TG_AUTO: 1 / sqrt(dk)."),
    TG_FIELD(tg_context_attention_opts, dropout, DOUBLE, "Probability of dropout of the attention weights, in [0, 1)."),
    TG_FIELD(tg_context_attention_opts, softcap, DOUBLE, "Smooth bound of the scores, greater than 0; TG_NONE: none."),
    TG_FIELD(tg_context_attention_opts, left, INT64,
             "Keys before its own position to which a query attends, 0 or more; TG_NONE: all."),
    TG_FIELD(tg_context_attention_opts, sink, TENSOR,
             "One more logit for each head in the denominator of each softmax."),
    TG_FIELD(tg_context_attention_opts, starts, TENSOR, "First rows of the sequences that are packed into one."),
    TG_FIELD(tg_context_attention_opts, cut_as_one, BOOL,
             "Packed sequences are cut as if they were one, so that their lengths are free."),
};
const tg_struct tg_context_attention_opts_struct =
    TG_STRUCT(tg_context_attention_opts, CONTEXT_ATTENTION, context_fields, "Options of tg_context_attention.");
