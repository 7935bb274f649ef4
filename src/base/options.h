/* Reading the caller's structs of options, and describing them. Each folder describes the structs that it owns in its
 * file options.c; src/options joins them to one table. */
#ifndef TG_OPTIONS_H
#define TG_OPTIONS_H

#include <tapegrad/fields.h>
#include <tapegrad/options_list.h>

#include "base/runtime.h"

/* The description of each struct in TG_OPTIONS_LIST. That of tg_sgd_opts is tg_sgd_opts_struct. */
#define TG_X(S, MACRO) extern const tg_struct S##_struct;
TG_OPTIONS_LIST(TG_X)
#undef TG_X

/* The list of the enums that fields of these structs have, and the description of each. That of tg_decay is
 * tg_decay_enum. */
#define TG_ENUM_LIST(X)  \
    X(tg_loss_reduction) \
    X(tg_smoothing)      \
    X(tg_rope_kind)      \
    X(tg_grid_mode)      \
    X(tg_grid_padding)   \
    X(tg_bag_mode)       \
    X(tg_init_kind)      \
    X(tg_init_fan)       \
    X(tg_decay)          \
    X(tg_wsd)            \
    X(tg_muon_scale)     \
    X(tg_rng_mode)       \
    X(tg_axis)           \
    X(tg_mlp_activation) \
    X(tg_symmetric_ar)   \
    X(tg_cp_kind)        \
    X(tg_pipe_kind)      \
    X(tg_gpt_arch)       \
    X(tg_gpt_recompute)  \
    X(tg_gpt_wgrad)      \
    X(tg_lm_norm)        \
    X(tg_lm_norm_place)  \
    X(tg_lm_qk_norm)     \
    X(tg_lm_activation)  \
    X(tg_lm_positions)   \
    X(tg_lm_backend)
#define TG_X(E) extern const tg_enum E##_enum;
TG_ENUM_LIST(TG_X)
#undef TG_X

/* Initializes the description of the struct S, whose macro is TG_<MACRO>. fields_ is an array. */
#define TG_STRUCT(S, MACRO, fields_, doc_)                                                 \
    {.name = #S, .size = sizeof(S), .n_fields = TG_LEN(fields_), .fields = fields_,         \
     .defaults = &(const S){TG_##MACRO##_DEFAULTS}, .doc = doc_}
/* Initializes the description of the enum E from an array of its values. */
#define TG_ENUM(E, prefix_, values_) \
    {.name = #E, .prefix = prefix_, .n_values = TG_LEN(values_), .values = values_}

/* Copies the caller's struct `from` to `to`, a whole struct s. Fields that `from` does not have, because it is of an
 * earlier version or NULL, get their defaults. If the size in `from` is invalid (tg_size_check), all fields do. */
void tg_options_complete(void *to, const tg_struct *s, const void *from);
/* Does the same, and fails if the size in `from` was not set or is larger than that of s. The message begins with
 * `who`. */
tg_status tg_options(tg_ctx *ctx, void *to, const tg_struct *s, const void *from, const char *who);
/* Copies a whole struct, into which a call has written results, back to the caller's struct `to`: the fields that `to`
 * has according to its size. */
void tg_options_give(void *to, const void *from);

#endif
