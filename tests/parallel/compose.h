/* Runs a model on several ranks, divided in any way, beside one rank, and compares losses, gradients and parameters by
 * their global coordinates in float64. Include it in a test program of ranks that divide a model.
 *
 * The model is a stack: word embeddings, layers x + dropout(row(gelu(column(norm(x))))), a norm, an output layer and
 * the sum of the cross-entropies. Its parts are what pipeline stages hold. */
#ifndef TG_TEST_COMPOSE_H
#define TG_TEST_COMPOSE_H

#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/optim.h>
#include <tapegrad/pipe.h>
#include <tapegrad/recompute.h>
#include <tapegrad/tensor_parallel.h>

#include "core/context.h"
#include "on_ranks.h"

enum { COMPOSE_VOCAB = 16, COMPOSE_HIDDEN = 8, COMPOSE_FFN = 12, COMPOSE_LAYERS = 16, COMPOSE_MICROS = 16 };

/* What is computed. */
typedef struct compose_program {
    int layers, micros, steps;
    int rows, length; /* of one micro-batch over all ranks: sequences, and tokens of each */
    bool two_lengths; /* odd micro-batches are shorter */
    bool tied;        /* the output layer has the weights of the embeddings */
    bool recompute;   /* the layers of a part run again in backward */
} compose_program;

/* Who computes it. */
typedef struct compose_layout {
    int tp, dp, pp, vp;
    bool sp;
    tg_pipe_kind kind;
    int group, ahead;
    const tg_pipe_item *const *items; /* of a TG_PIPE_CUSTOM */
    const int *n_items;
    bool buckets;
} compose_layout;

/* A rank's parts of the model. Names of modules are those of the whole model. */
typedef struct compose_stack {
    tg_ctx *ctx;
    tg_parallel *p;
    compose_program o;
    int parts, rank, ranks; /* rank, ranks: of dp */
    tg_module *all, *embedding, *norm[COMPOSE_LAYERS + 1], *column[COMPOSE_LAYERS], *row[COMPOSE_LAYERS], *head;
    tg_tensor *ids[COMPOSE_MICROS], *targets[COMPOSE_MICROS];
    struct compose_range {
        struct compose_stack *s;
        int from, to;
    } range[COMPOSE_LAYERS];
} compose_stack;

static const tg_module_ops compose_holder = {.size = sizeof(tg_module_ops), .kind = "stack"};

static inline int compose_length(const compose_program *o, int micro) {
    return o->two_lengths && micro % 2 ? o->length / 2 : o->length;
}

/* ---- Values by name and global coordinates ---- */

static inline int compose_number(const char *name) {
    unsigned h = 7;
    for (; *name; name++) h = h * 31 + (unsigned char)*name;
    return (int)(h % 89);
}

/* Returns the index in the global tensor of element i of x. */
static inline int64_t compose_index(tg_tensor *x, int64_t i, int tp_rank) {
    tg_placement at = tg_placement_of(x, TG_TP);
    tg_shape local = tg_shape_of(x), global = tg_global_shape(x);
    int64_t out = 0, stride = 1;
    for (int d = local.ndim - 1; d >= 0; d--) {
        int64_t c = i % local.dim[d];
        i /= local.dim[d];
        if (at.kind == TG_VARYING && at.dim == d) c += tp_rank * local.dim[d];
        out += c * stride;
        stride *= global.dim[d];
    }
    return out;
}

static inline tg_status compose_fill(tg_tensor *x, const char *name, int tp_rank) {
    double v[1024];
    bool norm = strstr(name, "norm") != NULL;
    if (tg_ctx_of(x)->meta) return TG_OK; /* device meta has no values */
    for (int64_t i = 0; i < tg_numel(x); i++)
        v[i] = (norm ? 1 : 0) + 0.3 * at(compose_number(name), compose_index(x, i, tp_rank));
    return tg_write_f64(x, v, tg_numel(x));
}

/* Returns the name in the whole model of the parameter of that name. */
static inline const char *compose_name(const compose_program *o, const char *path) {
    return o->tied && !strcmp(path, "head.weight") ? "embedding.weight" : path;
}

/* ---- The stack ---- */

static inline tg_module *compose_add(compose_stack *s, const char *name, int i, tg_module *m) {
    char full[32];
    snprintf(full, sizeof full, i < 0 ? "%s" : "%s_%d", name, i);
    tg_module_add_child(s->all, full, m);
    return m;
}

