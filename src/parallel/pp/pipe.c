/* Creation and end of a pipe, and cleanup after a failed run. */
#include <tapegrad/optim.h>
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "comm/comm.h"
#include "parallel/pp/pipe.h"
#include "parallel/tp/wgrads.h"

/* ---- The end of a run ---- */

void tg_pipe_clear(tg_pipe *x) {
    int cells = x->cell ? x->plan->chunks * x->plan->micros : 0;
    for (int k = 0; k < cells; k++) {
        tg_pipe_cell *c = &x->cell[k];
        for (int i = 0; i < x->n_slots; i++)
            for (int act = 0; act < 2; act++) {
                tg_temp_free(c->arriving[act][i]);
                c->arriving[act][i] = NULL;
            }
        c->tape = NULL;
        c->aux = NULL;
    }
    for (int i = 0; i < x->n_tapes; i++) {
        tg_tape_reset(x->tape[i]);
        x->taken[i] = false;
    }
    if (x->wgrads) tg_wgrads_clear(x->wgrads);
    x->stale = false;
}

/* Fails while the pipe runs, because its items use the tapes and messages that a recovery drops. */
static tg_status groups_recovered(tg_parallel_listener *l) {
    tg_pipe *x = (tg_pipe *)l;
    if (x->running)
        return tg_fail(x->ctx, TG_ERR_STATE,
                       "tg_parallel_recover: a pipe of the tg_parallel is running; return from tg_pipe_run first");
    tg_pipe_clear(x);
    x->stage = tg_parallel_rank(x->p, TG_PP);
    x->placed = false;
    return TG_OK;
}

static void groups_ended(tg_parallel_listener *l) {
    tg_pipe *x = (tg_pipe *)l;
    if (x->stale) tg_pipe_clear(x);
    x->p = NULL; /* a pipe that is running fails after its item (run.c) */
}

static void unlisten(tg_pipe *x) {
    tg_parallel_listener **l = &x->p->listeners;
    while (*l && *l != &x->listener) l = &(*l)->next;
    if (*l) *l = x->listener.next;
}

/* ---- Creation ---- */

static tg_status check_call(const tg_parallel *p, const tg_pipe_plan *plan, const tg_pipe_opts *o) {
    tg_ctx *ctx = p->ctx;
    if (!plan || plan->ctx != ctx)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_new: the plan is %s", plan ? "of another context" : "NULL");
    if (plan->stages != tg_parallel_size(p, TG_PP) || plan->chunks != tg_parallel_vp(p))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_pipe_new: the plan has %s of %s, but the tg_parallel has pp %d and vp %d; expected equal numbers",
            tg_count(plan->stages, "stage").text, tg_count(plan->chunks, "chunk").text, tg_parallel_size(p, TG_PP),
            tg_parallel_vp(p));
    if (o->n_edge < 0 || (o->n_edge && !o->edge) || (!o->n_edge && tg_pipe_parts(plan) > 1))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_pipe_new: n_edge is %d and edge is %p, expected an array of the tensors that go from part to "
            "part, 1 or more",
            o->n_edge, (const void *)o->edge);
    if (o->ahead < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_new: ahead is %d, expected 1 or more", o->ahead);
    return TG_OK;
}

/* Gives every cell its arrays. */
static void lay_out(tg_pipe *x, int cells) {
    tg_tensor **at = x->tensors;
    for (int k = 0; k < cells; k++) {
        tg_pipe_cell *c = &x->cell[k];
        tg_tensor ***to[] = {&c->input, &c->out, &c->arriving[0], &c->arriving[1]};
        for (int i = 0; i < TG_LEN(to); i++, at += x->n_slots) *to[i] = at;
    }
    x->roots = at;
    x->seeds = at + x->n_slots + 1;
}

enum { ARRAYS = 4 }; /* of each cell */

static size_t tensors_bytes(const tg_pipe *x, int cells) {
    return ((size_t)cells * ARRAYS * (size_t)x->n_slots + 2 * (size_t)(x->n_slots + 1)) * sizeof *x->tensors;
}

static int most_tapes(const tg_pipe_plan *plan) {
    int most = 0;
    for (int s = 0; s < plan->stages; s++) {
        int n = tg_pipe_tapes(plan, s);
        if (n > most) most = n;
    }
    return most;
}

