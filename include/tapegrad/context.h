/* Contexts. A context owns the tensors, tapes and random streams of a rank or thread, their memory, and the record of
 * an error. A program creates one context per rank or thread. tapegrad.h includes this header. */
#ifndef TAPEGRAD_CONTEXT_H
#define TAPEGRAD_CONTEXT_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* File functions that the library calls instead of the system's (tg_config.files). Tests inject failures with them, and
 * an embedding program can supply storage of its own.
 *
 * Each function behaves like the system call of its name. It returns -1 and sets errno if it fails. pread and pwrite
 * may transfer fewer bytes than asked. A function that is NULL means the system call. open must return a file
 * descriptor of the system, because the library calls fstat on it. To list a directory and to look at an existing path,
 * the library calls the system too. Several threads may call the functions at the same time, because the library reads
 * data (data.h) and writes checkpoints (checkpoint.h) on threads of its own. The struct must outlive the context. */
struct tg_file_ops {
    size_t size;
    int (*open)(void *user, const char *path, int flags, int mode);
    int (*close)(void *user, int fd);
    int64_t (*pread)(void *user, int fd, void *buf, size_t n, int64_t offset);
    int64_t (*pwrite)(void *user, int fd, const void *buf, size_t n, int64_t offset);
    int (*fsync)(void *user, int fd);
    int (*rename)(void *user, const char *from, const char *to);
    int (*unlink)(void *user, const char *path);
    int (*mkdir)(void *user, const char *path, int mode);
    void *user; /* first argument of the functions */
};

#define TG_FILE_OPS_DEFAULTS .size = sizeof(tg_file_ops)
#define TG_FILE_OPS(...) (&(tg_file_ops){TG_FILE_OPS_DEFAULTS, __VA_ARGS__})

/* The configuration of a context. */
typedef struct tg_config {
    size_t size;
    /* "cpu", "cuda", "cuda:N" for GPU number N, or "meta", which computes shapes but no values. "cuda" means the
     * current GPU of the calling thread (cudaGetDevice), which is number 0 at first. NULL, the default, means "cpu".
     * The first context on "cuda" loads plugin libtapegrad-cuda.so. Creation fails with TG_ERR_DEVICE if the name is
     * another one, or if the plugin, the driver or the GPU is missing. For a device of the caller's own see
     * tg_ctx_new_on. A call that uses the GPU of a context makes it the current one of the calling thread. */
    const char *device;
    uint64_t seed;  /* seed of the default random stream; 0 by default */
    int threads;    /* threads of this context, 1 to 1024; TG_AUTO, the default, means one per usable core */
    tg_dtype dtype; /* default dtype of new tensors, a float: TG_F32 (default), TG_F64, TG_BF16 or TG_F16 */
    /* The CPU kernels: "portable", "avx2", "avx512", "avx512_bf16" or "amx". NULL means the best that this CPU runs.
     * Creation fails with TG_ERR_UNSUPPORTED if the CPU cannot run them, and with TG_ERR_ARGUMENT if isa is another
     * name. */
    const char *isa;
    /* Turns check mode on. Then a recomputation must give the same bits again (recompute.h), and the library fills
     * memory for new gradients with NaN, and leased buffers (tg_lease) with NaN or, if their dtype is no float, -1.
     * Over ranks, check mode also compares tensors (placement.h). */
    bool check;
    /* Host memory. If alloc and free are both NULL, the system provides it. If only one of them is NULL, creation fails
     * with TG_ERR_ARGUMENT. */
    tg_allocator allocator;
    /* Used instead of the context's thread pool. Not called if threads is 1. NULL means the pool. */
    tg_parallel_for_fn parallel_for;
    void *parallel_user; /* first argument of parallel_for */
    tg_log_fn log;       /* receives diagnostics; NULL means none; the library never prints */
    void *log_user;      /* first argument of log */
    /* Seconds for which a collective may wait for other ranks, above 0; 300 by default. A collective that waits longer
     * fails with TG_ERR_TIMEOUT, and on the ranks that were late with TG_ERR_REMOTE. */
    double deadline;
    const tg_file_ops *files; /* used instead of the system's file calls (io.h); NULL means the system's */
    /* Limit in bytes on the sum of `live` and `workspace` of tg_memory_info, 1 or more. TG_NONE, the default, means no
     * limit. A call that would exceed the limit fails with TG_ERR_MEMORY. */
    int64_t memory;
} tg_config;