static inline void compose_add_layer(compose_stack *s, int i) {
    s->norm[i] = compose_add(s, "norm", i, tg_nn_rms_norm(s->ctx, COMPOSE_HIDDEN, 1e-5));
    s->column[i] = compose_add(s, "column", i, tg_nn_column_linear(s->p, COMPOSE_HIDDEN, COMPOSE_FFN, NULL));
    s->row[i] = compose_add(s, "row", i, tg_nn_row_linear(s->p, COMPOSE_FFN, COMPOSE_HIDDEN, NULL));
}

static inline void compose_add_ends(compose_stack *s, bool first, bool last) {
    if (first)
        s->embedding =
            compose_add(s, "embedding", -1, tg_nn_vocab_embedding(s->p, COMPOSE_VOCAB, COMPOSE_HIDDEN, 0.1, NULL));
    if (!last) return;
    tg_tensor *table = s->o.tied && first ? tg_module_find(s->embedding, "weight") : NULL;
    s->norm[COMPOSE_LAYERS] = compose_add(s, "norm", COMPOSE_LAYERS, tg_nn_rms_norm(s->ctx, COMPOSE_HIDDEN, 1e-5));
    s->head = compose_add(
        s, "head", -1,
        tg_nn_column_linear(s->p, COMPOSE_HIDDEN, COMPOSE_VOCAB, TG_PARALLEL_LINEAR(.no_bias = true, .weight = table)));
}

/* Makes the parts of stage `stage` of `stages`. */
static inline tg_status compose_open(compose_stack *s, tg_parallel *p, const compose_program *o, int stage, int stages,
                                     int chunks) {
    *s = (compose_stack){.ctx = tg_parallel_ctx(p),
                         .p = p,
                         .o = *o,
                         .parts = stages * chunks,
                         .rank = tg_parallel_rank(p, TG_DP),
                         .ranks = tg_parallel_size(p, TG_DP)};
    s->all = tg_module_new(s->ctx, &compose_holder, NULL);
    for (int part = stage; part < s->parts; part += stages) {
        s->range[part] = (struct compose_range){s, part * o->layers / s->parts, (part + 1) * o->layers / s->parts};
        for (int i = s->range[part].from; i < s->range[part].to; i++) compose_add_layer(s, i);
    }
    compose_add_ends(s, stage == 0, stage == stages - 1);
    RUN(tg_module_replicate(s->all, p));
    for (int i = 0; i < tg_module_param_count(s->all); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(s->all, i, &path);
        RUN(compose_fill(x, compose_name(o, path), tg_parallel_rank(p, TG_TP)));
    }
    if (o->tied && stages > 1 && tg_parallel_embedding(p))
        RUN(tg_share(p, tg_module_find(s->all, stage ? "head.weight" : "embedding.weight"), tg_parallel_embedding(p)));
    return tg_ctx_status(s->ctx);
}

/* Makes this rank's rows of the ids [b, s] or targets [s, b] of a micro-batch: the same on tp, other rows on dp. */
static inline tg_tensor *compose_data(compose_stack *s, int step, int micro, bool targets) {
    int64_t v[256];
    int rows = s->o.rows / s->ranks, n = compose_length(&s->o, micro);
    for (int b = 0; b < rows; b++)
        for (int i = 0; i < n; i++) {
            int row = s->rank * rows + b;
            unsigned h = (unsigned)(((step * 31 + micro) * 37 + row) * 41 + i) * 2654435761u + (targets ? 977u : 0);
            v[targets ? i * rows + b : b * n + i] = (h >> 9) % COMPOSE_VOCAB;
        }
    tg_tensor *x = tg_from_host(s->ctx, TG_I64, targets ? TG_SHAPE(n, rows) : TG_SHAPE(rows, n), v);
    tg_place(s->p, x, TG_TP, TG_I);
    tg_place(s->p, x, TG_DP, TG_SHARD(targets));
    return x;
}

static inline void compose_load(compose_stack *s, int step) {
    tg_draws_step(s->ctx, (uint64_t)step + 1);
    for (int m = 0; m < s->o.micros; m++) {
        tg_drop(s->ids[m]);
        tg_drop(s->targets[m]);
        s->ids[m] = compose_data(s, step, m, false);
        s->targets[m] = compose_data(s, step, m, true);
    }
}

