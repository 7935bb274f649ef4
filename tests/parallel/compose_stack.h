/* The model of compose.h, a stack: word embeddings, layers x + dropout(row(gelu(column(norm(x))))), a norm, an output
 * layer and the sum of the cross-entropies. Its parts are what pipeline stages hold; its values depend on the names of
 * parameters and on global coordinates alone. */
#ifndef TG_TEST_COMPOSE_STACK_H
#define TG_TEST_COMPOSE_STACK_H

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
    bool aux;         /* each part has a loss of its own, in addition to that of the last part */
    bool scaled;      /* the losses are multiplied by a loss scale */
} compose_program;

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

/* Computes a part: from ids or h to h or the loss. Sets *aux to the loss of the part itself, or NULL. */
static inline tg_tensor *compose_part(compose_stack *s, tg_tape *t, int part, int micro, tg_tensor *h,
                                      tg_tensor **aux) {
    if (part == 0) h = tg_module_forward(s->embedding, t, s->ids[micro]);
    struct compose_range *r = &s->range[part];
    if (s->o.recompute)
        tg_recompute(t, compose_layers, r, &h, 1, &h, 1, NULL);
    else
        compose_layers(r, t, &h, 1, &h, 1);
    *aux = s->o.aux ? tg_scale(t, tg_sum(t, tg_square(t, h), TG_ALL_DIMS, false), 0.01) : NULL;
    if (part < s->parts - 1) return h;
    tg_tensor *logits = tg_module_forward(s->head, t, tg_module_forward(s->norm[COMPOSE_LAYERS], t, h));
    return tg_vocab_parallel_cross_entropy(t, logits, s->targets[micro], tg_parallel_comm(s->p, TG_TP),
                                           TG_VOCAB(.reduction = TG_LOSS_SUM));
}

static inline tg_status compose_fn(void *state, tg_pipe_call *c) {
    compose_stack *s = state;
    c->out[0] = compose_part(s, c->tape, c->part, c->micro, c->part ? c->input[0] : NULL, &c->aux);
    return tg_ctx_status(s->ctx);
}

static inline tg_status compose_shape(void *state, int micro, int i, tg_shape *out) {
    const compose_stack *s = state;
    (void)i;
    out->dim[0] = compose_length(&s->o, micro);
    if (tg_is_sequence_parallel(s->p)) out->dim[0] /= tg_parallel_size(s->p, TG_TP);
    return TG_OK;
}

#endif
