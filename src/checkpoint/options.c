/* The structs of options of the functions that save and load. */
#include <tapegrad/checkpoint.h>

#include "base/options.h"

static const tg_field load_fields[] = {
    TG_FIELD(tg_load_opts, partial, BOOL, "Keys that are missing or unknown are reported, not refused."),
    TG_FIELD(tg_load_opts, convert, BOOL, "Floats of another dtype are converted."),
    TG_FIELD(tg_load_opts, prefix, TEXT, "What the keys begin with; NULL: nothing."),
    TG_FIELD_OF(tg_load_opts, report, POINTER, "char", "Memory for a report; NULL: none."),
    TG_FIELD(tg_load_opts, report_size, SIZE, "Bytes of report."),
    TG_FIELD(tg_load_opts, missing, INT, "Set by the call: number of tensors that the file lacks."),
    TG_FIELD(tg_load_opts, unknown, INT, "Set by the call: number of keys that the module lacks."),
};
const tg_struct tg_load_opts_struct =
    TG_STRUCT(tg_load_opts, LOAD, load_fields, "Options and results of tg_module_load.");

static const tg_field save_fields[] = {
    TG_FIELD(tg_save_opts, background, BOOL, "Copies the bytes and returns; a thread writes them."),
};
const tg_struct tg_save_opts_struct = TG_STRUCT(tg_save_opts, SAVE, save_fields, "Options of tg_shards_save_begin.");

static const tg_field shards_load_fields[] = {
    TG_FIELD(tg_shards_load_opts, partial, BOOL, "Keys that are missing or unknown are reported, not refused."),
    TG_FIELD(tg_shards_load_opts, from_prefix, TEXT, "What the keys in the directory begin with; NULL: nothing."),
    TG_FIELD(tg_shards_load_opts, to_prefix, TEXT, "What the keys of the list begin with instead; NULL: nothing."),
    TG_FIELD_OF(tg_shards_load_opts, report, POINTER, "char", "Memory for a report; NULL: none."),
    TG_FIELD(tg_shards_load_opts, report_size, SIZE, "Bytes of report."),
    TG_FIELD(tg_shards_load_opts, missing, INT, "Set by the call: number of keys that the directory lacks."),
    TG_FIELD(tg_shards_load_opts, unknown, INT, "Set by the call: number of keys that no rank's list has."),
};
const tg_struct tg_shards_load_opts_struct =
    TG_STRUCT(tg_shards_load_opts, SHARDS_LOAD, shards_load_fields, "Options and results of tg_shards_load_with.");