static inline void compose_close(compose_stack *s) {
    for (int m = 0; m < s->o.micros; m++) {
        tg_drop(s->ids[m]);
        tg_drop(s->targets[m]);
    }
    tg_module_free(s->all);
}

static inline tg_status compose_layers(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out,
                                       int n_out) {
    const struct compose_range *r = state;
    const compose_stack *s = r->s;
    tg_tensor *h = in[0];
    (void)n_in, (void)n_out;
    for (int i = r->from; i < r->to; i++) {
        tg_key_open(s->ctx, (uint64_t)i);
        tg_tensor *a = tg_module_forward(s->column[i], t, tg_module_forward(s->norm[i], t, h));
        h = tg_add(t, h, tg_dropout(t, tg_module_forward(s->row[i], t, tg_gelu(t, a)), 0.1));
        tg_key_close(s->ctx);
    }
    out[0] = h;
    return tg_ctx_status(s->ctx);
}

/* Computes a part: from ids or h to h or the loss. */
static inline tg_tensor *compose_part(compose_stack *s, tg_tape *t, int part, int micro, tg_tensor *h) {
    if (part == 0) h = tg_module_forward(s->embedding, t, s->ids[micro]);
    struct compose_range *r = &s->range[part];
    if (s->o.recompute)
        tg_recompute(t, compose_layers, r, &h, 1, &h, 1, NULL);
    else
        compose_layers(r, t, &h, 1, &h, 1);
    if (part < s->parts - 1) return h;
    tg_tensor *logits = tg_module_forward(s->head, t, tg_module_forward(s->norm[COMPOSE_LAYERS], t, h));
    return tg_vocab_parallel_cross_entropy(t, logits, s->targets[micro], tg_parallel_comm(s->p, TG_TP),
                                           TG_VOCAB(.reduction = TG_LOSS_SUM));
}

static inline tg_status compose_fn(void *state, tg_pipe_call *c) {
    compose_stack *s = state;
    c->out[0] = compose_part(s, c->tape, c->part, c->micro, c->part ? c->in[0] : NULL);
    return tg_ctx_status(s->ctx);
}

static inline tg_status compose_shape(void *state, int micro, int i, tg_shape *out) {
    const compose_stack *s = state;
    (void)i;
    out->dim[0] = compose_length(&s->o, micro);
    if (tg_is_sequence_parallel(s->p)) out->dim[0] /= tg_parallel_size(s->p, TG_TP);
    return TG_OK;
}

/* ---- Steps ---- */

/* Makes the pipe of a layout. The caller frees the plan after it. */
static inline tg_pipe *compose_pipe(compose_stack *s, const compose_layout *l, tg_pipe_plan **plan) {
    int tp = tg_parallel_size(s->p, TG_TP), rows = s->o.rows / s->ranks;
    bool sp = tg_is_sequence_parallel(s->p);
    *plan =
        tg_pipe_plan_new(s->ctx, TG_PIPE_PLAN(.kind = l->kind, .stages = l->pp, .chunks = l->vp, .micros = s->o.micros,
                                              .group = l->group, .items = l->items, .n_items = l->n_items));
    const tg_place_at at[] = {{TG_DP, TG_SHARD(1)}, {TG_TP, sp ? TG_SHARD(0) : TG_I}};
    tg_pipe_edge edge = {TG_F64, TG_SHAPE(s->o.length / (sp ? tp : 1), rows, COMPOSE_HIDDEN), at, 2};
    return tg_pipe_new(
        s->p, *plan,
        TG_PIPE(.edge = &edge, .n_edge = 1, .ahead = l->ahead, .shape = s->o.two_lengths ? compose_shape : NULL));
}

/* Counts the tokens of this rank in a step, on the stage that has the losses. */
static inline tg_tensor *compose_tokens(const compose_stack *s) {
    double n = 0;
    for (int m = 0; m < s->o.micros; m++) n += compose_length(&s->o, m) * (s->o.rows / s->ranks);
    return s->head ? tg_from_host(s->ctx, TG_F64, TG_SHAPE(1), &n) : NULL;
}

