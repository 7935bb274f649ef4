/* Edges: what goes from one part of a pipeline to the next. Their declaration and its comparison between stages, the
 * check of what a part gives, and the messages. */
#include <stdio.h>

#include "base/callback.h"
#include "base/hash.h"
#include "base/text.h"
#include "comm/comm.h"
#include "parallel/pp/pipe.h"
#include "placement/rule.h"

/* ---- Declaration ---- */

static tg_status check_declared(const tg_pipe *x, const tg_pipe_edge *e, int i) {
    char who[64];
    size_t at = 0;
    tg_dtype dtype = e->dtype ? e->dtype : x->ctx->dtype;
    tg_text(who, sizeof who, &at, "tg_pipe_new: tensor %d of the edges", i);
    TG_TRY(tg_shape_check(x->ctx, &e->shape, dtype, who));
    if (!tg_comm_moves(dtype))
        return tg_fail(x->ctx, TG_ERR_DTYPE,
                       "%s: dtype is %s, which collectives do not move; declare another dtype, and cast the tensor to "
                       "it (tg_cast)",
                       who, tg_dtype_name(dtype));
    if (e->n_at < 0 || e->n_at > TG_MAX_AXES || (e->n_at && !e->at))
        return tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: n_at is %d and at is %p, expected an array of 0 to %d placements",
                       who, e->n_at, (const void *)e->at, TG_MAX_AXES);
    return TG_OK;
}

tg_status tg_pipe_edge_open(tg_pipe *x, const tg_pipe_opts *o) {
    for (int i = 0; i < x->n_edge; i++) {
        const tg_pipe_edge *e = &o->edge[i];
        TG_TRY(check_declared(x, e, i));
        x->edge[i] = (tg_pipe_tensor){.dtype = e->dtype ? e->dtype : x->ctx->dtype, .shape = e->shape, .n_at = e->n_at};
        if (e->n_at) memcpy(x->edge[i].at, e->at, (size_t)e->n_at * sizeof *e->at);
    }
    return tg_pipe_edge_place(x);
}

/* Finds the placements of tensor i of the edges and of its gradient, by placing a leaf of the declared shape. */
static tg_status place(const tg_pipe *x, tg_pipe_tensor *e, int i) {
    tg_tensor *leaf = tg_owned_empty(x->ctx, e->dtype, (int)e->shape.ndim, e->shape.dim, TG_MEM_TEMPORARY);
    if (!leaf) return x->ctx->run.status;
    tg_status s = TG_OK;
    for (int k = 0; k < e->n_at && s == TG_OK; k++) s = tg_place(x->p, leaf, e->at[k].axis, e->at[k].placement);
    e->place = leaf->place;
    tg_drop(leaf);
    if (s != TG_OK) return tg_fail_note(x->ctx, " (tensor %d of the edges of tg_pipe_new)", i);
    e->dual = tg_place_dual(x->ctx, e->place);
    return x->ctx->run.status;
}

tg_status tg_pipe_edge_place(tg_pipe *x) {
    for (int i = 0; i < x->n_edge && !x->placed; i++) TG_TRY(place(x, &x->edge[i], i));
    x->placed = true;
    return TG_OK;
}

/* ---- Comparison between stages ---- */

static uint64_t hash_number(uint64_t h, int64_t number) { return tg_hash_bytes(h, &number, sizeof number); }

static int64_t hash_edge(const tg_pipe_tensor *e) {
    uint64_t h = hash_number(TG_HASH_START, e->dtype);
    for (int d = 0; d < e->shape.ndim; d++) h = hash_number(h, e->shape.dim[d]);
    if (e->place) h = tg_hash_bytes(h, e->place->at, sizeof e->place->at);
    return (int64_t)h;
}

static int64_t hash_plan(const tg_pipe_plan *p) {
    uint64_t h = hash_number(hash_number(TG_HASH_START, p->chunks), p->micros);
    for (int s = 0; s <= p->stages; s++) h = hash_number(h, p->first[s]);
    for (int i = 0; i < p->n; i++)
        h = hash_number(h, (int64_t)p->item[i].micro << 16 | p->item[i].chunk << 8 | p->item[i].act);
    return (int64_t)h;
}

/* Fails unless a number is the same on all stages. what, i: its name in the error; i is -1 if there is only one. */
static tg_status compare(const tg_pipe *x, int64_t mine, const char *what, int i) {
    int rank;
    int64_t first, other;
    tg_comm *pp = tg_parallel_comm(x->p, TG_PP);
    if (tg_comm_size(pp) == 1) return TG_OK;
    TG_TRY(tg_placement_compare_number(x->ctx, pp, mine, &rank, &first, &other));
    if (rank < 0) return TG_OK;
    char number[16] = "";
    size_t at = 0;
    if (i >= 0) tg_text(number, sizeof number, &at, " %d", i);
    return tg_fail(x->ctx, TG_ERR_MISMATCH,
                   "tg_pipe_new: %s%s differs between stages 0 and %d; give every stage the same plan and edges", what,
                   number, rank);
}

