/* F of a pipeline: calls the part on a free tape, sends its outputs, and keeps only what backward needs. */
#include "base/callback.h"
#include "base/text.h"
#include "kernels/scalar.h"
#include "parallel/pp/pipe.h"
#include "tape/tape.h"

#include <tapegrad/comm.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>

/* Takes a free tape. The plan says how many are needed, so there is one. */
static tg_tape *take_tape(tg_pipe *x, tg_pipe_cell *c, int micro) {
    int i = 0;
    while (x->taken[i]) i++;
    x->taken[i] = true;
    c->tape = x->tape[i];
    tg_tape_set_grad_mode(c->tape, x->plan->backward);
    tg_tape_set_training(c->tape, x->plan->backward);
    tg_tape_key(c->tape, (uint64_t)micro);
    return c->tape;
}

void tg_pipe_release_tape(tg_pipe *x, tg_pipe_cell *c) {
    for (int i = 0; i < x->n_tapes; i++)
        if (x->tape[i] == c->tape) x->taken[i] = false;
    tg_tape_reset(c->tape);
    c->tape = NULL;
    c->aux = NULL;
}

/* Enters the arriving tensors into the tape as leaves, which become input[] of the cell. */
static tg_status enter_inputs(tg_pipe *x, tg_pipe_cell *c) {
    for (int i = 0; i < x->n_edge; i++) {
        tg_tensor *y = c->arriving[TG_PIPE_F][i];
        y->storage->temporary = true; /* scopes and backward may release it, like a result of the tape */
        c->input[i] = tg_tape_enter(c->tape, y);
        tg_temp_free(y);
        c->arriving[TG_PIPE_F][i] = NULL;
        TG_TRY(x->ctx->run.status);
        if (tg_pipe_differentiates(x, i)) TG_TRY(tg_set_requires_grad(c->input[i], true));
    }
    return TG_OK;
}

/* Checks a tensor that fn has set. what: its name in errors. */
static tg_status check_set(const tg_pipe *x, const tg_pipe_cell *c, tg_tensor *y, const char *what) {
    tg_ctx *ctx = x->ctx;
    if (!y) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_run: fn has not set %s", what);
    TG_TRY(tg_check(ctx, y, "tg_pipe_run: a tensor that fn has set"));
    if (y->tape == c->tape) return TG_OK;
    return tg_fail(ctx, TG_ERR_HANDLE, "tg_pipe_run: fn has set %s to a tensor of %s, expected one of its tape", what,
                   y->tape ? "another tape" : "the context");
}

/* Checks the loss or aux. It must depend on something that needs a gradient if the plan has a backward. */
static tg_status check_root(const tg_pipe *x, const tg_pipe_cell *c, tg_tensor *y, const char *what) {
    char is[160];
    TG_TRY(check_set(x, c, y, what));
    tg_describe(y, is, sizeof is);
    if (y->numel != 1 || !tg_is_float((tg_dtype)y->dtype))
        return tg_fail(x->ctx, TG_ERR_SHAPE, "tg_pipe_run: %s is %s, expected a float of one element", what, is);
    if (x->plan->backward && !(y->flags & TG_F_REQUIRES_GRAD))
        return tg_fail(x->ctx, TG_ERR_STATE, "tg_pipe_run: %s depends on nothing that needs a gradient", what);
    return TG_OK;
}

/* Writes the loss of a micro-batch to its place among the losses. */
static tg_status note_loss(tg_pipe *x, int micro, tg_tensor *loss) {
    static const int64_t one = 1;
    const double none[2] = {0};
    TG_TRY(tg_storage_need(loss->storage, loss));
    TG_TRY(tg_storage_may_change(x->losses));
    tg_array to = tg_array_of(x->losses), from = tg_array_of(loss);
    if (to.data) to.data = (double *)to.data + micro;
    to.shape = to.stride = from.shape = from.stride = &one;
    to.ndim = from.ndim = 1;
    to.numel = 1;
    return x->ctx->run.ops->apply(x->ctx, TG_FN_id, to, &from, 1, none, false);
}

static tg_status keep_loss(tg_pipe *x, tg_pipe_item it, tg_pipe_cell *c) {
    TG_TRY(check_root(x, c, c->out[0], "the loss (out[0])"));
    TG_TRY(note_loss(x, it.micro, c->out[0]));
    if (x->scale && x->plan->backward) c->out[0] = tg_scale_loss(c->tape, c->out[0], x->scale);
    return x->ctx->run.status;
}

static tg_status keep_aux(tg_pipe *x, tg_pipe_cell *c) {
    if (!c->aux) return TG_OK;
    TG_TRY(check_root(x, c, c->aux, "aux"));
    if (x->scale && x->plan->backward) c->aux = tg_scale_loss(c->tape, c->aux, x->scale);
    return x->ctx->run.status;
}

/* Sends out[]. A message must be contiguous, so other tensors are copied first. */
static tg_status send_outputs(tg_pipe *x, tg_pipe_item it, tg_pipe_cell *c) {
    for (int i = 0; i < x->n_edge; i++) {
        char what[24];
        size_t at = 0;
        tg_text(what, sizeof what, &at, "out[%d]", i);
        TG_TRY(check_set(x, c, c->out[i], what));
        TG_TRY(tg_pipe_edge_check(x, it, i, c->out[i]));
    }
    bool grad = tg_tape_set_grad_mode(c->tape, false);
    for (int i = 0; i < x->n_edge && x->ctx->run.status == TG_OK; i++)
        tg_pipe_send(x, it, tg_contiguous(c->tape, c->out[i]));
    tg_tape_set_grad_mode(c->tape, grad);
    return x->ctx->run.status;
}

static tg_status call_fn(tg_pipe *x, tg_pipe_item it, tg_pipe_cell *c, tg_pipe_fn fn) {
    int part = tg_pipe_part_of(x, it);
    tg_pipe_call call = {.size = sizeof call,
                         .tape = c->tape,
                         .micro = it.micro,
                         .chunk = it.chunk,
                         .part = part,
                         .parts = tg_pipe_parts(x->plan),
                         .input = part ? c->input : NULL,
                         .out = c->out};
    for (int i = 0; i < x->n_slots; i++) c->out[i] = NULL;
    c->tape->busy++; /* fn must not reset the tape */
    tg_status s = fn(x->state, &call);
    c->tape->busy--;
    TG_TRY(tg_callback_end(x->ctx, s, "tg_pipe_run: fn"));
    c->aux = call.aux;
    return TG_OK;
}

/* Calls fn in a scope. When the scope closes, it releases the bytes of all results that no node has saved, also those
 * of outputs that are still being sent. */
tg_status tg_pipe_forward(tg_pipe *x, tg_pipe_item it, tg_pipe_fn fn) {
    tg_pipe_cell *c = tg_pipe_cell_of(x, it);
    tg_tape *t = take_tape(x, c, it.micro);
    TG_TRY(tg_scope_open_at(t, NULL, x->site));
    if (tg_pipe_receives(x, it)) TG_TRY(enter_inputs(x, c));
    TG_TRY(call_fn(x, it, c, fn));
    TG_TRY(tg_pipe_sends(x, it) ? send_outputs(x, it, c) : keep_loss(x, it, c));
    TG_TRY(keep_aux(x, c));
    TG_TRY(tg_scope_close(t, NULL, 0));
    if (!x->plan->backward) tg_pipe_release_tape(x, c);
    return x->ctx->run.status;
}
