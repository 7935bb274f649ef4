/* Backward functions that several mappings share. Each makes the gradient of input 0 from the gradient of output 0: by
 * a collective, as a copy or as a view. */
#include "ops/common/nn_op.h"
#include "parallel/mappings/mapping.h"

tg_tensor *tg_mapping_gradient(tg_call *c) {
    const tg_tensor *x = c->input[0];
    return tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
}

tg_status tg_mapping_give(tg_call *c, tg_tensor *g) {
    TG_TRY(tg_ctx_status(c->ctx));
    return g->storage->state == TG_IN_FLIGHT ? tg_call_in_flight(c, 0, g, NULL) : tg_call_pass(c, 0, g);
}

tg_status tg_mapping_pass(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

typedef tg_status (*move_fn)(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src);

static tg_status give_moved(tg_call *c, move_fn move) {
    tg_tensor *g = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(move(c, tg_mapping_of(c), g, c->gout[0]));
    return tg_mapping_give(c, g);
}

tg_status tg_mapping_sum(tg_call *c) { return give_moved(c, tg_collective_copy_sum); }
tg_status tg_mapping_gather(tg_call *c) { return give_moved(c, tg_collective_copy_gather); }
tg_status tg_mapping_reduce_scatter(tg_call *c) { return give_moved(c, tg_collective_copy_reduce_scatter); }

tg_status tg_mapping_keep_part(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    tg_tensor *g = c->gout[0], *x = c->input[0];
    tg_piece at = tg_mapping_piece(p, x->shape[p->dim], tg_comm_rank(p->comm), 0);
    if (tg_placement_chunks(p->shard) == 1)
        return tg_op_pass_view(c, 0, g, at.whole * g->stride[p->dim], x->ndim, x->shape, g->stride);
    tg_tensor *own = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_collective_copy_part(c, p, tg_array_of(own), tg_array_of(g)));
    return tg_mapping_give(c, own);
}

tg_status tg_mapping_place_part(tg_call *c) {
    if (c->gin_mode[0] == TG_GRAD_NONE) return TG_OK;
    TG_TRY(tg_op_zero(c, 0));
    tg_tensor *g = tg_call_gin(c, 0);
    TG_TRY(tg_ctx_status(c->ctx));
    return tg_collective_copy_place(c, tg_mapping_of(c), tg_array_of(g), tg_array_of(c->gout[0]),
                                    c->gin_mode[0] == TG_GRAD_ADD);
}
