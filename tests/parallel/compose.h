/* Runs a model on several ranks, divided in any way, beside one rank, and compares losses, gradients and parameters by
 * their global coordinates in float64. Include it in a test program of ranks that divide a model. */
#ifndef TG_TEST_COMPOSE_H
#define TG_TEST_COMPOSE_H

#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/optim.h>

#include "parallel/compose_stack.h"

/* Who computes it. */
typedef struct compose_layout {
    int tp, dp, pp, vp;
    bool sp;
    tg_pipe_kind kind;
    int group, ahead; /* 0: the defaults */
    const tg_pipe_item *const *items; /* of a TG_PIPE_CUSTOM */
    const int *n_items;
    bool buckets; /* gradients are summed during backward */
    int zero;     /* the optimizer's state is divided over the data-parallel ranks */
} compose_layout;

/* ---- Steps ---- */

/* Makes the pipe of a layout. The caller frees the plan after it. */
static inline tg_pipe *compose_pipe(compose_stack *s, const compose_layout *l, tg_optim *scale, tg_pipe_plan **plan) {
    int tp = tg_parallel_size(s->p, TG_TP), rows = s->o.rows / s->ranks;
    bool sp = tg_is_sequence_parallel(s->p);
    *plan =
        tg_pipe_plan_new(s->ctx, TG_PIPE_PLAN(.kind = l->kind, .stages = l->pp, .chunks = l->vp, .micros = s->o.micros,
                                              .group = l->group ? l->group : TG_AUTO, .items = l->items,
                                              .n_items = l->n_items));
    const tg_place_at at[] = {{TG_DP, TG_SHARD(1)}, {TG_TP, sp ? TG_SHARD(0) : TG_I}};
    tg_pipe_edge edge = {TG_F64, TG_SHAPE(s->o.length / (sp ? tp : 1), rows, COMPOSE_HIDDEN), at, 2};
    return tg_pipe_new(s->p, *plan,
                       TG_PIPE(.edge = &edge, .n_edge = 1, .scale = scale, .ahead = l->ahead ? l->ahead : 1,
                               .shape = s->o.two_lengths ? compose_shape : NULL));
}

/* Counts the tokens of this rank in a step, on the stage that has the losses. */
static inline tg_tensor *compose_tokens(const compose_stack *s) {
    double n = 0;
    for (int m = 0; m < s->o.micros; m++) n += compose_length(&s->o, m) * (s->o.rows / s->ranks);
    return s->head ? tg_from_host(s->ctx, TG_F64, TG_SHAPE(1), &n) : NULL;
}

/* Runs a step of one rank without a pipeline. scale: the optimizer whose loss scale multiplies the losses; NULL: none.
 * losses[micros]. */
static inline tg_status compose_alone(compose_stack *s, tg_tape *t, tg_optim *scale, double *losses) {
    tg_tensor *root[COMPOSE_LAYERS + 1];
    for (int m = 0; m < s->o.micros; m++) {
        tg_tensor *h = NULL;
        int n = 0;
        tg_tape_key(t, (uint64_t)m);
        for (int part = 0; part < s->parts; part++) {
            h = compose_part(s, t, part, m, h, &root[n]);
            n += root[n] != NULL;
        }
        losses[m] = tg_item(h);
        root[n++] = h;
        for (int i = 0; scale && i < n; i++) root[i] = tg_scale_loss(t, root[i], scale);
        tg_backward_with(t, root, n, NULL);
        tg_tape_reset(t);
    }
    return tg_ctx_status(s->ctx);
}

/* Returns the sum of x over all ranks, divided by the ranks of tp, which have equal values. */
static inline void compose_sum(tg_comm *world, int tp, double *x, int n) {
    tg_tensor *sum = tg_from_host(tg_comm_ctx(world), TG_F64, TG_SHAPE(n), x);
    tg_comm_all_reduce(world, sum, sum, TG_REDUCE_SUM);
    tg_read_f64(sum, x, n);
    tg_drop(sum);
    for (int i = 0; i < n; i++) x[i] /= tp;
}

/* The training state of a stack. */
typedef struct compose_training {
    tg_tensor *params[128], *const *leaves; /* leaves: what the optimizer steps */
    int n;
    tg_flat *flat; /* NULL: gradients are summed by tg_grads_finalize */
    tg_optim *optim;
} compose_training;

/* Compares the parameters of a rank, or the gradients that it has of them, with those of one rank. */
static inline tg_status compose_compare(compose_stack *s, const compose_training *t, compose_stack *whole,
                                        bool gradients, const char *when) {
    double mine[1024], all[1024];
    for (int i = 0; i < tg_module_param_count(s->all); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(s->all, i, &path), *y = tg_module_find(whole->all, compose_name(&s->o, path));
        int64_t first = 0, end = tg_numel(x);
        if (!y) return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "one rank has no %s", path);
        if (gradients) tg_range_of(t->leaves[i], NULL, &first, &end);
        if (end > first) tg_read_f64(gradients ? tg_grad_of(t->leaves[i]) : x, mine, end - first);
        RUN(tg_read_f64(gradients ? tg_grad_of(y) : y, all, tg_numel(y)));
        for (int64_t k = 0; k < end - first && tg_ctx_status(s->ctx) == TG_OK; k++) {
            double want = all[compose_index(x, first + k, tg_parallel_rank(s->p, TG_TP))];
            if (!(fabs(mine[k] - want) <= 1e-10))
                return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "%s, %s of %s, element %lld: %.17g, one rank has %.17g",
                                   when, gradients ? "gradient" : "value", path, (long long)k, mine[k], want);
        }
    }
    return tg_ctx_status(s->ctx);
}

typedef struct compose_job {
    compose_program program;
    compose_layout layout;
} compose_job;

