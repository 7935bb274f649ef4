/* Ranks as threads of one process, each with a context and a communicator of its own (tg_ranks_run). */
#include <limits.h>
#include <stdio.h>
#include <tapegrad/ranks.h>

#include "base/options.h"
#include "base/text.h"
#include "base/os.h"
#include "comm/shm/shm.h"

/* One rank: the arguments of its thread, and its result. */
typedef struct rank_thread {
    tg_region *region;
    const tg_config *config;
    tg_rank_fn fn;
    void *arg;
    int rank;
    pthread_t thread;
    tg_status status;
    uint64_t order; /* number of its failure among the failures of all ranks */
    char message[2048];
} rank_thread;

/* ---- One rank ---- */

/* Sets the result of a rank that failed. */
static void fail_rank(rank_thread *t, tg_status status, const char *message) {
    tg_rank_slot *rank_slot = &t->region->rank_slot[t->rank];
    uint64_t order = atomic_load_explicit(&rank_slot->order, memory_order_relaxed);
    size_t at = 0;
    t->status = status;
    t->order = order ? order : 1 + atomic_fetch_add_explicit(&t->region->failures, 1, memory_order_relaxed);
    tg_text(t->message, sizeof t->message, &at, "%s", message);
}

/* Publishes in the rank slot that the rank has returned, and with which error. */
static void post_return(rank_thread *t) {
    tg_rank_slot *rank_slot = &t->region->rank_slot[t->rank];
    if (t->status != TG_OK) {
        tg_shared_text_write(&rank_slot->failure, t->message);
        atomic_store_explicit(&rank_slot->status, (int)t->status, memory_order_release);
    }
    atomic_store_explicit(&rank_slot->state, TG_RANK_RETURNED, memory_order_release);
}

static void run_rank(rank_thread *t, tg_ctx *ctx) {
    tg_region_view view = {.region = t->region, .me = t->rank, .fd = -1};
    tg_comm *world = tg_ok(ctx) ? tg_shm_world(ctx, &view, NULL) : NULL;
    tg_status s = world ? t->fn(t->arg, ctx, world) : tg_ctx_status(ctx);
    char text[96];
    size_t at = 0;
    tg_text(text, sizeof text, &at, "its function returned %s", tg_status_name(s));
    if (tg_ctx_status(ctx) != TG_OK)
        fail_rank(t, tg_ctx_status(ctx), tg_ctx_message(ctx));
    else if (s != TG_OK)
        fail_rank(t, s, text), atomic_store(&t->region->rank_slot[t->rank].cause, -1); /* this rank is the cause */
    post_return(t);
    tg_comm_free_all(world);
}

/* Runs one rank in its thread. If the device is "cuda" without an index, each rank gets its own GPU. */
static void *rank_main(void *arg) {
    rank_thread *t = arg;
    tg_config own = *t->config;
    char gpu[24];
    snprintf(gpu, sizeof gpu, "cuda:%d", t->rank);
    if (own.device && !strcmp(own.device, "cuda")) own.device = gpu;
    tg_ctx *ctx = tg_ctx_new(&own);
    run_rank(t, ctx);
    tg_ctx_free(ctx);
    return NULL;
}

/* ---- All ranks ---- */

/* Writes the error message of a rank into the buffer that the caller of tg_ranks_run has given, if any. */
static void write_message(const tg_ranks_opts *o, int rank, const char *message) {
    if (o->message && o->message_size) snprintf(o->message, o->message_size, "rank %d: %s", rank, message);
}

/* Reports the failure that came first, and returns its status. Of the ranks that failed with the same status and
 * message it names the lowest, so that a program that fails on all ranks always reports the same rank. */
static tg_status first_failure(const rank_thread *t, int n, const tg_ranks_opts *o) {
    const rank_thread *first = NULL;
    for (int i = 0; i < n; i++)
        if (t[i].status != TG_OK && (!first || t[i].order < first->order)) first = &t[i];
    for (int i = n - 1; first && i >= 0; i--)
        if (t[i].status == first->status && !strcmp(t[i].message, first->message)) first = &t[i];
    if (first) write_message(o, first->rank, first->message);
    return first ? first->status : TG_OK;
}

