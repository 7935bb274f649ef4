/* Reads batches into host memory, on a thread that stays a bounded number of batches ahead or, with prefetch 0, when a
 * batch is taken. */
#include <string.h>

#include "base/os.h"
#include "data/loader.h"
#include "data/order.h"

/* ---- Reading ---- */

/* Reads this rank's samples of a batch to `to`. Returns early if the thread must end; tg_loader_stop then forgets the
 * incomplete batch. */
static tg_status read_batch(const tg_loader *l, tg_batch_at at, char *to) {
    void *out[TG_LOADER_PARTS];
    int64_t first, n = tg_loader_share(l, at, &first);
    for (int64_t i = 0; i < n && !atomic_load_explicit(&l->ring.stop, memory_order_relaxed); i++) {
        char *part = to;
        for (int p = 0; p < l->n; p++) {
            out[p] = part + (size_t)i * tg_loader_part_bytes(l, p);
            part += (size_t)n * tg_loader_part_bytes(l, p);
        }
        int64_t sample = l->opts.shuffle ? tg_order_at(l->opts.seed, at.epoch, l->samples, first + i) : first + i;
        tg_status s = l->ops->read(l->state, l->errors, sample, out);
        if (s != TG_OK)
            return tg_ctx_fail(l->errors, s, "tg_loader_next: the source returned %s for sample %lld",
                               tg_status_name(s), (long long)sample);
    }
    return l->errors->run.status;
}

/* Waits for a free place, and returns it. Returns -1 if the thread must end, also because a read has failed. */
static int await_place(tg_loader_ring *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->stop && r->filled == r->places) pthread_cond_wait(&r->changed, &r->lock);
    int place = r->stop || r->failed ? -1 : (r->first + r->filled) % r->places;
    pthread_mutex_unlock(&r->lock);
    return place;
}

/* Reads the next batch into a free place. On an error sets ring.failed. */
static void read_next(tg_loader *l, int place) {
    tg_loader_ring *r = &l->ring;
    tg_status s = read_batch(l, r->reads, r->bytes + (size_t)place * l->bytes);
    r->reads = tg_loader_after(l, r->reads);
    pthread_mutex_lock(&r->lock);
    if (s == TG_OK)
        r->filled++;
    else
        r->failed = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- The thread ---- */

static void *work(void *arg) {
    tg_loader *l = arg;
    for (int place; (place = await_place(&l->ring)) >= 0;) read_next(l, place);
    return NULL;
}

static tg_status start(tg_loader *l) {
    int error = tg_system_thread(&l->ring.thread, work, l);
    if (error)
        return tg_fail(l->ctx, TG_ERR_MEMORY,
                       "tg_loader_next: cannot start the thread that reads ahead: %s; use "
                       ".prefetch = 0",
                       strerror(error));
    l->ring.running = true;
    return TG_OK;
}

void tg_loader_stop(tg_loader *l) {
    tg_loader_ring *r = &l->ring;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->running) pthread_join(r->thread, NULL);
    r->running = r->failed = false;
    r->stop = false;
    r->first = r->filled = 0;
    r->reads = l->at;
    tg_ctx_clear(l->errors);
}

/* ---- Taking ---- */

const char *tg_loader_take(tg_loader *l) {
    tg_loader_ring *r = &l->ring;
    if (l->opts.prefetch && !r->running && start(l) != TG_OK) return NULL;
    if (!l->opts.prefetch && !r->filled) read_next(l, await_place(r)); /* a batch whose upload failed is still there */
    pthread_mutex_lock(&r->lock);
    while (!r->filled && !r->failed) pthread_cond_wait(&r->changed, &r->lock);
    bool found = r->filled > 0;
    pthread_mutex_unlock(&r->lock);
    if (found) return r->bytes + (size_t)r->first * l->bytes;
    tg_loader_pass_error(l->ctx, l->errors);
    tg_loader_stop(l);
    return NULL;
}

void tg_loader_release(tg_loader *l) {
    tg_loader_ring *r = &l->ring;
    pthread_mutex_lock(&r->lock);
    r->first = (r->first + 1) % r->places;
    r->filled--;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    l->at = tg_loader_after(l, l->at);
}