static inline void compose_train(compose_training *t, compose_stack *s, bool flat, int zero) {
    *t = (compose_training){.n = tg_module_params(s->all, NULL, 0)};
    tg_module_params(s->all, t->params, 128);
    t->leaves = t->params;
    if (flat || zero) t->flat = tg_flat_new(s->p, t->params, t->n, TG_FLAT(.bucket = 100, .zero = zero));
    if (t->flat) tg_flat_leaves(t->flat, &t->leaves);
    t->optim = tg_adamw_new(s->ctx, t->leaves, t->n, TG_ADAMW(.lr = 0.01));
    if (s->o.scaled) tg_optim_set_scale(t->optim, TG_LOSS_SCALE(.initial = 256));
    tg_optim_set_clip(t->optim, 0.05); /* below the norm, so that the step depends on it */
}

/* Runs one step of the ranks and of one rank, and compares them. */
static inline tg_status compose_step(compose_stack *s, tg_pipe *x, compose_training *t, compose_stack *whole,
                                     tg_tape *tape, compose_training *one, int step) {
    double losses[COMPOSE_MICROS], want[COMPOSE_MICROS];
    char when[32];
    tg_comm *world = tg_parallel_world(s->p);
    snprintf(when, sizeof when, "step %d", step);
    compose_load(s, step);
    compose_load(whole, step);
    RUN(tg_pipe_run(x, compose_fn, s));
    RUN(compose_alone(whole, tape, s->o.scaled ? one->optim : NULL, want));
    RUN(tg_read_f64(tg_pipe_losses(x), losses, s->o.micros));
    compose_sum(world, tg_parallel_size(s->p, TG_TP), losses, s->o.micros);
    for (int m = 0; m < s->o.micros; m++)
        if (!(fabs(losses[m] - want[m]) <= 1e-10))
            return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "%s, loss of micro-batch %d: %.17g, one rank has %.17g", when,
                               m, losses[m], want[m]);
    tg_tensor *tokens[] = {compose_tokens(s), compose_tokens(whole)};
    RUN(tg_grads_finalize(s->p, t->params, t->n, TG_FINALIZE(.tokens = tokens[0])));
    RUN(tg_grads_finalize(whole->p, one->params, one->n, TG_FINALIZE(.tokens = tokens[1])));
    RUN(compose_compare(s, t, whole, true, when));
    RUN(tg_optim_step(t->optim));
    if (t->flat) RUN(tg_flat_gather(t->flat));
    RUN(tg_optim_step(one->optim));
    if (!(fabs(tg_optim_norm(t->optim) - tg_optim_norm(one->optim)) <= 1e-10))
        return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "%s: norm %.17g, one rank has %.17g", when, tg_optim_norm(t->optim),
                           tg_optim_norm(one->optim));
    RUN(compose_compare(s, t, whole, false, when));
    tg_optim_zero_grad(t->optim);
    tg_optim_zero_grad(one->optim);
    for (int i = 0; i < 2; i++) tg_drop(tokens[i]);
    return tg_ctx_status(s->ctx);
}

/* The function of each rank of a test. arg: a compose_job. */
static inline tg_status compose_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const compose_job *j = arg;
    const compose_layout *l = &j->layout;
    compose_stack s, whole;
    tg_pipe_plan *plan = NULL;
    tg_parallel *p =
        tg_parallel_new(world, TG_PARALLEL(.tp = l->tp, .pp = l->pp, .vp = l->vp, .sequence_parallel = l->sp));
    RUN(compose_open(&s, p, &j->program, tg_parallel_rank(p, TG_PP), l->pp, l->vp ? l->vp : 1));
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7));
    tg_comm *self = tg_comm_self_new(alone);
    tg_parallel *one = tg_parallel_new(self, NULL);
    RUN(compose_open(&whole, one, &j->program, 0, 1, s.parts));
    tg_tape *tape = tg_tape_new(alone);
    compose_training t, t_one;
    compose_train(&t, &s, l->buckets, l->zero);
    compose_train(&t_one, &whole, false, 0);
    tg_pipe *x = compose_pipe(&s, l, j->program.scaled ? t.optim : NULL, &plan);
    tg_status status = tg_ctx_status(ctx);
    for (int step = 0; step < j->program.steps && status == TG_OK; step++)
        status = compose_step(&s, x, &t, &whole, tape, &t_one, step);
    if (tg_ctx_status(alone) != TG_OK) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "one rank: %s", tg_ctx_message(alone));
    tg_pipe_free(x);
    tg_optim_free(t.optim);
    tg_flat_free(t.flat);
    tg_optim_free(t_one.optim);
    tg_pipe_plan_free(plan);
    compose_close(&s);
    compose_close(&whole);
    tg_tape_free(tape);
    tg_parallel_free(one);
    tg_comm_free(self);
    tg_ctx_free(alone);
    tg_parallel_free(p);
    return status == TG_OK ? tg_ctx_status(ctx) : status;
}

static inline void compose(const compose_program *program, const compose_layout *layout) {
    compose_job j = {*program, *layout};
    char message[1024];
    int n = layout->tp * layout->dp * layout->pp;
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    tg_status s =
        run_ranks(n, compose_rank, &j, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK,
                  "tp %d%s, dp %d, pp %d, vp %d, kind %d, zero %d, %d micro-batches, %d layers%s%s%s%s%s: %s: %s",
                  layout->tp, layout->sp ? " sp" : "", layout->dp, layout->pp, layout->vp, layout->kind, layout->zero,
                  program->micros, program->layers, program->tied ? ", tied" : "",
                  program->recompute ? ", recompute" : "", program->two_lengths ? ", two lengths" : "",
                  program->aux ? ", aux" : "", program->scaled ? ", scaled" : "", tg_status_name(s), message);
}

#endif