#define TG_CONFIG_DEFAULTS .size = sizeof(tg_config), .threads = TG_AUTO, .deadline = 300, .memory = TG_NONE
#define TG_CONFIG(...) (&(tg_config){TG_CONFIG_DEFAULTS, __VA_ARGS__})

/* Creates a context. config is copied; NULL means that all its fields have their defaults. Never returns NULL: if
 * creation fails, the context is dead. tg_ctx_status then says why, for example TG_ERR_ARGUMENT if a number is out of
 * its range, or TG_ERR_DTYPE if dtype is no float. tg_ctx_clear does not remove the error, and every object created on
 * the context is inert (tapegrad.h). A dead context may be freed. */
TG_API tg_ctx *tg_ctx_new(const tg_config *config);
/* Frees a context with all its tensors and tapes. Free its other objects first, such as modules, optimizers and files.
 * After the call no handle of the context may be used, not even to drop or free it. Memory that was exported by DLPack
 * (dlpack.h) stays valid: the context's memory is freed when the last export has ended. Does nothing if ctx is NULL.
 *
 * While a callback of the context (a hook, or a function of an op) or a backward runs, and while a step is captured,
 * frees nothing and records TG_ERR_STATE in the context. */
TG_API void tg_ctx_free(tg_ctx *ctx);

/* Creates a context on a device of the caller's own. ops, the table of the device (device.h), must outlive the context.
 * config is as in tg_ctx_new. Returns a dead context (TG_ERR_ARGUMENT) if config->device is not NULL, or if the table
 * is NULL, has the size of another version, lacks a required slot, or has copy_async without the slots that belong to
 * it. */
TG_API tg_ctx *tg_ctx_new_on(const tg_device_ops *ops, const tg_config *config);

/* Return the number of threads, the name of the device without a number, such as "cuda", and the name of the CPU
 * kernels, such as "avx2". If ctx is NULL they return 0 or "". Names are valid while the context lives. */
TG_API int tg_ctx_threads(const tg_ctx *ctx);
TG_API const char *tg_ctx_device(const tg_ctx *ctx);
TG_API const char *tg_ctx_isa(const tg_ctx *ctx);

/* Returns tg_config.deadline, in seconds; 0 if ctx is NULL. */
TG_API double tg_ctx_deadline(const tg_ctx *ctx);

/* ---- Memory ---- */

/* Fills *out with the memory statistics of the context. Fails with TG_ERR_ARGUMENT if out is NULL, or if
 * TG_MEMORY_INFO() has not initialized it. */
TG_API tg_status tg_memory_query(tg_ctx *ctx, tg_memory_info *out);
/* Sets the peak of memory (tg_memory_info.peak) to the bytes that are in use now. */
TG_API void tg_memory_reset_peak(tg_ctx *ctx);
/* Turns the memory trace on or off. While it is on, the library notes what is alive whenever memory exceeds its earlier
 * peak by 1/64. tg_memory_report then lists the largest of these tensors, with their ops and call sites. The allocation
 * that reached the peak is in the list with only its size and category, because it was not yet a tensor. Turn the trace
 * on before the peak, or call tg_memory_reset_peak after it. The trace is off by default, because it costs time. */
TG_API void tg_memory_set_trace(tg_ctx *ctx, bool on);

/* Writes a report of the memory in use, as text.
 *
 * Every function of the library that writes text to a buffer of the caller works like snprintf. It writes at most n
 * bytes, including the terminating 0, and returns the length of the whole text without that 0. If buf is NULL it writes
 * nothing, so a first call can ask for the length. On error tg_memory_report writes an empty text and returns 0.
 */
TG_API size_t tg_memory_report(tg_ctx *ctx, char *buf, size_t n);

/* ---- Random streams ----
 *
 * A context has a default stream and any number of named streams. Draws come from the current stream. That is the
 * default stream, unless tg_rng_fork has selected a named one. While a step is captured (capture.h), tg_rng_add,
 * tg_rng_remove, tg_rng_set and tg_draws_step fail with TG_ERR_UNSUPPORTED. */

