/* A use of a captured module as one node: forward copies the inputs to the slot and replays its forward, backward does
 * the same with the gradients of the outputs. The engine then accumulates the gradients as it does those of any op, so
 * hooks, main gradients and sums over ranks need nothing of their own. */
#include "autograd/grad_sink.h"
#include "nn/captured/captured.h"
#include "ops/common/op.h"
#include "tape/call.h"

typedef struct captured_params {
    const tg_captured_slot *slot;
} captured_params;

/* ---- The op ---- */

/* Outputs are tensors of the tape, which the next use of the slot does not overwrite. Of the inputs the leaves are
 * saved, because the graph reads them where they are. */
static tg_status captured_infer(tg_call *c) {
    const tg_captured_slot *s = ((const captured_params *)c->params)->slot;
    for (int i = 0; i < s->n_out; i++) {
        const tg_tensor *y = s->out[i];
        TG_TRY(tg_call_out(c, i, (tg_dtype)y->dtype, y->ndim, y->shape));
        c->out[i]->place = y->place;
    }
    c->saves_in = ~0u << s->of->n_in;
    tg_call_placed(c);
    return c->ctx->run.status;
}

static tg_status captured_forward(tg_call *c) {
    const tg_captured_slot *s = ((const captured_params *)c->params)->slot;
    for (int i = 0; i < s->of->n_in; i++) TG_TRY(tg_op_copy(c, tg_array_of(s->in[i]), tg_array_of(c->input[i]), false));
    TG_TRY(tg_graph_run(s->graph, 0, c->tape->micro, tg_call_site(c)));
    for (int i = 0; i < s->n_out; i++) TG_TRY(tg_op_copy(c, tg_array_of(c->out[i]), tg_array_of(s->out[i]), false));
    return TG_OK;
}

/* Copies the gradients of the outputs to the slot. An output without one has a gradient of zeros. */
static tg_status put_seeds(tg_call *c, const tg_captured_slot *s) {
    for (int i = 0; i < s->n_out; i++) {
        if (!s->seed[i]) continue;
        tg_array seed = tg_array_of(s->seed[i]);
        TG_TRY(c->gout[i] ? tg_op_copy(c, seed, tg_array_of(c->gout[i]), false)
                          : c->ctx->run.ops->fill(c->ctx, seed, 0));
    }
    return TG_OK;
}

static tg_status give_gradients(tg_call *c, const tg_captured_slot *s) {
    for (int i = 0; i < c->n_in; i++) {
        if (c->gin_mode[i] == TG_GRAD_NONE) continue;
        if (s->grad[i])
            TG_TRY(tg_op_copy(c, tg_array_of(c->gin[i]), tg_array_of(s->grad[i]), tg_adds(c, i)));
        else
            tg_call_decline(c, i);
    }
    return TG_OK;
}

static tg_status captured_backward(tg_call *c) {
    tg_captured_slot *s = ((tg_captured_use *)c->state)->slot;
    if (tg_call_retains(c))
        return tg_call_fail(c, TG_ERR_UNSUPPORTED,
                            "the backward of a captured module releases what its forward has saved, so it cannot run "
                            "with .retain = true; call the module outside of tg_captured_new");
    TG_TRY(put_seeds(c, s));
    TG_TRY(tg_graph_run(s->graph, 1, c->tape->micro, tg_call_site(c)));
    TG_TRY(give_gradients(c, s));
    s->use = 0;
    return TG_OK;
}

#define CAPTURED_OP(collective_)                                                                                       \
    {                                                                                                                  \
        .size = sizeof(tg_op), .name = "captured", .formula = "fn(x...)", .n_in = -1, .n_out = -1,                     \
        .params_size = sizeof(captured_params), .saves_in = ~0u, .family = TG_FAMILY_CUSTOM, .sums_f32 = true,         \
        .collective = collective_, .infer = captured_infer, .forward = captured_forward,                               \
        .backward = captured_backward,                                                                                 \
    }

static const tg_op captured_op = CAPTURED_OP(false);
/* The op for modules that communicate with other ranks: its backward runs on all ranks or on none. */
static const tg_op captured_of_ranks_op = CAPTURED_OP(true);

/* ---- A use ---- */

/* Called when the node ends, which its backward may not have reached. */
static void end_use(void *state) {
    const tg_captured_use *u = state;
    tg_captured *c = u->slot->of;
    if (u->slot->use == u->number) u->slot->use = 0;
    tg_captured_unref(c);
}

/* Makes the slot one in use. Returns NULL after recording the error. */
static tg_captured_use *begin_use(tg_captured_slot *s, tg_tape *t) {
    tg_captured_use *u = tg_tape_alloc(t, sizeof *u);
    if (!u) return NULL;
    *u = (tg_captured_use){s, ++s->of->uses};
    s->use = u->number;
    s->micro = t->micro;
    s->of->refs++;
    return u;
}

tg_status tg_captured_run(tg_captured_slot *s, tg_tape *t, tg_tensor *const *in, tg_tensor **out, const void *site) {
    const captured_params p = {s};
    int n_in = s->of->n_in, n = n_in + s->n_leaves;
    tg_tensor **all = tg_tape_alloc(t, (size_t)n * sizeof *all);
    tg_captured_use *use = all ? begin_use(s, t) : NULL;
    if (!use) return t->ctx->run.status;
    for (int i = 0; i < n_in; i++) all[i] = in[i];
    for (int i = 0; i < s->n_leaves; i++) all[n_in + i] = s->leaf[i].tensor;
    const tg_op *op = s->collective ? &captured_of_ranks_op : &captured_op;
    TG_TRY(tg_apply(t, op, &p, all, n, out, s->n_out, use, end_use, site));
    for (int i = 0; i < s->n_out; i++) /* an output to which backward gives no gradient needs none */
        if (!s->seed[i]) out[i]->flags &= (uint16_t)~TG_F_REQUIRES_GRAD;
    return TG_OK;
}
