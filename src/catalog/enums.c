/* The enums that are arguments of ops, with the names of their values. */
#include <string.h>
#include <tapegrad/fields.h>
#include <tapegrad/ops.h>

#include "core/context.h"

static const tg_enum_value reductions[] = {TG_ENUM_VALUE(TG_LOSS_MEAN), TG_ENUM_VALUE(TG_LOSS_SUM),
                                           TG_ENUM_VALUE(TG_LOSS_NONE), TG_ENUM_VALUE(TG_LOSS_BATCH_MEAN)};
static const tg_enum_value smoothings[] = {TG_ENUM_VALUE(TG_SMOOTHING_TORCH), TG_ENUM_VALUE(TG_SMOOTHING_MEGATRON),
                                           TG_ENUM_VALUE(TG_SMOOTHING_MEGATRON_PARTITION)};
static const tg_enum_value axes[] = {TG_ENUM_VALUE(TG_TP),  TG_ENUM_VALUE(TG_CP), TG_ENUM_VALUE(TG_DP),
                                     TG_ENUM_VALUE(TG_PP),  TG_ENUM_VALUE(TG_ETP), TG_ENUM_VALUE(TG_EP),
                                     TG_ENUM_VALUE(TG_EDP), TG_ENUM_VALUE(TG_AXIS_USER)};

static const tg_enum table[] = {
    {"tg_loss_reduction", "TG_LOSS_", TG_LEN(reductions), reductions},
    {"tg_smoothing", "TG_SMOOTHING_", TG_LEN(smoothings), smoothings},
    {"tg_axis", "TG_", TG_LEN(axes), axes},
};

const tg_enum *tg_enum_find(const char *name) {
    for (int i = 0; name && i < TG_LEN(table); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}
