/* Data loaders: batches of samples from arrays in memory, files of tokens, safetensors files, or a source of the
 * caller's own. The order of the samples depends only on their number, the seed and the epoch. metrics.h has means over
 * batches, such as a loss or an accuracy.
 *
 *     tg_loader *l = tg_loader_new_arrays(ctx, parts, 2, 60000, TG_LOADER(.batch = 64, .shuffle = true, .seed = 1));
 *     for (int64_t i = 0; i < steps; i++) {
 *         tg_tensor *x[2];
 *         tg_loader_next(l, x);
 *         ...                                     // a step with x[0] and x[1]
 *     }
 *
 * An epoch has every sample once, except those at its end that fill no batch (tg_loader_opts.keep_last). Batch number i
 * of an epoch is the same whenever it is read, and for every number of ranks: with r ranks, each gets an r-th part of
 * the same batch (see keep_last for the last one). To resume a run, save tg_loader_epoch and tg_loader_step, and call
 * tg_loader_seek.
 *
 * All functions accept NULL as the loader: those that return a status return TG_ERR_ARGUMENT, and the others 0. Free a
 * loader before its context. */
#ifndef TAPEGRAD_DATA_H
#define TAPEGRAD_DATA_H

#include <tapegrad/io.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_loader tg_loader;

/* One part of a sample, such as an image or its label. A batch has a tensor [samples of this rank, shape...] for each
 * part. `shape` is the shape of the part of one sample. `data` has this part of all samples, one after the other; only
 * tg_loader_new_arrays reads it. */
typedef struct tg_data_part {
    tg_dtype dtype;
    tg_shape shape;
    const void *data;
} tg_data_part;

/* Options of a loader. */
typedef struct tg_loader_opts {
    size_t size;
    /* Samples of a batch, of all ranks together, 1 or more. It must be a multiple of the number of ranks and, without
     * keep_last, at most the number of samples (TG_ERR_ARGUMENT). There is no default. */
    int64_t batch;
    bool shuffle;  /* random order, another one in each epoch; false by default: the order of the source */
    uint64_t seed; /* of the random order; 0 by default */
    /* If the number of samples is no multiple of `batch`, the last samples of an epoch are a smaller batch. Some ranks
     * may then have a sample more than others, or no sample. false by default: these samples are left out. */
    bool keep_last;
    /* How many batches a thread of the loader reads ahead, 0 to 1024. 0 means that there is no thread: tg_loader_next
     * reads. 2 by default. The thread calls the functions of tg_config.files. */
    int prefetch;
    /* Batches are divided among the ranks of axis dp of this grid. The tensors are placed as shards there, TG_SHARD(0),
     * and as TG_I on tp and, unless `sequences` is set, on cp. The smaller tensors of keep_last are TG_V on dp. NULL,
     * the default, means that `rank` and `ranks` say how batches are divided. Must outlive the loader. */
    const tg_parallel *parallel;
    /* Each sample is this rank's part of a sequence that the ranks of axis cp divide. The caller's source must then
     * read only the rows that tg_context_cut lists (context_parallel.h); the loader places the tensors as
     * TG_SHARD_ZIGZAG(1) on cp. Has no effect without `parallel`. false by default; tg_loader_open_tokens always sets
     * it, and reads the right rows. */
    bool sequences;
    /* Which part of each batch this loader gives: number `rank`, from 0, of `ranks` parts; 0 of 1 by default. With
     * `parallel` they must keep their defaults (TG_ERR_ARGUMENT). */
    int rank, ranks;
} tg_loader_opts;

#define TG_LOADER_DEFAULTS .size = sizeof(tg_loader_opts), .prefetch = 2, .ranks = 1
#define TG_LOADER(...) (&(tg_loader_opts){TG_LOADER_DEFAULTS, __VA_ARGS__})

/* A source of samples of the caller's own. */
typedef struct tg_data_ops {
    size_t size;
    /* Writes part p of sample number `sample`, from 0, to out[p], for all parts. out[p] is host memory for this part.
     * Runs on the thread of the loader if there is one, and then must use nothing that the program changes meanwhile;
     * no two calls run at the same time. On an error records it with tg_ctx_fail(errors, ...), and returns its status.
     * `errors` is a context for this purpose alone. `read` is required. */
    tg_status (*read)(void *state, tg_ctx *errors, int64_t sample, void *const *out);
    /* Frees the state. Called when the loader is freed, and if tg_loader_new fails, unless it fails because the table
     * is NULL or has the size of another version. May be NULL. */
    void (*free)(void *state);
} tg_data_ops;

