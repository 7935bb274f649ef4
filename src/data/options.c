/* The structs of options of data loaders. */
#include <tapegrad/data.h>

#include "base/options.h"

static const tg_field loader_fields[] = {
    TG_FIELD(tg_loader_opts, batch, INT64, "Samples of a batch, of all ranks together, 1 or more."),
    TG_FIELD(tg_loader_opts, shuffle, BOOL, "Samples come in an order of the seed and the epoch."),
    TG_FIELD(tg_loader_opts, seed, UINT64, "Seed of the order."),
    TG_FIELD(tg_loader_opts, keep_last, BOOL, "The last samples of an epoch are a smaller batch."),
    TG_FIELD(tg_loader_opts, prefetch, INT, "Batches that a thread reads ahead; 0: no thread."),
    TG_FIELD_OF(tg_loader_opts, parallel, POINTER, "tg_parallel", "The ranks of axis dp share the batches."),
    TG_FIELD(tg_loader_opts, sequences, BOOL, "Samples are this rank's rows of sequences that axis cp divides."),
    TG_FIELD(tg_loader_opts, rank, INT, "Without parallel: which part of each batch."),
    TG_FIELD(tg_loader_opts, ranks, INT, "Without parallel: of how many parts, 1 or more."),
};
const tg_struct tg_loader_opts_struct = TG_STRUCT(tg_loader_opts, LOADER, loader_fields, "Options of a data loader.");

static const tg_field data_fields[] = {
    TG_FIELD(tg_data_ops, read, FUNCTION, "Reads a sample."),
    TG_FIELD(tg_data_ops, free, FUNCTION, "Releases the state."),
};
const tg_struct tg_data_ops_struct =
    TG_STRUCT(tg_data_ops, DATA_OPS, data_fields, "A source of samples of the caller's own.");
