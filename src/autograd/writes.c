/* Checks of the inputs that an op overwrites, in place (tg_op.inplace) or in addition to its outputs (tg_op.writes):
 * other readers of their bytes must notice the write. */
#include "autograd/apply.h"
#include "placement/rule.h"

/* Returns the address range of x's elements: the first byte, and the byte after the last. */
static void bytes_of(const tg_tensor *x, uintptr_t *first, uintptr_t *end) {
    int64_t low = x->offset, high = x->offset + 1, size = (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    for (int d = 0; d < x->ndim; d++) {
        int64_t span = (x->shape[d] - 1) * x->stride[d];
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    *first = (uintptr_t)x->storage->data + (uintptr_t)(low * size);
    *end = (uintptr_t)x->storage->data + (uintptr_t)((x->numel ? high : low) * size);
}

/* The storages of two inputs of an op can share bytes only if one of them uses memory of the caller. Two storages with
 * one block (tg_storage_share) belong to different tapes. */
bool tg_shares_bytes(const tg_tensor *a, const tg_tensor *b) {
    uintptr_t first[2], end[2];
    if (a->storage == b->storage) return true;
    if ((a->storage->block && b->storage->block) || !a->storage->data || !b->storage->data) return false;
    bytes_of(a, &first[0], &end[0]);
    bytes_of(b, &first[1], &end[1]);
    return first[0] < end[1] && first[1] < end[0];
}

tg_status tg_call_check_inplace(tg_call *c) {
    tg_tensor *a = c->n_in ? c->input[0] : NULL;
    if (!a) return tg_call_fail(c, TG_ERR_ARGUMENT, "input 0, which the op overwrites, is absent");
    if (a->flags & TG_F_VIEW)
        return tg_call_fail(c, TG_ERR_STATE,
                            "input 0 is a view, and an op that overwrites its input takes none; use the op that "
                            "returns a new tensor");
    if (!a->node && a->flags & TG_F_REQUIRES_GRAD && tg_is_grad_on(c->tape))
        return tg_call_fail(c, TG_ERR_STATE,
                            "input 0 is a leaf that needs a gradient, so the op cannot overwrite it; use the op that "
                            "returns a new tensor, or tg_tape_set_grad_mode(t, false)");
    if (!a->tape && tg_call_any_differentiable(c))
        return tg_call_fail(c, TG_ERR_STATE,
                            "input 0 belongs to the context, and the op would overwrite it with a result that needs a "
                            "gradient; call tg_detach on the other inputs, or use the op that returns a new tensor");
    if (!(a->flags & TG_F_CONTIGUOUS))
        return tg_call_fail(c, TG_ERR_STATE,
                            "input 0 is not contiguous, so the op cannot overwrite it; call tg_contiguous first");
    if (atomic_load(&a->storage->refs) > 1 + (int)tg_storage_pins(a->storage))
        return tg_call_fail(
            c, TG_ERR_STATE,
            "other live handles share the bytes of input 0 (views, tg_keep, tg_tape_input), so the op cannot overwrite "
            "it; drop them, or use the op that returns a new tensor");
    for (int i = 1; i < c->n_in; i++)
        if (c->input[i] && tg_shares_bytes(c->input[i], a))
            return tg_call_fail(c, TG_ERR_STATE, "input %d shares the overwritten bytes of input 0; pass a copy of it",
                                i);
    return tg_storage_await_readers(a->storage);
}

void tg_call_open_writes(tg_call *c) {
    if (c->tape->again) return;
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && tg_bit(c->op->writes, i)) c->writes |= 1u << (i < 31 ? i : 31);
}

static tg_status check_written(tg_call *c, int i) {
    const tg_tensor *a = c->input[i];
    if (a->flags & (TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "forward writes input %d, which needs a gradient; expected a tensor that needs none", i);
    if (tg_shares_elements(a))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "forward writes input %d, some of whose elements share memory; pass a contiguous tensor",
                            i);
    for (int k = 0; k < c->n_in; k++)
        if (k != i && c->input[k] && tg_shares_bytes(c->input[k], a))
            return tg_call_fail(c, TG_ERR_ARGUMENT,
                                "inputs %d and %d share bytes that forward writes; pass separate tensors", k, i);
    for (int k = 0; k < c->n_out; k++)
        if (c->out[k]->storage == a->storage)
            return tg_call_fail(
                c, TG_ERR_ARGUMENT,
                "output %d shares the bytes of input %d, which forward writes; infer must use tg_call_out for it", k,
                i);
    return TG_OK;
}

tg_status tg_call_begin_writes(tg_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && tg_bit(c->writes, i)) TG_TRY(check_written(c, i));
    for (int i = 0; i < c->n_in; i++) {
        if (!c->input[i] || !tg_bit(c->writes, i)) continue;
        TG_TRY(tg_storage_await_readers(c->input[i]->storage));
        tg_storage_wrote(c->input[i]->storage, c->op->name, tg_call_site(c));
    }
    return TG_OK;
}