/* Allocates what the plan and the edges need. After an error tg_pipe_free frees what was allocated. */
static tg_status allocate(tg_pipe *x) {
    tg_ctx *ctx = x->ctx;
    int cells = x->plan->chunks * x->plan->micros, tapes = most_tapes(x->plan);
    if (!(x->edge = tg_host_alloc(ctx, (size_t)x->n_slots * sizeof *x->edge))) return ctx->run.status;
    if (!(x->tensors = tg_host_alloc(ctx, tensors_bytes(x, cells)))) return ctx->run.status;
    if (!(x->cell = tg_host_alloc(ctx, (size_t)cells * sizeof *x->cell))) return ctx->run.status;
    lay_out(x, cells);
    if (!(x->tape = tg_host_alloc(ctx, (size_t)tapes * sizeof *x->tape))) return ctx->run.status;
    if (!(x->taken = tg_host_alloc(ctx, (size_t)tapes * sizeof *x->taken))) return ctx->run.status;
    if (!(x->done = tg_host_alloc(ctx, 3 * (size_t)x->plan->chunks * sizeof *x->done))) return ctx->run.status;
    if (x->plan->split && !(x->wgrads = tg_wgrads_new(ctx, TG_NONE))) return ctx->run.status;
    for (; x->n_tapes < tapes && ctx->run.status == TG_OK; x->n_tapes++) {
        x->tape[x->n_tapes] = tg_tape_new(ctx);
        if (x->wgrads) tg_tape_defer(x->tape[x->n_tapes], x->wgrads);
    }
    TG_TRY(ctx->run.status);
    x->losses = tg_zeros(ctx, TG_F64, TG_SHAPE(x->plan->micros));
    TG_TRY(ctx->run.status);
    tg_tensor_given(x->losses);
    return TG_OK;
}

static tg_pipe *make(tg_parallel *p, const tg_pipe_plan *plan, const tg_pipe_opts *given) {
    tg_pipe_opts o;
    tg_ctx *ctx = p->ctx;
    if (ctx->run.status != TG_OK) return NULL;
    if (tg_options(ctx, &o, &tg_pipe_opts_struct, given, "tg_pipe_new: the options") != TG_OK) return NULL;
    if (check_call(p, plan, &o) != TG_OK) return NULL;
    tg_pipe *x = tg_host_alloc(ctx, sizeof *x);
    if (!x) return NULL;
    *x = (tg_pipe){.listener = {.recovered = groups_recovered, .ended = groups_ended, .next = p->listeners},
                   .ctx = ctx,
                   .p = p,
                   .plan = plan,
                   .stage = tg_parallel_rank(p, TG_PP),
                   .ahead = o.ahead,
                   .shape = o.shape,
                   .scale = o.scale,
                   .n_edge = o.n_edge,
                   .n_slots = o.n_edge ? o.n_edge : 1};
    p->listeners = &x->listener;
    tg_status s = allocate(x);
    if (s == TG_OK) s = tg_pipe_edge_open(x, &o);
    if (s == TG_OK) s = tg_pipe_compare(x);
    if (s == TG_OK) return x;
    tg_pipe_free(x);
    return NULL;
}

tg_pipe *tg_pipe_new(const tg_parallel *p, const tg_pipe_plan *plan, const tg_pipe_opts *opts) {
    tg_pipe *x = p ? make((tg_parallel *)p, plan, opts) : NULL; /* not const, because p holds the list of its pipes */
    if (p) tg_comm_note_missed(tg_parallel_world(p), x ? TG_OK : TG_ERR_ABORTED);
    return x;
}

void tg_pipe_free(tg_pipe *x) {
    if (!x) return;
    tg_ctx *ctx = x->ctx;
    if (x->running) {
        tg_fail(ctx, TG_ERR_STATE, "tg_pipe_free: the pipe is running; free it after tg_pipe_run");
        return;
    }
    size_t cells = (size_t)x->plan->chunks * (size_t)x->plan->micros, tapes = (size_t)most_tapes(x->plan);
    tg_pipe_clear(x);
    if (x->p) unlisten(x);
    for (int i = 0; i < x->n_tapes; i++) tg_tape_free(x->tape[i]);
    tg_wgrads_free(x->wgrads);
    tg_drop(x->losses);
    tg_host_free(ctx, x->done, 3 * (size_t)x->plan->chunks * sizeof *x->done);
    tg_host_free(ctx, x->taken, tapes * sizeof *x->taken);
    tg_host_free(ctx, x->tape, tapes * sizeof *x->tape);
    tg_host_free(ctx, x->cell, cells * sizeof *x->cell);
    tg_host_free(ctx, x->tensors, tensors_bytes(x, (int)cells));
    tg_host_free(ctx, x->edge, (size_t)x->n_slots * sizeof *x->edge);
    tg_host_free(ctx, x, sizeof *x);
}

tg_tensor *tg_pipe_losses(tg_pipe *x) { return x ? x->losses : tg_inert(&tg_dead_ctx); }
