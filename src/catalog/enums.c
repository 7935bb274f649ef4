/* The enums that are arguments of ops. tg_enum_find, which knows all enums, cannot be called here, because it belongs
 * to a higher layer. */
#include "base/options.h"
#include "catalog/values.h"

const tg_enum *tg_argument_enum(const char *name) {
    static const tg_enum *const all[] = {&tg_loss_reduction_enum, &tg_smoothing_enum, &tg_grid_mode_enum,
                                        &tg_grid_padding_enum, &tg_bag_mode_enum, &tg_axis_enum,
                                        &tg_rope_kind_enum};
    for (int i = 0; name && i < TG_LEN(all); i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}
