/* Ranks as threads of one process. Include it to run a parallel program without a launcher, as tests do. */
#ifndef TAPEGRAD_RANKS_H
#define TAPEGRAD_RANKS_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function that each rank runs. arg is that of tg_ranks_run. ctx and world belong to the rank; both are freed after
 * the function returns. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    /* Configuration of every rank's context. NULL: defaults. threads 0: the cores are shared evenly. With device
     * "cuda", rank r uses GPU r. */
    const tg_config *config;
    /* Receives the error of the rank that failed first, as "rank 2: ..."; the lowest rank among equals. NULL: not
     * wanted. */
    char *message;
    size_t message_size;     /* size of message in bytes, 1 or more; a longer text is cut */
} tg_ranks_opts;

#define TG_RANKS(...) (&(tg_ranks_opts){.size = sizeof(tg_ranks_opts), __VA_ARGS__})

/* Runs fn on n threads (1 to 1024), one rank each, and joins them. Returns the status of the rank that failed first,
 * not the TG_ERR_REMOTE of its peers. opts may be NULL. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