/* Runs a step of one rank without a pipeline. losses[micros]. */
static inline tg_status compose_alone(compose_stack *s, tg_tape *t, double *losses) {
    for (int m = 0; m < s->o.micros; m++) {
        tg_tensor *h = NULL;
        tg_tape_key(t, (uint64_t)m);
        for (int part = 0; part < s->parts; part++) h = compose_part(s, t, part, m, h);
        losses[m] = tg_item(h);
        tg_backward(t, h);
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

/* Compares the parameters of a rank, or their gradients, with those of one rank. */
static inline tg_status compose_compare(compose_stack *s, compose_stack *whole, bool gradients, const char *when) {
    double mine[1024], all[1024];
    for (int i = 0; i < tg_module_param_count(s->all); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(s->all, i, &path), *y = tg_module_find(whole->all, compose_name(&s->o, path));
        if (!y) return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "one rank has no %s", path);
        tg_read_f64(gradients ? tg_grad_of(x) : x, mine, tg_numel(x));
        RUN(tg_read_f64(gradients ? tg_grad_of(y) : y, all, tg_numel(y)));
        for (int64_t k = 0; k < tg_numel(x) && tg_ctx_status(s->ctx) == TG_OK; k++) {
            double want = all[compose_index(x, k, tg_parallel_rank(s->p, TG_TP))];
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

/* The training state of a stack. */
typedef struct compose_training {
    tg_tensor *params[128];
    int n;
    tg_optim *optim;
} compose_training;

static inline compose_training compose_train(compose_stack *s) {
    compose_training t = {.n = tg_module_params(s->all, NULL, 0)};
    tg_module_params(s->all, t.params, 128);
    t.optim = tg_adamw_new(s->ctx, t.params, t.n, TG_ADAMW(.lr = 0.01));
    tg_optim_set_clip(t.optim, 0.05); /* below the norm, so that the step depends on it */
    return t;
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
    RUN(compose_alone(whole, tape, want));
    RUN(tg_read_f64(tg_pipe_losses(x), losses, s->o.micros));
    compose_sum(world, tg_parallel_size(s->p, TG_TP), losses, s->o.micros);
    for (int m = 0; m < s->o.micros; m++)
        if (!(fabs(losses[m] - want[m]) <= 1e-10))
            return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "%s, loss of micro-batch %d: %.17g, one rank has %.17g", when,
                               m, losses[m], want[m]);
    tg_tensor *tokens[] = {compose_tokens(s), compose_tokens(whole)};
    RUN(tg_grads_finalize(s->p, t->params, t->n, TG_FINALIZE(.tokens = tokens[0])));
    RUN(tg_grads_finalize(whole->p, one->params, one->n, TG_FINALIZE(.tokens = tokens[1])));
    RUN(compose_compare(s, whole, true, when));
    RUN(tg_optim_step(t->optim));
    RUN(tg_optim_step(one->optim));
    if (!(fabs(tg_optim_norm(t->optim) - tg_optim_norm(one->optim)) <= 1e-10))
        return tg_ctx_fail(s->ctx, TG_ERR_INTERNAL, "%s: norm %.17g, one rank has %.17g", when, tg_optim_norm(t->optim),
                           tg_optim_norm(one->optim));
    RUN(compose_compare(s, whole, false, when));
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
    tg_pipe *x = compose_pipe(&s, l, &plan);
    compose_training t = compose_train(&s), t_one = compose_train(&whole);
    tg_buckets *b = l->buckets ? tg_buckets_new(p, t.params, t.n, 100) : NULL;
    tg_status status = tg_ctx_status(ctx);
    for (int step = 0; step < j->program.steps && status == TG_OK; step++)
        status = compose_step(&s, x, &t, &whole, tape, &t_one, step);
    if (tg_ctx_status(alone) != TG_OK) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "one rank: %s", tg_ctx_message(alone));
    tg_buckets_free(b);
    tg_optim_free(t.optim);
    tg_optim_free(t_one.optim);
    tg_pipe_free(x);
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
    ck_assert_msg(s == TG_OK, "tp %d%s, dp %d, pp %d, vp %d, kind %d, %d micro-batches, %d layers%s%s%s: %s: %s",
                  layout->tp, layout->sp ? " sp" : "", layout->dp, layout->pp, layout->vp, layout->kind,
                  program->micros, program->layers, program->tied ? ", tied" : "",
                  program->recompute ? ", recompute" : "", program->two_lengths ? ", two lengths" : "",
                  tg_status_name(s), message);
}

#endif
