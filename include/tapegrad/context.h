/* A context: status, configuration, memory, random streams. */
#ifndef TAPEGRAD_CONTEXT_H
#define TAPEGRAD_CONTEXT_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the library asks of the system, for TG_CONFIG(.files): tests put failing calls here, an embedder its own
 * storage behind file descriptors. Each behaves as the call of its name, returns -1 with errno set when it fails, and
 * may transfer less than it was asked for. A NULL slot is the system's call. The struct must outlive the context. */
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
    const char *device; /* "cpu" (default), "cuda", "cuda:N", "meta" (shapes only: nothing runs); or tg_ctx_new_on */
    uint64_t seed;      /* of the default random stream */
    int threads;        /* of this context; 0: the cores that this process may use */
    tg_dtype dtype;     /* of creations that name none: TG_F32 (default), TG_F64, TG_BF16 or TG_F16 */
    const char *isa;    /* CPU kernels: NULL (the best here), "portable", "avx2", "avx512", "avx512_bf16" */
    bool check;         /* check mode: recomputation must give the same bits, gradients begin as NaN */
    tg_allocator allocator;
    tg_parallel_for_fn parallel_for; /* instead of the context's own thread pool */
    void *parallel_user;
    tg_log_fn log; /* for diagnostics; NULL: silent, as the library never prints */
    void *log_user;
    double deadline; /* seconds that a collective may wait; 0: 300 */
    const tg_file_ops *files; /* instead of the system's calls (io.h) */
    int64_t
        memory; /* so many bytes live and of workspace at most (tg_memory_info), more is TG_ERR_MEMORY; 0: no limit */
} tg_config;

#define TG_CONFIG(...) (&(tg_config){.size = sizeof(tg_config), __VA_ARGS__})

/* Never NULL: a context that could not be made is dead (tg_ctx_status says why) and everything made on it inert.
 * config may be NULL. */
TG_API tg_ctx *tg_ctx_new(const tg_config *config);
/* Ends every tensor and tape made on the context; modules, optimisers and files are freed before it. No handle of it
 * may be used afterwards, not even to drop or free it: an object that holds one holds the context too. While a function
 * that a call has been given runs (a hook, an op's) its context, and tape, cannot end: an error, nothing is freed. */
TG_API void tg_ctx_free(tg_ctx *ctx);

/* A context on the caller's own device, which must outlive it; config->device is ignored. Devices are arguments, there
 * is no registry. A table that is NULL, not of this version's size, or lacks a required slot is refused. */
TG_API tg_ctx *tg_ctx_new_on(const tg_device_ops *ops, const tg_config *config);

TG_API int tg_ctx_threads(const tg_ctx *ctx);
TG_API const char *tg_ctx_device(const tg_ctx *ctx);
TG_API const char *tg_ctx_isa(const tg_ctx *ctx);

TG_API double tg_ctx_deadline(const tg_ctx *ctx); /* seconds that a transport's wait may last; 0 for NULL */

/* ---- Memory ---- */

TG_API tg_status tg_memory_query(tg_ctx *ctx, tg_memory_info *out);
TG_API void tg_memory_reset_peak(tg_ctx *ctx);
/* With on, the report names what was alive at the peak: tensor, node, call site. Costs time: off by default. */
TG_API void tg_memory_set_trace(tg_ctx *ctx, bool on);

/* Functions that write text do it as snprintf does: at most n bytes with the terminating zero, and they return the
 * length of the whole text; with buf NULL they write nothing. */
TG_API size_t tg_memory_report(tg_ctx *ctx, char *buf, size_t n);

/* ---- Random streams ---- */

/* Streams by name, besides the default one. Names and seeds are unique among them (TG_ERR_ARGUMENT), as their draws
 * would be equal otherwise: one with the default one's seed draws its numbers. Unknown names are TG_ERR_ARGUMENT. */
TG_API tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed);
TG_API tg_status tg_rng_remove(tg_ctx *ctx, const char *name);
TG_API const char *tg_rng_name(const tg_ctx *ctx, int i); /* the i-th to come; NULL past the last */
/* The state by value; name NULL: of the stream that draws now, the default one but between a fork and its join. */
TG_API tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out);
TG_API tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s);
/* From fork to join the named stream draws, going on where it was left; a default stream seeded anew meanwhile is
 * logged. Forks nest, also of one name; every fork, a failed one too, has its join; a join alone is TG_ERR_STATE. */
TG_API tg_status tg_rng_fork(tg_ctx *ctx, const char *name);
TG_API tg_status tg_rng_join(tg_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
