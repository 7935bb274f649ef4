/* Tools: gradient checks and their reports, texts about tensors, modules, tapes and memory, searches and observers, and
 * the exchange of tensors with other libraries. */
#include <stdlib.h>

#include <tapegrad/dlpack.h>
#include <tapegrad/explain.h>
#include <tapegrad/gradcheck.h>
#include <tapegrad/handles.h>
#include <tapegrad/nn.h>
#include <tapegrad/pipe.h>
#include <tapegrad/work.h>

#include "memory/faults.h"

enum { TEXT = 1 << 14 };

typedef struct tools {
    tg_tensor *x[2], *y;
    tg_module *m;
    tg_pipe_plan *plan;
    tg_gradcheck_info info;
    int64_t events;
    char text[TEXT];
} tools;

static void close_tools(trial *r) {
    tools *d = r->state;
    tg_tape_observe(r->t, NULL, NULL);
    tg_tape_find_nan(r->t, 0);
    tg_tape_reset(r->t);
    tg_pipe_plan_free(d->plan);
    tg_module_free(d->m);
    for (int i = 0; i < 2; i++) tg_drop(d->x[i]);
}

/* ---- Gradient checks ---- */

static tg_status smooth(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_tanh(t, tg_matmul(t, in[0], in[1]));
    return tg_ctx_status(tg_tape_ctx(t));
}

static void open_gradcheck(trial *r) {
    tools *d = r->state;
    for (int i = 0; i < 2; i++) {
        d->x[i] = wave(r, TG_F64, TG_SHAPE(2, 2), i);
        tg_set_requires_grad(d->x[i], true);
    }
    d->info = TG_GRADCHECK_INFO();
}

/* A function whose gradient is wrong, so that a report is written. */
static tg_status wrong(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_add(t, tg_mul(t, in[0], in[1]), tg_detach(t, tg_square(t, in[1])));
    return tg_ctx_status(tg_tape_ctx(t));
}

static void step_gradcheck(trial *r) {
    tools *d = r->state;
    if (tg_gradcheck_report(r->t, in_dir(r, "report.json"), wrong, NULL, d->x, 2, 1, &d->info, NULL) ==
        TG_ERR_GRADIENT)
        tg_ctx_clear(r->ctx);
    tg_gradcheck(r->t, smooth, NULL, d->x, 2, 1, &d->info, TG_GRADCHECK(.second_order = true));
    tg_gradcheck(r->t, smooth, NULL, d->x, 2, 1, &d->info, TG_GRADCHECK(.projections = 2));
    tg_gradcheck_op(r->ctx, tg_op_find("softmax"), 0, &d->info, NULL);
}

static void note_gradcheck(trial *r) {
    tools *d = r->state;
    note_bytes(r, &d->info.worst, sizeof d->info.worst);
    for (int i = 0; i < 2; i++) note(r, d->x[i]);
}

static void square_plain(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * x[i];
}

static void square_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) gx[i] = 2 * x[i] * gy[i];
}

/* Has no context, so its error is put there. */
static void step_gradcheck_fn(trial *r) {
    tools *d = r->state;
    static const double x[] = {1, -2, 0.5};
    d->info = TG_GRADCHECK_INFO();
    tg_status s = tg_gradcheck_fn(square_plain, square_grad, NULL, x, 3, 3, &d->info, NULL);
    if (s != TG_OK) tg_ctx_fail(r->ctx, s, "%s", d->info.report);
}

/* ---- Texts ---- */

static void open_texts(trial *r) {
    tools *d = r->state;
    d->x[0] = wave(r, TG_F32, TG_SHAPE(40, 40), 0);
    d->x[1] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
    d->m = tg_nn_gru(r->ctx, 4, 3, 2, NULL);
    d->plan = tg_pipe_plan_new(r->ctx, TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 3, .micros = 4));
    tg_memory_set_trace(r->ctx, true);
}

