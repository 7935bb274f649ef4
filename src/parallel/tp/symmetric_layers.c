/* tg_module_set_symmetric: row layers that sum in symmetric memory while no gradients are recorded. All row layers of a
 * module that have one communicator share one block, because a layer needs it only during its forward. */
#include "base/memory/host_memory.h"
#include "parallel/tp/layers.h"

struct tg_symmetric_pool {
    tg_ctx *ctx;
    tg_comm *comm;
    tg_symmetric *buffer;
    size_t asked; /* the size that was asked for; the buffer may have 0 bytes, where the transport has no such memory */
    int layers;   /* the number of layers that use it */
    tg_symmetric_pool *next; /* while tg_module_set_symmetric runs: the other pools of the module */
};

void tg_symmetric_drop(tg_symmetric_pool *s) {
    if (!s || --s->layers) return;
    tg_symmetric_free(s->buffer);
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_symmetric *tg_symmetric_of_size(tg_symmetric_pool *s, size_t bytes) {
    if (s->buffer && bytes <= s->asked) return s->buffer;
    tg_symmetric_free(s->buffer);
    s->buffer = tg_symmetric_new(s->comm, bytes);
    s->asked = s->buffer ? bytes : 0;
    return s->buffer;
}

/* Returns the pool of this communicator in the list, with one more layer; a new one if there is none. Returns NULL
 * after recording an error. */
static tg_symmetric_pool *pool_of(tg_symmetric_pool **list, tg_ctx *ctx, tg_comm *comm) {
    for (tg_symmetric_pool *s = *list; s; s = s->next)
        if (s->comm == comm) {
            s->layers++;
            return s;
        }
    tg_symmetric_pool *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return NULL;
    *s = (tg_symmetric_pool){.ctx = ctx, .comm = comm, .layers = 1, .next = *list};
    return *list = s;
}

/* Gives a row layer symmetric memory from the list if `kind` needs it and the layer all-reduces its output over several
 * ranks; else none. */
static tg_status set_layer(tg_parallel_linear *s, tg_symmetric_ar kind, tg_symmetric_pool **list) {
    tg_symmetric_pool *pool = NULL;
    bool sums = !s->sp && !s->expert_comm && tg_comm_size(s->comm) > 1;
    if (kind != TG_AR_NONE && sums && !(pool = pool_of(list, s->ctx, s->comm))) return s->ctx->run.status;
    tg_symmetric_drop(s->symmetric);
    s->symmetric = pool;
    s->symmetric_kind = kind;
    return TG_OK;
}

static tg_status set_all(tg_module *m, tg_symmetric_ar kind, tg_symmetric_pool **list) {
    if (tg_is_parallel_linear(m) && tg_parallel_linear_of(m)->kind->mode == TG_LINEAR_ROW)
        TG_TRY(set_layer(m->state, kind, list));
    for (const tg_module_entry *e = m->first; e; e = e->next)
        if (e->child) TG_TRY(set_all(e->child, kind, list));
    return TG_OK;
}

tg_status tg_module_set_symmetric(tg_module *m, tg_symmetric_ar kind) {
    tg_symmetric_pool *list = NULL;
    if (!m) return TG_ERR_ARGUMENT;
    if (!tg_module_ok(m)) return tg_ctx_status(m->ctx);
    if ((unsigned)kind > TG_AR_MULTIMEM)
        return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                       "tg_module_set_symmetric: kind is %d, expected TG_AR_NONE, _TWO_SHOT, _ONE_SHOT or _MULTIMEM",
                       (int)kind);
    return set_all(m, kind, &list);
}
