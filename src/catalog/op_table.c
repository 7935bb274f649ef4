/* The table of all ops, joined from the lists of the layers that define ops. */
#include <string.h>
#include <tapegrad/op.h>

#include "core/context.h"

#define TG_OP(name) extern const tg_op tg_op_##name;
#include "ops/op_list.h"
#include "parallel/op_list.h"
#undef TG_OP

static const tg_op *const table[] = {
#define TG_OP(name) &tg_op_##name,
#include "ops/op_list.h"
#include "parallel/op_list.h"
#undef TG_OP
};

int tg_op_count(void) { return TG_LEN(table); }
const tg_op *tg_op_at(int i) { return i >= 0 && i < TG_LEN(table) ? table[i] : NULL; }

const tg_op *tg_op_find(const char *name) {
    for (int i = 0; name && i < TG_LEN(table); i++)
        if (strcmp(table[i]->name, name) == 0 || (table[i]->alias && strcmp(table[i]->alias, name) == 0))
            return table[i];
    return NULL;
}
