/* Draws of dropout of attention weights. The weight of query i and key j takes the draw of its place in the whole
 * matrix [b, h, s, s] of one rank, so that any number of ranks drops the same weights. */
#include "placement/draws.h"

#include "parallel/cp/cp.h"

/* Fills in where the matrix of weights lies on each axis: whole on c's axis, and on every other axis as q, or opaque if
 * another input is opaque there. */
static void place_weights(const tg_call *c, tg_placement at[TG_MAX_AXES]) {
    tg_axis own = tg_comm_axis(tg_cp_of(c)->comm);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        at[a] = a == (int)own ? tg_at_i : tg_place_on(c->input[CP_Q], (tg_axis)a);
        for (int i = CP_K; i < CP_INPUTS && a != (int)own; i++) {
            if (!c->input[i]) continue;
            tg_placement p = tg_place_on(c->input[i], (tg_axis)a);
            if (p.kind == TG_VARYING && p.layout == TG_OPAQUE) at[a] = p;
        }
    }
}

/* Returns the number of the draw of an element of the matrix, less that of element 0. */
static int64_t draw_at(const tg_draws *d, int64_t position) {
    return (int64_t)(tg_draw_number(d, position) - tg_draw_number(d, 0));
}

tg_status tg_cp_take_draws(tg_call *c) {
    tg_cp_params *p = c->params;
    const tg_tensor *q = c->input[CP_Q];
    int64_t b = q->shape[0], h = q->shape[1];
    tg_placement at[TG_MAX_AXES];
    tg_draws d;
    TG_TRY(tg_call_draws_now(c));
    place_weights(c, at);
    TG_TRY(tg_draws_take(c, 4, (int64_t[]){b, h, p->length, p->length}, tg_grid_axes(c->ctx) ? at : NULL, &d));
    int64_t matrix = p->length * p->length; /* the call above fails if b h matrix overflows */
    if (b * h * matrix == 0) return TG_OK;
    int64_t batch = b > 1 ? draw_at(&d, h * matrix) : 0, head = h > 1 ? draw_at(&d, matrix) : 0;
    bool even = draw_at(&d, matrix - 1) == matrix - 1 &&
                draw_at(&d, b * h * matrix - 1) == (b - 1) * batch + (h - 1) * head + matrix - 1;
    if (!even)
        return tg_call_fail(c, TG_ERR_UNSUPPORTED,
                            "dropout needs batches and heads that other axes divide into contiguous shards");
    uint64_t first = tg_draw_number(&d, 0);
    d.n = 0;
    d.rng.counter = first;
    p->draws = (tg_cp_draws){d, batch, head};
    return TG_OK;
}

tg_draws tg_cp_draws_of(const tg_cp_params *p, const tg_cp_pass *w, int query, int key) {
    tg_draws d = p->draws.first;
    int64_t rows = p->blocks.rows, first_head = p->member * p->heads;
    const int64_t extent[] = {w->q.shape[0], p->heads, rows, rows};
    const int64_t stride[] = {p->draws.batch, p->draws.head, p->length, 1};
    d.rng.counter += (uint64_t)(first_head * p->draws.head + query * rows * p->length + key * rows);
    d.n = 4;
    memcpy(d.extent, extent, sizeof extent);
    memcpy(d.stride, stride, sizeof stride);
    return d;
}