/* Starts all ranks, waits for them, and returns the status of the first failure. If a thread cannot be started, no
 * later one is, and it returns TG_ERR_MEMORY. */
static tg_status run_all(rank_thread *t, int n, const tg_ranks_opts *o) {
    int started = 0, error = 0;
    for (; started < n; started++)
        if ((error = pthread_create(&t[started].thread, NULL, rank_main, &t[started]))) break;
    for (int i = started; i < n; i++) { /* the other ranks must not wait for ranks that did not start */
        tg_rank_slot *rank_slot = &t[i].region->rank_slot[i];
        tg_shared_text_write(&rank_slot->failure, "its thread could not be started");
        atomic_store_explicit(&rank_slot->status, TG_ERR_MEMORY, memory_order_release);
        atomic_store_explicit(&rank_slot->state, TG_RANK_RETURNED, memory_order_release);
    }
    for (int i = 0; i < started; i++) pthread_join(t[i].thread, NULL);
    if (started == n) return first_failure(t, n, o);
    write_message(o, started, "its thread could not be started; ask for fewer ranks");
    return TG_ERR_MEMORY;
}

/* Writes into the same buffer why n ranks cannot run. Returns `status`. */
static tg_status refuse_ranks(const tg_ranks_opts *o, int n, tg_status status, const char *why) {
    if (o->message && o->message_size) snprintf(o->message, o->message_size, "%s: %s", tg_count(n, "rank").text, why);
    return status;
}

static tg_status check_options(int n, tg_rank_fn fn, const tg_ranks_opts *o) {
    if (n < 1 || n > TG_MAX_RANKS) return refuse_ranks(o, n, TG_ERR_ARGUMENT, "expected 1 to 1024");
    return fn ? TG_OK : refuse_ranks(o, n, TG_ERR_ARGUMENT, "the function is NULL");
}

/* Runs n ranks with this configuration, in a region that lives as long as they do. */
static tg_status run_config(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *o, const tg_config *config) {
    tg_allocator a = config->allocator.alloc && config->allocator.free ? config->allocator : tg_system_allocator();
    tg_region *region = tg_region_new(n, &a);
    rank_thread *t = region ? a.alloc(a.user, (size_t)n * sizeof *t, _Alignof(max_align_t)) : NULL;
    tg_status s = TG_ERR_MEMORY;
    if (t) {
        memset(t, 0, (size_t)n * sizeof *t);
        for (int i = 0; i < n; i++)
            t[i] = (rank_thread){.region = region, .config = config, .fn = fn, .arg = arg, .rank = i};
        s = run_all(t, n, o);
        a.free(a.user, t, (size_t)n * sizeof *t);
    } else {
        refuse_ranks(o, n, s, "out of memory");
    }
    tg_region_free(region);
    return s;
}

tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *given) {
    tg_ranks_opts o;
    tg_config config;
    if (given && (given->size < sizeof(size_t) || given->size > sizeof o)) return TG_ERR_ARGUMENT;
    tg_options_complete(&o, &tg_ranks_opts_struct, given);
    if (o.message && o.message_size) o.message[0] = 0;
    if (o.message && !o.message_size) return TG_ERR_ARGUMENT;
    TG_TRY(check_options(n, fn, &o));
    if (o.config && (o.config->size < sizeof(size_t) || o.config->size > sizeof config))
        return refuse_ranks(&o, n, TG_ERR_ARGUMENT, "the config's size was never set, or is that of a later version");
    tg_options_complete(&config, &tg_config_struct, o.config);
    int cores = tg_system_cores();
    if (config.threads == TG_AUTO) config.threads = cores > n ? cores / n : 1;
    return run_config(n, fn, arg, &o, &config);
}
