/* Ranks as threads of one process. Include it to run a parallel program without a launcher, as tests do. */
#ifndef TAPEGRAD_RANKS_H
#define TAPEGRAD_RANKS_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function that each rank runs. arg is the arg of tg_ranks_run, the same on all ranks. ctx and world are the rank's
 * own context and communicator. After the function returns, tg_ranks_run frees both, with the groups of world that are
 * left; the function must not free them. The rank has failed if the function returns another status than TG_OK, or if
 * ctx then has an error. A rank whose context cannot be created fails without calling it. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    /* Configuration of every rank's context. NULL means all defaults. If config->threads is TG_AUTO, the ranks share
     * the cores evenly, and each has at least one thread. If config->device is "cuda", rank r uses GPU r. All ranks
     * call config->allocator and the other callbacks of config, several ranks at a time. */
    const tg_config *config;
    /* Buffer for the error: that of the rank that failed first, as "rank 2: ...", or why the ranks could not run. If
     * several ranks failed with the same status and message, the text names the lowest of them. The text is "" if the
     * call returns TG_OK. NULL means that the caller does not want the text. */
    char *message;
    size_t message_size; /* size of message in bytes, 1 or more unless message is NULL; a longer text is cut */
} tg_ranks_opts;

#define TG_RANKS_DEFAULTS .size = sizeof(tg_ranks_opts)
#define TG_RANKS(...) (&(tg_ranks_opts){TG_RANKS_DEFAULTS, __VA_ARGS__})

/* Runs fn on n threads (1 to 1024), one for each rank, and joins the threads. Returns TG_OK if no rank failed.
 * Otherwise returns the status of the rank that failed first, not the TG_ERR_REMOTE of its peers. opts may be NULL.
 *
 * Returns TG_ERR_ARGUMENT if n, fn or an option is invalid, and TG_ERR_MEMORY if memory is short or a thread cannot be
 * started. In the last case the lower ranks have run, and those that waited for the missing rank have failed. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
