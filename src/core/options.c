/* The structs of options of contexts. */
#include <tapegrad/context.h>

#include "base/options.h"

static const tg_field config_fields[] = {
    TG_FIELD(tg_config, device, TEXT, "The device: NULL or \"cpu\", \"cuda\", \"cuda:N\" or \"meta\"."),
    TG_FIELD(tg_config, seed, UINT64, "Seed of the default random stream."),
    TG_FIELD(tg_config, threads, INT, "Number of threads, 1 to 1024; TG_AUTO: one per core."),
    TG_FIELD(tg_config, dtype, DTYPE, "Default dtype of new tensors, a float; TG_DTYPE_DEFAULT: TG_F32."),
    TG_FIELD(
        tg_config, isa, TEXT,
        "The CPU kernels: \"portable\", \"avx2\", \"avx512\", \"avx512_bf16\" or \"amx\"; NULL: the best of the CPU."),
    TG_FIELD(tg_config, check, BOOL, "Turns check mode on."),
    TG_FIELD_OF(tg_config, allocator, STRUCT, "tg_allocator", "Provides host memory; all NULL: the system does."),
    TG_FIELD(tg_config, parallel_for, FUNCTION, "Used instead of the context's thread pool; NULL: the pool."),
    TG_FIELD_OF(tg_config, parallel_user, POINTER, "void", "First argument of parallel_for."),
    TG_FIELD(tg_config, log, FUNCTION, "Receives diagnostics; NULL: none."),
    TG_FIELD_OF(tg_config, log_user, POINTER, "void", "First argument of log."),
    TG_FIELD(tg_config, deadline, DOUBLE, "Seconds for which a collective may wait, above 0."),
    TG_FIELD_OF(tg_config, files, POINTER, "tg_file_ops",
                "Used instead of the system's file calls; NULL: the system's."),
    TG_FIELD(tg_config, memory, INT64, "Limit in bytes on live tensors plus workspaces, 1 or more; TG_NONE: no limit."),
};
const tg_struct tg_config_struct = TG_STRUCT(tg_config, CONFIG, config_fields, "The configuration of a context.");

static const tg_field file_ops_fields[] = {
    TG_FIELD(tg_file_ops, open, FUNCTION, "Opens a file, like the system call."),
    TG_FIELD(tg_file_ops, close, FUNCTION, "Closes a file."),
    TG_FIELD(tg_file_ops, pread, FUNCTION, "Reads at an offset."),
    TG_FIELD(tg_file_ops, pwrite, FUNCTION, "Writes at an offset."),
    TG_FIELD(tg_file_ops, fsync, FUNCTION, "Puts a file on disk."),
    TG_FIELD(tg_file_ops, rename, FUNCTION, "Renames a file."),
    TG_FIELD(tg_file_ops, unlink, FUNCTION, "Removes a file."),
    TG_FIELD(tg_file_ops, mkdir, FUNCTION, "Creates a directory."),
    TG_FIELD_OF(tg_file_ops, user, POINTER, "void", "First argument of the functions."),
};
const tg_struct tg_file_ops_struct =
    TG_STRUCT(tg_file_ops, FILE_OPS, file_ops_fields,
              "File functions that the library calls instead of the system's; NULL: the system's.");