#define TG_DATA_OPS_DEFAULTS .size = sizeof(tg_data_ops)
#define TG_DATA_OPS(...) (&(tg_data_ops){TG_DATA_OPS_DEFAULTS, __VA_ARGS__})

/* Create a loader of `samples` >= 1 samples, each with 1 to 64 parts, from a source or from arrays. ops and the data of
 * parts[] must outlive the loader; parts[] itself and opts are copied. opts must give a batch, so it must not be NULL
 * (TG_ERR_ARGUMENT). The memory of this rank's batches is allocated now: on the host as many as opts->prefetch says, at
 * least one, and on the device two, plus two of the smaller batch of keep_last. On an error these functions, and those
 * below that open files, return an inert loader, on which calls do nothing. */
TG_API tg_loader *tg_loader_new(tg_ctx *ctx, const tg_data_ops *ops, void *state, const tg_data_part *parts, int n,
                                int64_t samples, const tg_loader_opts *opts);
TG_API tg_loader *tg_loader_new_arrays(tg_ctx *ctx, const tg_data_part *parts, int n, int64_t samples,
                                       const tg_loader_opts *opts);
/* Opens a stream of tokens (tg_tokens_open) as samples of seq_len >= 1 tokens. A sample has two parts, both int64
 * [seq_len]: the tokens from sample * seq_len on, and for each of them the next token. Tokens at the end of the stream
 * that fill no sample are left out. The stream must have more than seq_len tokens (TG_ERR_ARGUMENT). If opts->parallel
 * has cp > 1 ranks on axis cp, they divide each sequence: a rank has its two chunks, seq_len / cp tokens. seq_len must
 * then be a multiple of 2 cp (TG_ERR_SHAPE). */
TG_API tg_loader *tg_loader_open_tokens(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab,
                                        int64_t seq_len, const tg_loader_opts *opts);
/* Opens a safetensors file, or an index of several (tg_safetensors_open). The n named tensors are the parts. Their dim
 * 0 counts the samples, and must be the same in all of them, 1 or more (TG_ERR_SHAPE). Checksums cover whole tensors,
 * so they are not compared. */
TG_API tg_loader *tg_loader_open_safetensors(tg_ctx *ctx, const char *path, const char *const *names, int n,
                                             const tg_loader_opts *opts);
/* Frees the loader and drops its tensors. Waits until the loader's thread has read the sample that it is reading. */
TG_API void tg_loader_free(tg_loader *l);

/* Sets out[p] to part p of the next batch, for all parts, and goes on to the batch after it, or to the first one of the
 * next epoch. The tensors belong to the loader. They keep their values until the second call after this one. The copy
 * to the device runs in parallel with the device's work (tg_upload). On an error all out[p] are inert tensors. An error
 * in reading a batch is reported by the call that would return that batch; after tg_ctx_clear, the next call reads the
 * batch again. */
TG_API tg_status tg_loader_next(tg_loader *l, tg_tensor **out);

TG_API int64_t tg_loader_samples(const tg_loader *l); /* Returns the number of samples; 0 on an error. */
TG_API int64_t tg_loader_batches(const tg_loader *l); /* Returns the number of batches in an epoch; 0 on an error. */
/* Return the epoch of the next batch, and the number of this batch in the epoch, both from 0. Return 0 on an error. */
TG_API int64_t tg_loader_epoch(const tg_loader *l);
TG_API int64_t tg_loader_step(const tg_loader *l);
/* Makes batch number `step` of an epoch the next one. Both numbers count from 0; the last epoch is 2^62. step may be
 * the number of batches in an epoch, which means the first batch of the next epoch. Other numbers fail with
 * TG_ERR_ARGUMENT. The batches that were read ahead are given up. Waits as tg_loader_free does. */
TG_API tg_status tg_loader_seek(tg_loader *l, int64_t epoch, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
