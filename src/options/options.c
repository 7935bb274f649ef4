/* The table of all structs of options, and of the enums that their fields have. The layers describe them (options.c of
 * each folder). */
#include "base/options.h"

static const tg_struct *const structs[] = {
#define TG_X(S, MACRO) &S##_struct,
    TG_OPTIONS_LIST(TG_X)
#undef TG_X
};

static const tg_enum *const enums[] = {
#define TG_X(E) &E##_enum,
    TG_ENUM_LIST(TG_X)
#undef TG_X
};

int tg_struct_count(void) { return TG_LEN(structs); }

const tg_struct *tg_struct_at(int i) { return i >= 0 && i < TG_LEN(structs) ? structs[i] : NULL; }

const tg_struct *tg_struct_find(const char *name) {
    for (int i = 0; name && i < TG_LEN(structs); i++)
        if (!strcmp(structs[i]->name, name)) return structs[i];
    return NULL;
}

tg_status tg_struct_fill(const char *name, void *s, size_t size) {
    const tg_struct *known = tg_struct_find(name);
    if (!known || !s || size < sizeof size || size > known->size) return TG_ERR_ARGUMENT;
    memcpy(s, known->defaults, size);
    memcpy(s, &size, sizeof size);
    return TG_OK;
}

int tg_enum_count(void) { return TG_LEN(enums); }

const tg_enum *tg_enum_at(int i) { return i >= 0 && i < TG_LEN(enums) ? enums[i] : NULL; }

const tg_enum *tg_enum_find(const char *name) {
    for (int i = 0; name && i < TG_LEN(enums); i++)
        if (!strcmp(enums[i]->name, name)) return enums[i];
    return NULL;
}
