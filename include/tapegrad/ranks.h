/* Ranks as threads of one process. */
#ifndef TAPEGRAD_RANKS_H
#define TAPEGRAD_RANKS_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The body of one rank: ctx and world are its own, both freed after it returns. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    const tg_config *config; /* of every rank's context; NULL: defaults. threads 0: the cores shared out evenly; device
                                "cuda": rank r gets GPU r */
    char *message;           /* receives the error of the rank that failed first, of those alike the lowest: ... */
    size_t message_size;     /* ... "rank 2: ...", cut to so many bytes */
} tg_ranks_opts;

#define TG_RANKS(...) (&(tg_ranks_opts){.size = sizeof(tg_ranks_opts), __VA_ARGS__})

/* Runs fn on n threads (1 to 1024), a rank each, and joins them. Returns the status of the rank that failed first, not
 * the TG_ERR_REMOTE of its peers. opts may be NULL. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
