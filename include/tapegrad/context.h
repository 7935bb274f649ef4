/* A context: the object that owns every tensor, tape and random stream, and that holds the error, the configuration and
 * the memory. A program creates one per rank or thread. tapegrad.h includes this header. */
#ifndef TAPEGRAD_CONTEXT_H
#define TAPEGRAD_CONTEXT_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* File functions that replace the system's calls, for TG_CONFIG(.files): tests inject failures with them, and an
 * embedding program can supply its own storage. Each slot behaves like the system call of its name: it returns -1 with
 * errno set if it fails, and may transfer fewer bytes than asked. NULL slot: the system's call. The struct must outlive
 * the context. */
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
    void *user;
};

#define TG_FILE_OPS(...) (&(tg_file_ops){.size = sizeof(tg_file_ops), __VA_ARGS__})

typedef struct tg_config {
    size_t size;
    /* "cpu" (default), "cuda", "cuda:N", or "meta" (computes shapes only, no values); see also tg_ctx_new_on */
    const char *device;
    uint64_t seed;      /* seed of the default random stream */
    int threads;        /* threads of this context, 0 to 1024; 0: one per core that the process may use */
    tg_dtype dtype;     /* default dtype of new tensors, a float: TG_F32 (default), TG_F64, TG_BF16 or TG_F16 */
    /* CPU kernels: NULL (the best that this CPU runs), "portable", "avx2", "avx512" or "avx512_bf16" */
    const char *isa;
    bool check;         /* check mode: a recomputation must give the same bits; new gradients are filled with NaN */
    tg_allocator allocator; /* alloc and free NULL: the system's allocator. One of them NULL: TG_ERR_ARGUMENT */
    tg_parallel_for_fn parallel_for; /* replaces the context's own thread pool; NULL: the pool */
    void *parallel_user;
    tg_log_fn log; /* receives diagnostics; NULL: none. The library never prints. */
    void *log_user;
    double deadline; /* seconds a collective may wait; 0: 300 */
    const tg_file_ops *files; /* replaces the system's file calls (io.h); NULL: the system's */
    /* Limit, in bytes, on live tensors plus workspaces (tg_memory_query). Exceeding it fails with TG_ERR_MEMORY. 0: no
     * limit. */
    int64_t memory;
} tg_config;

#define TG_CONFIG(...) (&(tg_config){.size = sizeof(tg_config), __VA_ARGS__})

/* Creates a context. config NULL: all defaults. Never returns NULL: if creation fails, the context is dead.
 * tg_ctx_status then says why, and every object made on it is inert. */
TG_API tg_ctx *tg_ctx_new(const tg_config *config);
/* Frees a context with all its tensors and tapes. Free modules, optimizers and files first. Afterwards no handle of the
 * context may be used, not even to drop or free it; an object that holds such a handle must not outlive the context.
 * Fails with TG_ERR_STATE, and frees nothing, while a callback of the context runs (a hook, or a function of an op).
 * The same holds for freeing a tape. NULL is ignored. */
TG_API void tg_ctx_free(tg_ctx *ctx);

/* Creates a context on the caller's own device, which must outlive the context. There is no registry: a device is
 * always an argument, and config->device must be NULL. A table that is NULL, has another version's size, or
 * lacks a required slot gives a dead context (TG_ERR_ARGUMENT). */
TG_API tg_ctx *tg_ctx_new_on(const tg_device_ops *ops, const tg_config *config);

/* Return the number of threads (0 for NULL), and the names of the device ("cpu", "cuda" ...) and of the CPU kernels
 * ("avx2" ...); "" for NULL. */
TG_API int tg_ctx_threads(const tg_ctx *ctx);
TG_API const char *tg_ctx_device(const tg_ctx *ctx);
TG_API const char *tg_ctx_isa(const tg_ctx *ctx);

TG_API double tg_ctx_deadline(const tg_ctx *ctx); /* Returns the seconds that a transport may wait; 0 for NULL. */

/* ---- Memory ---- */

/* Fills *out, which TG_MEMORY_INFO() initializes, with the memory statistics of the context. */
TG_API tg_status tg_memory_query(tg_ctx *ctx, tg_memory_info *out);
/* Makes the current use the new peak. */
TG_API void tg_memory_reset_peak(tg_ctx *ctx);
/* Turns the memory trace on or off. While it is on, tg_memory_report names the tensors that were alive at the peak,
 * with their nodes and call sites. Off by default, because it costs time. */
TG_API void tg_memory_set_trace(tg_ctx *ctx, bool on);

/* Writes a text report of the memory in use.
 *
 * Every function that writes text works like snprintf: it writes at most n bytes, including the terminating zero, and
 * returns the length of the whole text. buf NULL: it writes nothing.
 */
TG_API size_t tg_memory_report(tg_ctx *ctx, char *buf, size_t n);

/* ---- Random streams ---- */

/* Add and remove a named random stream, in addition to the default one. The name and the seed must differ from those of
 * the other named streams; otherwise TG_ERR_ARGUMENT, because two streams of one seed draw the same numbers. The seed
 * is not compared with that of the default stream: if they are equal, both draw the same numbers. Removing an unknown
 * name fails with TG_ERR_ARGUMENT, and removing a forked stream with TG_ERR_STATE. */
TG_API tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed);
TG_API tg_status tg_rng_remove(tg_ctx *ctx, const char *name);
TG_API const char *tg_rng_name(const tg_ctx *ctx, int i); /* Returns the i-th name, oldest first; NULL past the last. */
/* Copy the state of a stream to *out, or from *s. name NULL: the stream that draws now, which is the default stream
 * unless a fork is open. An unknown name fails with TG_ERR_ARGUMENT. */
TG_API tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out);
TG_API tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s);
/* Switch to the named stream, and back. Between fork and join all draws come from the named stream, which continues
 * from its last state. Forks nest, also with the same name. Every fork needs a join, even a fork that failed; a join
 * without a fork fails with TG_ERR_STATE. If the default stream is reseeded in between, the last join logs a
 * warning. */
TG_API tg_status tg_rng_fork(tg_ctx *ctx, const char *name);
TG_API tg_status tg_rng_join(tg_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
