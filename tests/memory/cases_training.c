/* Optimizers, averages, L-BFGS, captured steps, recomputation, packed tensors, and derivatives of derivatives. */
#include <tapegrad/capture.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/recompute.h>

#include "memory/training.h"

/* ---- Optimizers ---- */

static const char *const optimizers[] = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Muon"};

static const char *optimizer_name(int i) { return i < 7 ? optimizers[i] : NULL; }

static tg_optim *optimizer(tg_ctx *ctx, const char *name, tg_tensor **p, int n) {
    if (!strcmp(name, "SGD")) return tg_sgd_new(ctx, p, n, TG_SGD(.lr = 0.1, .momentum = 0.9));
    if (!strcmp(name, "Adam")) return tg_adam_new(ctx, p, n, NULL);
    if (!strcmp(name, "AdamW")) return tg_adamw_new(ctx, p, n, NULL);
    if (!strcmp(name, "RMSprop")) return tg_rmsprop_new(ctx, p, n, TG_RMSPROP(.momentum = 0.5, .centered = true));
    if (!strcmp(name, "Adagrad")) return tg_adagrad_new(ctx, p, n, TG_ADAGRAD(.initial = 0.1));
    if (!strcmp(name, "Lion")) return tg_lion_new(ctx, p, n, NULL);
    return tg_muon_new(ctx, p, n, TG_MUON(.others = p + 2, .n_others = 1));
}

static void open_optimizer(trial *r) {
    work *w = r->state;
    open_layers(r);
    tg_module_cast(w->m[1], TG_BF16);
    w->o = optimizer(r->ctx, r->name, w->param, PARAMS);
    tg_optim_no_decay_1d(w->o);
    int group = tg_optim_add_group(w->o, TG_GROUP(.schedule = TG_SCHEDULE(.lr = 0.1, .steps = 9)));
    if (group > 0) tg_optim_assign(w->o, group, w->param, 1);
    tg_set_name(w->param[1], "first.bias");
    tg_optim_assign_named(w->o, 0, "bias");
    tg_optim_set_clip(w->o, 0.5);
    tg_optim_set_scale(w->o, TG_LOSS_SCALE(.initial = 64, .interval = 2));
    w->average[0] = tg_ema_new(r->ctx, w->param, PARAMS, 0.9);
    w->average[1] = tg_swa_new(r->ctx, w->param, PARAMS);
}

static void step_optimizer(trial *r) {
    work *w = r->state;
    tg_optim_zero_grad(w->o);
    tg_backward(r->t, tg_scale_loss(r->t, loss_of(r, w->x), w->o));
    tg_optim_step(w->o);
}

static void note_optimizer(trial *r) {
    work *w = r->state;
    int64_t steps = tg_optim_steps(w->o);
    note_params(r);
    note_bytes(r, &steps, sizeof steps);
    for (int i = 0; i < tg_optim_state_count(w->o); i++) note(r, tg_optim_state(w->o, i, NULL));
}

/* ---- Averages ---- */

static void open_averages(trial *r) {
    work *w = r->state;
    open_layers(r);
    tg_module_cast(w->m[1], TG_BF16);
    w->average[0] = tg_ema_new(r->ctx, w->param, PARAMS, 0.9);
    w->average[1] = tg_swa_new(r->ctx, w->param, PARAMS);
    for (int i = 0; i < 2; i++) tg_average_update(w->average[i]);
}

/* Applies the averages and takes them back, as for an evaluation. A repeated step begins where this one has ended. */
static void step_averages(trial *r) {
    work *w = r->state;
    for (int i = 0; i < 2; i++) {
        tg_average_apply(w->average[i]);
        tg_average_restore(w->average[i]);
    }
}

/* ---- L-BFGS ---- */

static tg_status evaluate(void *user, double *loss) {
    trial *r = user;
    work *w = r->state;
    tg_tensor *y = loss_of(r, w->x);
    *loss = tg_item(y);
    tg_status s = tg_backward(r->t, y);
    tg_tape_reset(r->t);
    return s;
}

static void open_lbfgs(trial *r) {
    work *w = r->state;
    open_layers(r);
    w->lbfgs = tg_lbfgs_new(r->ctx, w->param, PARAMS, TG_LBFGS(.iterations = 3));
}

static void step_lbfgs(trial *r) {
    work *w = r->state;
    tg_lbfgs_step(w->lbfgs, evaluate, r, &w->loss);
}

/* ---- A captured step, which the CPU calls op by op ---- */

static tg_status one_step(void *state, tg_ctx *ctx) {
    trial *r = state;
    work *w = r->state;
    tg_optim_zero_grad(w->o);
    tg_backward(r->t, loss_of(r, w->x));
    tg_optim_step(w->o);
    tg_tape_reset(r->t);
    return tg_ctx_status(ctx);
}

