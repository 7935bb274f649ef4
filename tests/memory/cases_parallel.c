/* What training over ranks adds, on one rank: buckets of gradients and of parameters, deferred weight gradients, and
 * pipelines. */
#include <tapegrad/data_parallel.h>

#include "memory/training.h"

enum { MICROS = 3 };

/* ---- Buckets and deferred gradients ---- */

static const char *const zeros[] = {"0", "1", "2", "3"};

static const char *zero_name(int i) { return i < 4 ? zeros[i] : NULL; }

static void open_flat(trial *r) {
    work *w = r->state;
    tg_tensor *const *leaves = NULL;
    open_layers(r);
    for (int i = 0; i < 2; i++) tg_module_replicate(w->m[i], r->p);
    w->flat = tg_flat_new(r->p, w->param, PARAMS, TG_FLAT(.zero = r->name[0] - '0', .bucket = 16));
    if (r->name[0] == '3') tg_flat_watch(w->flat, w->m, 2);
    int n = r->name[0] == '0' ? PARAMS : tg_flat_leaves(w->flat, &leaves);
    w->o = tg_adamw_new(r->ctx, leaves ? leaves : w->param, n, NULL);
    tg_optim_set_clip(w->o, 1);
    w->deferred = tg_wgrads_new(r->ctx, TG_NONE);
}

static void step_flat(trial *r) {
    work *w = r->state;
    tg_optim_zero_grad(w->o);
    for (int i = 0; i < PARAMS; i++) tg_zero_grad(w->param[i]);
    tg_tape_defer(r->t, w->deferred);
    tg_backward(r->t, loss_of(r, w->x));
    tg_wgrads_run(w->deferred);
    tg_grads_finalize(r->p, w->param, PARAMS, NULL);
    tg_optim_step(w->o);
    if (r->name[0] != '0') tg_flat_gather(w->flat);
}

static void note_flat(trial *r) {
    work *w = r->state;
    tg_flat_set_whole(w->flat, true);
    note_params(r);
    tg_flat_set_whole(w->flat, false);
}

/* ---- Pipelines ---- */

static const char *const schedules[] = {"GPipe", "1F1B", "ZB-H1", "forward"};

static const char *schedule_name(int i) { return i < 4 ? schedules[i] : NULL; }

static void open_pipe(trial *r) {
    static const tg_pipe_kind kinds[] = {TG_PIPE_GPIPE, TG_PIPE_1F1B, TG_PIPE_ZB_H1, TG_PIPE_FORWARD};
    work *w = r->state;
    int kind = 0;
    while (strcmp(schedules[kind], r->name)) kind++;
    open_layers(r);
    for (int i = 0; i < 2; i++) tg_module_replicate(w->m[i], r->p);
    w->o = tg_adamw_new(r->ctx, w->param, PARAMS, NULL);
    w->plan = tg_pipe_plan_new(r->ctx, TG_PIPE_PLAN(.kind = kinds[kind], .stages = 1, .micros = MICROS));
    w->pipe = tg_pipe_new(r->p, w->plan, NULL);
}

static tg_status part(void *state, tg_pipe_call *c) {
    trial *r = state, inner = *r;
    work *w = r->state;
    inner.t = c->tape;
    c->out[0] = loss_of(&inner, tg_scale(c->tape, w->x, 1 + c->micro));
    return tg_ctx_status(r->ctx);
}

static void step_pipe(trial *r) {
    work *w = r->state;
    tg_optim_zero_grad(w->o);
    tg_pipe_run(w->pipe, part, r);
    tg_grads_finalize(r->p, w->param, PARAMS, NULL);
    tg_optim_step(w->o);
}

static void note_pipe(trial *r) {
    work *w = r->state;
    note_params(r);
    note(r, tg_pipe_losses(w->pipe));
}

static const memory_case rows[] = {
    {"buckets, zero", zero_name, sizeof(work), true, true, open_flat, step_flat, note_flat, close_layers},
    {"pipeline", schedule_name, sizeof(work), true, false, open_pipe, step_pipe, note_pipe, close_layers},
};
const memory_cases parallel_cases = {rows, sizeof rows / sizeof *rows};
