/* A pipeline: the four layers of an MLP are divided over the stages, and micro-batches follow each other through them.
 * The same program on 1, 2 or 4 stages prints the same losses.
 *
 *     pipeline 2                        two threads, a stage each
 *     tapegrad run -n 2 -- pipeline     two processes
 */
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/data_parallel.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/pipe.h>
#include <tapegrad/ranks.h>

enum { STEPS = 60, MICROS = 4, ROWS = 16, IN = 8, HIDDEN = 32, LAYERS = 4 };

typedef struct model {
    tg_tensor *x, *y;
    tg_tensor *w[LAYERS]; /* the weights; NULL for layers of other stages */
} model;

/* Every stage draws the weights of all layers, so that the values do not depend on the number of stages. */
static model make(tg_ctx *ctx, int stage, int stages) {
    model m = {tg_randn(ctx, TG_F32, TG_SHAPE(MICROS * ROWS, IN), 1),
               tg_randn(ctx, TG_F32, TG_SHAPE(MICROS * ROWS, 1), 1),
               {NULL}};
    for (int i = 0; i < LAYERS; i++) {
        tg_shape shape = TG_SHAPE(i == LAYERS - 1 ? 1 : HIDDEN, i ? HIDDEN : IN);
        tg_tensor *w = tg_param_new(ctx, "weight", TG_F32, shape, 0.25);
        if (i * stages / LAYERS == stage)
            m.w[i] = w;
        else
            tg_drop(w);
    }
    return m;
}

/* Computes the layers of this stage for one micro-batch. */
static tg_status part(void *state, tg_pipe_call *c) {
    const model *m = state;
    int64_t from = c->micro * ROWS;
    tg_tensor *h = c->part ? c->input[0] : tg_slice(c->tape, m->x, 0, from, from + ROWS, 1);
    for (int i = 0; i < LAYERS; i++)
        if (m->w[i]) h = (i < LAYERS - 1 ? tg_linear_relu : tg_linear)(c->tape, h, m->w[i], NULL);
    if (c->part == c->parts - 1) { /* the sum over the rows: tg_grads_finalize divides by their number */
        tg_tensor *error = tg_sub(c->tape, h, tg_slice(c->tape, m->y, 0, from, from + ROWS, 1));
        h = tg_sum(c->tape, tg_square(c->tape, error), TG_ALL_DIMS, false);
    }
    c->out[0] = h;
    return tg_ctx_status(tg_tape_ctx(c->tape));
}

static double sum_of(tg_tensor *losses) {
    double v[MICROS] = {0}, sum = 0;
    tg_read_f64(losses, v, MICROS);
    for (int i = 0; i < MICROS; i++) sum += v[i];
    return sum;
}

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    int stages = tg_comm_size(world);
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = stages));
    int stage = tg_parallel_rank(p, TG_PP), n = 0;
    model m = make(ctx, stage, stages);
    tg_tensor *params[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        if (m.w[i]) params[n++] = m.w[i];
    tg_optim *opt = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1e-2));
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = stages, .micros = MICROS));
    tg_pipe_edge edge = {.dtype = TG_F32, .shape = TG_SHAPE(ROWS, HIDDEN)};
    tg_pipe *pipe = tg_pipe_new(p, plan, TG_PIPE(.edge = &edge, .n_edge = 1));
    double rows = MICROS * ROWS;
    tg_tensor *tokens = stage == stages - 1 ? tg_from_host(ctx, TG_F64, TG_SHAPE(1), &rows) : NULL;
    for (int step = 0; step < STEPS && tg_ctx_status(ctx) == TG_OK; step++) {
        tg_pipe_run(pipe, part, &m);
        tg_grads_finalize(p, params, n, TG_FINALIZE(.tokens = tokens));
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 20 == 0 && stage == stages - 1) printf("%4d  %.5f\n", step, sum_of(tg_pipe_losses(pipe)) / rows);
    }
    tg_pipe_free(pipe);
    tg_pipe_plan_free(plan);
    tg_optim_free(opt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Runs the training with a communicator of this process. */
static tg_status train_on(tg_ctx *ctx, tg_comm *world) {
    tg_status s = train(NULL, ctx, world);
    if (s != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return s;
}

int main(int argc, char **argv) {
    char message[1024] = "";
    int n = argc > 1 ? atoi(argv[1]) : 2;
    if (tg_comm_launched_rank() >= 0) {
        tg_ctx *ctx = tg_ctx_new(NULL);
        return train_on(ctx, tg_comm_launched_new(ctx)) != TG_OK;
    }
    tg_status s = tg_ranks_run(n, train, NULL, TG_RANKS(.message = message, .message_size = sizeof message));
    if (s != TG_OK) fprintf(stderr, "%s\n", message);
    return s != TG_OK;
}