/* Add or remove a named stream.
 *
 * name is copied, and must not be NULL or empty. The name and the seed of a new stream must differ from those of all
 * other named streams, because two streams with one seed draw the same numbers. Its seed is not compared with that of
 * the default stream. Adding a name or a seed that exists, and removing an unknown name, fail with TG_ERR_ARGUMENT.
 * Removing a stream between a tg_rng_fork that selects it and the matching tg_rng_join fails with TG_ERR_STATE. */
TG_API tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed);
TG_API tg_status tg_rng_remove(tg_ctx *ctx, const char *name);
/* Returns the name of the i-th named stream, i from 0, oldest first; NULL if ctx is NULL or i is out of range. The text
 * is valid until the stream is removed. */
TG_API const char *tg_rng_name(const tg_ctx *ctx, int i);
/* Copy the state of a stream to *out, or from *s to a stream. If name is NULL, the stream is the current one. Fail with
 * TG_ERR_ARGUMENT if out or s is NULL, if no stream has the name, or if s->stream is 2^62 or more. */
TG_API tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out);
TG_API tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s);
/* Make the named stream the current one, or return to the stream that was current before. The named stream continues
 * from its last state. A name that is NULL or unknown fails with TG_ERR_ARGUMENT. Forks nest, also those of the same
 * name. Every fork needs a join, even if the fork failed. A join without a fork fails with TG_ERR_STATE. If a call
 * seeds the default stream while a fork is open, as tg_rng_seed_parallel does, the join of the outermost fork logs a
 * warning. */
TG_API tg_status tg_rng_fork(tg_ctx *ctx, const char *name);
TG_API tg_status tg_rng_join(tg_ctx *ctx);

/* ---- Keyed draws ----
 *
 * Without an open key, draws depend on their order: each takes the next numbers of the current stream. With an open key
 * a draw depends on the seed and the number (tg_rng.stream) of the current stream, the step, the micro-batch of the
 * tape (tg_tape_key; 0 if the call has no tape, as tg_randn), the open keys, how many numbers the innermost key has
 * drawn before, and the position of the element in the tensor over all ranks. So a layer that opens a key of its own
 * draws the same numbers wherever and whenever it runs: in another order of layers or micro-batches, on another number
 * of ranks, in another pipeline stage, in a recomputation, and in a resumed run.
 *
 *     for (uint64_t step = 1; step <= steps; step++) {
 *         tg_draws_step(ctx, step);                // before the first draw of each step
 *         for (uint64_t m = 0; m < micro_batches; m++) {
 *             tg_tape_key(t, m);
 *             tg_key_open(ctx, 7);                 // a layer's number
 *             x = tg_dropout(t, x, 0.1);
 *             tg_key_close(ctx);
 *             ...
 *             tg_tape_reset(t);
 *         }
 *     }
 *
 * Within a key, the numbers are counted from 0 in the order in which they are drawn. So a layer must make the same
 * draws, of the same global sizes, in the same order each time. Draws by key do not advance the stream. GPT models open
 * keys for their layers (gpt.h). With TG_RNG_MEGATRON (parallel.h) keys can be opened and closed, but do not change
 * draws: all draws come from the streams, by order. */

/* Open and close a key. Keys nest: key 7 within key 3 is not the same key as 7 alone. More than 16 open keys fail with
 * TG_ERR_STATE. Every open needs a close, even if the open failed. A close without an open fails with TG_ERR_STATE.
 *
 * A key that has drawn and was closed must not draw again in the same step and micro-batch, because it would draw the
 * same numbers: such a draw fails with TG_ERR_STATE, and the message has both call sites. The draw fails even if
 * another stream is current now. Two kinds of draws are repeated on purpose and do not fail: those of a recomputed
 * function that backward runs again, and those of the derivative of an op that has drawn. */
TG_API tg_status tg_key_open(tg_ctx *ctx, uint64_t key);
TG_API tg_status tg_key_close(tg_ctx *ctx);
/* Begins a step of the program. From now on keyed draws are those of this step, and every key may draw again. A context
 * begins in step 0, which is for initial parameters. After a second call with the same number, the draws of the step
 * are repeated. Fails with TG_ERR_STATE while a key is open. */
TG_API tg_status tg_draws_step(tg_ctx *ctx, uint64_t step);

#ifdef __cplusplus
}
#endif

#endif