tg_status tg_pipe_compare(tg_pipe *x) {
    TG_TRY(compare(x, hash_plan(x->plan), "the plan", -1));
    TG_TRY(compare(x, x->n_edge, "n_edge, the number of tensors of an edge,", -1));
    for (int i = 0; i < x->n_edge; i++)
        TG_TRY(compare(x, hash_edge(&x->edge[i]), "the dtype, shape or placement of edge tensor", i));
    return TG_OK;
}

/* ---- What a part gives ---- */

/* Sets *out to the shape of tensor i of the edge for a micro-batch. */
static tg_status shape_of(const tg_pipe *x, int micro, int i, tg_shape *out) {
    char who[64];
    size_t at = 0;
    *out = x->edge[i].shape;
    if (!x->shape) return TG_OK;
    tg_status s = x->shape(x->state, micro, i, out);
    TG_TRY(tg_callback_end(x->ctx, s, "tg_pipe_run: shape of micro-batch %d, tensor %d", micro, i));
    tg_text(who, sizeof who, &at, "tg_pipe_run: the shape of micro-batch %d, tensor %d,", micro, i);
    return tg_shape_check(x->ctx, out, x->edge[i].dtype, who);
}

static bool has_shape(const tg_tensor *y, const tg_shape *s) {
    return y->ndim == s->ndim && !memcmp(y->shape, s->dim, y->ndim * sizeof *y->shape);
}

tg_status tg_pipe_edge_check(const tg_pipe *x, tg_pipe_item it, int i, tg_tensor *y) {
    const tg_pipe_tensor *e = &x->edge[i];
    char is[160], want[160];
    tg_shape shape;
    TG_TRY(shape_of(x, it.micro, i, &shape));
    if (y->dtype != e->dtype || !has_shape(y, &shape)) {
        tg_describe(y, is, sizeof is);
        tg_shape_text((int)shape.ndim, shape.dim, want, sizeof want);
        return tg_fail(x->ctx, TG_ERR_SHAPE, "tg_pipe_run: out[%d] is %s, but the edge of the pipe is declared as %s%s",
                       i, is, tg_dtype_name(e->dtype), want);
    }
    if (tg_place_of(y) == e->place) return TG_OK;
    tg_place_text(x->ctx, tg_place_of(y), is, sizeof is);
    tg_place_text(x->ctx, e->place, want, sizeof want);
    if (!*is) snprintf(is, sizeof is, "I");
    if (!*want) snprintf(want, sizeof want, "I");
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "tg_pipe_run: out[%d] is placed as \"%s\", but the edge of the pipe is declared as \"%s\"; convert "
                   "the tensor (mappings.h), or declare its placement in tg_pipe_edge.at",
                   i, is, want);
}

/* ---- Messages ---- */

/* Starts to receive tensor i of the message of an item. Returns it, a temporary in flight. After an error returns NULL
 * or a temporary that nothing will fill; the caller checks the status. */
static tg_tensor *receive(tg_pipe *x, tg_pipe_item it, int i) {
    bool down = it.act == TG_PIPE_F;
    const tg_pipe_tensor *e = &x->edge[i];
    tg_shape shape;
    if (shape_of(x, it.micro, i, &shape) != TG_OK) return NULL;
    tg_tensor *y = tg_temp_empty(x->ctx, e->dtype, (int)shape.ndim, shape.dim, TG_MEM_TEMPORARY);
    if (!y) return NULL;
    y->place = down ? e->place : e->dual;
    tg_collective_args a = {.kind = TG_RECV, .dst = y, .root = !down, .site = x->site};
    tg_comm_start(tg_parallel_edge(x->p, down, false), &a);
    return y;
}

tg_status tg_pipe_post(tg_pipe *x, tg_pipe_item it) {
    if (!tg_pipe_receives(x, it)) return TG_OK;
    tg_pipe_cell *c = tg_pipe_cell_of(x, it);
    for (int i = 0; i < x->n_edge; i++) {
        if (it.act == TG_PIPE_B && !tg_pipe_differentiates(x, i)) continue;
        c->arriving[it.act][i] = receive(x, it, i);
        TG_TRY(x->ctx->run.status);
    }
    return TG_OK;
}

/* The sender of an activation is rank 0 of its group, and the sender of a gradient rank 1. a.root is the receiver. */
tg_status tg_pipe_send(tg_pipe *x, tg_pipe_item it, tg_tensor *y) {
    bool down = it.act == TG_PIPE_F;
    tg_collective_args a = {.kind = TG_SEND, .src = y, .root = down, .site = x->site};
    tg_comm_start(tg_parallel_edge(x->p, down, true), &a);
    return x->ctx->run.status;
}
