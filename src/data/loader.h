/* The loader: which samples a batch has, the batches that have been read, and the thread that reads ahead. */
#ifndef TG_DATA_LOADER_H
#define TG_DATA_LOADER_H

#include <pthread.h>
#include <stdatomic.h>

#include <tapegrad/data.h>

#include "core/context.h"

enum { TG_LOADER_PARTS = 64, TG_LOADER_PREFETCH = 1024 };

/* The position of a batch in the data: its epoch, and its number in the epoch. */
typedef struct tg_batch_at {
    int64_t epoch, step;
} tg_batch_at;

/* Batches that have been read wait in a ring of `places` places, of which `filled` from place `first` on are used.
 * While a thread reads ahead, `lock` protects first, filled, failed and stop. Then only that thread uses `reads`, and
 * only the program's thread uses `running` and `thread`. Between two samples the reading thread looks at `stop` without
 * the lock. */
typedef struct tg_loader_ring {
    char *bytes; /* [places][bytes of a batch of this rank] */
    int places, first, filled;
    bool failed;        /* reading the batch after the filled ones has failed; `errors` has the error */
    bool running;       /* the thread has been started */
    _Atomic bool stop;  /* the thread must end */
    tg_batch_at reads;  /* the batch that is read next */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} tg_loader_ring;

struct tg_loader {
    tg_ctx *ctx;
    tg_ctx *errors; /* a context of the source: holds its files, and the error of a read */
    const tg_data_ops *ops;
    void *state;
    tg_loader_opts opts;
    tg_data_part part[TG_LOADER_PARTS];
    int n, turn; /* turn: which of the two sets of tensors the next batch gets */
    int64_t samples, rank, ranks;
    size_t bytes;                                                    /* of a batch of this rank */
    tg_batch_at at;                                                  /* the batch that tg_loader_next returns next */
    tg_tensor *whole[2][TG_LOADER_PARTS], *last[2][TG_LOADER_PARTS]; /* last: of the smaller batch; NULL if none */
    tg_loader_ring ring;
};

/* Opens a context for the files and the errors of a source, like ctx but without a device. Returns NULL after recording
 * the error in ctx. */
tg_ctx *tg_loader_errors_new(tg_ctx *ctx);
/* Records the error of `errors` in ctx. Returns its status. */
tg_status tg_loader_pass_error(tg_ctx *ctx, const tg_ctx *errors);
/* Creates a loader whose source has `errors` already. Takes over errors and state, also on an error. */
tg_loader *tg_loader_make(tg_ctx *ctx, tg_ctx *errors, const tg_data_ops *ops, void *state, const tg_data_part *parts,
                          int n, int64_t samples, const tg_loader_opts *opts, const char *who);

/* Returns the batch after this one. */
tg_batch_at tg_loader_after(const tg_loader *l, tg_batch_at at);
/* Returns the number of this rank's samples in the batch, and sets *first to the position of the first in the epoch. */
int64_t tg_loader_share(const tg_loader *l, tg_batch_at at, int64_t *first);
/* Returns the bytes of part p of one sample. */
size_t tg_loader_part_bytes(const tg_loader *l, int p);

/* ---- reader.c ---- */

/* Waits until the next batch is read, or reads it, and returns its bytes: for each part those of all samples that this
 * rank has of the batch. Returns NULL after recording the error. */
const char *tg_loader_take(tg_loader *l);
void tg_loader_release(tg_loader *l); /* gives back the place of the batch that was taken, and goes on to the next */
/* Ends the thread, and forgets what was read. The next read is that of l->at. */
void tg_loader_stop(tg_loader *l);

#endif
