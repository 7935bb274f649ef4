/* B of a pipeline: runs backward with the gradients that the next part has sent, and sends those of the inputs. */
#include "autograd/backward.h"
#include "autograd/gradients.h"
#include "parallel/pp/pipe.h"
#include "tape/tape.h"

/* Lists the roots of the cell and their seeds, and returns their number. Leaves out outputs that need no gradient, such
 * as integers, or those of a stage without parameters that learn. The seeds of the loss and of aux are NULL, which
 * means 1. */
static int list_roots(tg_pipe *x, tg_pipe_item it, tg_pipe_cell *c) {
    bool last = !tg_pipe_receives(x, it);
    int n = 0;
    for (int i = 0; i < (last ? 1 : x->n_edge); i++) {
        if (!(c->out[i]->flags & TG_F_REQUIRES_GRAD)) continue;
        x->seeds[n] = last ? NULL : c->arriving[TG_PIPE_B][i];
        x->roots[n++] = c->out[i];
    }
    x->seeds[n] = NULL;
    if (c->aux) x->roots[n++] = c->aux;
    return n;
}

static void drop_seeds(const tg_pipe *x, tg_pipe_cell *c) {
    for (int i = 0; i < x->n_edge; i++) {
        tg_temp_free(c->arriving[TG_PIPE_B][i]);
        c->arriving[TG_PIPE_B][i] = NULL;
    }
}

/* Sends the gradient of `in`, one of input[], or zeros if it has none. Converts the gradient if it was accumulated in
 * another dtype. */
static tg_status send_gradient(tg_pipe *x, tg_pipe_item it, tg_tensor *in) {
    tg_ctx *ctx = x->ctx;
    tg_tensor *g = tg_gradient_of(in);
    if (g && g->dtype == in->dtype) return tg_pipe_send(x, it, g);
    tg_tensor *y = tg_temp_empty(ctx, (tg_dtype)in->dtype, in->ndim, in->shape, TG_MEM_TEMPORARY);
    if (!y) return ctx->run.status;
    tg_status s = g ? tg_gradient_put(y, g, false) : ctx->run.ops->fill(ctx, tg_array_of(y), 0);
    if (s == TG_OK) s = tg_pipe_send(x, it, y);
    tg_temp_free(y);
    return s;
}

tg_status tg_pipe_backward(tg_pipe *x, tg_pipe_item it) {
    tg_pipe_cell *c = tg_pipe_cell_of(x, it);
    tg_pass_opts o = {.seeds = x->seeds};
    int n = list_roots(x, it, c);
    if (n) TG_TRY(tg_backward_ended(c->tape, tg_backward_run(c->tape, x->roots, n, &o, "tg_pipe_run")));
    drop_seeds(x, c);
    for (int i = 0; i < x->n_edge && tg_pipe_sends(x, it); i++)
        if (tg_pipe_differentiates(x, i)) TG_TRY(send_gradient(x, it, c->input[i]));
    c->mark = tg_wgrads_mark(x->wgrads);
    tg_pipe_release_tape(x, c);
    return x->ctx->run.status;
}