static void step_texts(trial *r) {
    tools *d = r->state;
    static const tg_format formats[] = {TG_TEXT, TG_JSON, TG_DOT};
    tg_scope_open(r->t, "scope");
    tg_tensor *y = tg_sum(r->t, tg_module_forward(d->m, r->t, tg_reshape(r->t, d->x[1], TG_SHAPE(3, 1, 4))),
                          TG_ALL_DIMS, false);
    tg_scope_close(r->t, &y, 1);
    for (int i = 0; i < 3; i++) tg_tape_dump(r->t, formats[i], d->text, TEXT);
    tg_explain_grad(r->t, y, tg_module_find(d->m, "weight_ih_l0"), d->text, TEXT);
    tg_memory_report(r->ctx, d->text, TEXT);
    tg_memory_json(r->ctx, d->text, TEXT);
    tg_pipe_plan_text(d->plan, TG_TEXT, d->text, TEXT);
    tg_pipe_plan_text(d->plan, TG_SVG, d->text, TEXT);
    tg_module_print(d->m, d->text, TEXT);
    tg_print(d->x[0], d->text, TEXT, NULL);
    tg_print(tg_transpose(r->t, d->x[1], 0, 1), d->text, TEXT, TG_PRINT(.precision = 3));
}

static void note_texts(trial *r) {
    tools *d = r->state;
    note_bytes(r, d->text, strlen(d->text));
}

/* ---- Observers ---- */

static tg_status observe(void *user, tg_tape *t, const tg_op_event *e) {
    char site[128];
    tg_op_event_site(e, site, sizeof site);
    if (!e->backward && e->n_out) tg_scale(t, e->out[0], 2);
    ++*(int64_t *)user;
    return TG_OK;
}

static void open_observed(trial *r) {
    tools *d = r->state;
    d->m = tg_nn_linear(r->ctx, 4, 3, true, 0.5);
    d->x[0] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
}

static void step_observed(trial *r) {
    tools *d = r->state;
    d->events = 0;
    tg_tape_observe(r->t, observe, &d->events);
    tg_tape_find_nan(r->t, TG_FIND_NAN | TG_FIND_INF);
    for (int i = 0; i < 2; i++) tg_zero_grad(tg_module_param(d->m, i, NULL));
    tg_backward(r->t, tg_sum(r->t, tg_module_forward(d->m, r->t, d->x[0]), TG_ALL_DIMS, false));
}

static void note_observed(trial *r) {
    tools *d = r->state;
    note_bytes(r, &d->events, sizeof d->events);
    for (int i = 0; i < 2; i++) note(r, tg_grad_of(tg_module_param(d->m, i, NULL)));
}

/* ---- Exchange, copies, and named scratch buffers ---- */

static void open_exchange(trial *r) {
    tools *d = r->state;
    d->x[0] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
    d->x[1] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
}

static void step_exchange(trial *r) {
    tools *d = r->state;
    float v[12] = {0};
    struct DLManagedTensorVersioned *exported = tg_dlpack_export(d->x[0]);
    tg_tensor *x = exported ? tg_dlpack_import(r->ctx, exported) : NULL;
    struct DLManagedTensor *old = x ? tg_dlpack_export_unversioned(x) : NULL;
    tg_tensor *y = old ? tg_dlpack_import_unversioned(r->ctx, old) : NULL;
    tg_tensor *lease = tg_lease(r->t, "scratch", TG_F32, TG_SHAPE(3, 4));
    tg_tensor *copy = tg_copy_(r->t, lease, y ? y : d->x[0]);
    tg_drop(x);
    tg_drop(y);
    tg_work *w = tg_download(copy, v, sizeof v);
    if (w) tg_work_wait(w);
    tg_upload(d->x[1], v, sizeof v);
    tg_discard(copy);
}

static void note_exchange(trial *r) { note(r, ((tools *)r->state)->x[1]); }

static const memory_case rows[] = {
    {"gradcheck", NULL, sizeof(tools), false, false, open_gradcheck, step_gradcheck, note_gradcheck, close_tools},
    {"gradcheck of a C function", NULL, sizeof(tools), false, false, NULL, step_gradcheck_fn, NULL, NULL},
    {"texts", NULL, sizeof(tools), false, false, open_texts, step_texts, note_texts, close_tools},
    {"observers", NULL, sizeof(tools), false, false, open_observed, step_observed, note_observed, close_tools},
    {"exchange", NULL, sizeof(tools), false, false, open_exchange, step_exchange, note_exchange, close_tools},
};
const memory_cases tool_cases = {rows, sizeof rows / sizeof *rows};
