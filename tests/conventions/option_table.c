/* Prints the table of structs of options, for option_fields.py. */
#include <stdio.h>

#include <tapegrad/fields.h>

static const char *kind_name(tg_field_kind kind) {
    static const char *const names[] = {
        [TG_FIELD_BOOL] = "BOOL",      [TG_FIELD_INT] = "INT",       [TG_FIELD_INT64] = "INT64",
        [TG_FIELD_UINT64] = "UINT64",  [TG_FIELD_SIZE] = "SIZE",     [TG_FIELD_DOUBLE] = "DOUBLE",
        [TG_FIELD_DTYPE] = "DTYPE",    [TG_FIELD_ENUM] = "ENUM",     [TG_FIELD_TEXT] = "TEXT",
        [TG_FIELD_TENSOR] = "TENSOR",  [TG_FIELD_STRUCT] = "STRUCT", [TG_FIELD_FUNCTION] = "FUNCTION",
        [TG_FIELD_POINTER] = "POINTER"};
    return names[kind];
}

int main(void) {
    for (int i = 0; i < tg_struct_count(); i++) {
        const tg_struct *s = tg_struct_at(i);
        for (const tg_field *f = s->fields; f < s->fields + s->n_fields; f++)
            printf("field %s %s %s %s %d\n", s->name, f->name, kind_name(f->kind), f->of ? f->of : "-", f->count);
    }
    for (int i = 0; i < tg_enum_count(); i++) {
        const tg_enum *e = tg_enum_at(i);
        for (int k = 0; k < e->n_values; k++) printf("value %s %s\n", e->name, e->values[k].name);
    }
    return 0;
}