static void open_graph(trial *r) {
    work *w = r->state;
    open_layers(r);
    w->o = tg_adamw_new(r->ctx, w->param, PARAMS, NULL);
    w->graph = tg_graph_new(r->ctx, one_step, r);
}

static void step_graph(trial *r) { tg_graph_replay(((work *)r->state)->graph); }

/* ---- Recomputation, packed tensors and derivatives of derivatives ---- */

static tg_status layers_of(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    work *w = state;
    (void)n_in, (void)n_out;
    tg_tensor *y = tg_dropout(t, tg_tanh(t, tg_module_forward(w->m[0], t, in[0])), 0.2);
    out[0] = tg_module_forward(w->m[1], t, y);
    return tg_ctx_status(tg_tape_ctx(t));
}

static void step_recompute(trial *r) {
    work *w = r->state;
    tg_tensor *y, *z, *x = tg_tape_input(r->t, w->x);
    for (int i = 0; i < PARAMS; i++) tg_zero_grad(w->param[i]);
    tg_recompute(r->t, layers_of, w, &x, 1, &y, 1, TG_RECOMPUTE(.name = "layers"));
    tg_replay *replay = tg_replay_open(r->t);
    tg_replay_run(replay, layers_of, w, &y, 1, &z, 1, NULL);
    tg_tensor *loss = tg_sum(r->t, tg_square(r->t, z), TG_ALL_DIMS, false);
    tg_replay_close(replay, loss);
    tg_backward_with(r->t, &loss, 1, TG_BACKWARD(.retain = true));
    w->out[0] = loss;
}

static void note_grads(trial *r) {
    work *w = r->state;
    note(r, w->out[0]);
    for (int i = 0; i < PARAMS; i++)
        if (tg_has_grad(w->param[i])) note(r, tg_grad_of(w->param[i]));
}

static tg_status pack(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    (void)user;
    *packed = tg_keep(tg_cast(t, x, TG_F64));
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status unpack(void *user, void *packed, tg_tensor *x) {
    double v[64];
    (void)user;
    tg_read_f64(packed, v, tg_numel(x));
    return tg_write_f64(x, v, tg_numel(x));
}

static void drop_packed(void *user, void *packed) {
    (void)user;
    tg_drop(packed);
}

static void step_packed(trial *r) {
    work *w = r->state;
    for (int i = 0; i < PARAMS; i++) tg_zero_grad(w->param[i]);
    tg_tape_pack(r->t, TG_PACK_OPS(.pack = pack, .unpack = unpack, .drop = drop_packed));
    tg_scope_open(r->t, "packed");
    tg_tensor *y = loss_of(r, w->x);
    tg_scope_close(r->t, &y, 1);
    tg_tape_pack(r->t, NULL);
    tg_backward_with(r->t, &y, 1, TG_BACKWARD(.retain = true));
    w->out[0] = y;
}

static void step_derivatives(trial *r) {
    work *w = r->state;
    tg_tensor *g[2], *d[1], *hv[1];
    for (int i = 0; i < PARAMS; i++) tg_zero_grad(w->param[i]);
    tg_tensor *y = loss_of(r, w->x);
    tg_grad(r->t, &y, 1, w->param, 2, g, TG_GRAD(.create_graph = true));
    tg_tensor *penalty = tg_sum(r->t, tg_square(r->t, g[0]), TG_ALL_DIMS, false);
    tg_backward_with(r->t, &penalty, 1, TG_BACKWARD(.retain = true));
    tg_tensor *again = loss_of(r, w->x);
    tg_jvp(r->t, &again, 1, w->param, 1, w->param, d);
    tg_hvp(r->t, again, w->param, 1, w->param, hv);
    w->out[0] = tg_add(r->t, penalty, tg_add(r->t, d[0], tg_sum(r->t, hv[0], TG_ALL_DIMS, false)));
}

static const memory_case rows[] = {
    {"optimizer", optimizer_name, sizeof(work), false, false, open_optimizer, step_optimizer, note_optimizer,
     close_layers},
    {"averages", NULL, sizeof(work), false, true, open_averages, step_averages, note_params, close_layers},
    {"L-BFGS", NULL, sizeof(work), false, true, open_lbfgs, step_lbfgs, note_params, close_layers},
    {"captured step", NULL, sizeof(work), false, false, open_graph, step_graph, note_params, close_layers},
    {"recomputation", NULL, sizeof(work), false, false, open_layers, step_recompute, note_grads, close_layers},
    {"packed tensors", NULL, sizeof(work), false, false, open_layers, step_packed, note_grads, close_layers},
    {"derivatives", NULL, sizeof(work), false, false, open_layers, step_derivatives, note_grads, close_layers},
};
const memory_cases training_cases = {rows, sizeof rows / sizeof *rows};
