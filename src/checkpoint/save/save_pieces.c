/* The pieces that this rank has: one for each item of the list that has elements here, or whose global tensor has
 * none. */
#include "checkpoint/save/save.h"

#include "base/memory/host_memory.h"
#include "base/text.h"

/* Returns the text of the block, which the caller frees with tg_host_strfree. */
static char *text_of(tg_ctx *ctx, const tg_block *b) {
    size_t n = tg_block_text(b, NULL, 0);
    char *text = tg_host_alloc(ctx, n + 1);
    if (text) tg_block_text(b, text, n + 1);
    return text;
}

/* Hashes what distinguishes a piece from others: its key, dtype, global shape and place. */
static uint64_t hash_of(const tg_save_piece *p) {
    const char *key = tg_shard_key(p->item);
    tg_summing sum = tg_summing_begin();
    tg_summing_add(&sum, key, strlen(key) + 1);
    tg_summing_add(&sum, p->at, strlen(p->at) + 1);
    tg_summing_add(&sum, (int64_t[]){p->item->x->dtype, p->whole.ndim}, 2 * sizeof(int64_t));
    tg_summing_add(&sum, p->whole.dim, (size_t)p->whole.ndim * sizeof *p->whole.dim);
    return tg_summing_end(&sum);
}

/* Completes a piece whose item and block are set. */
static tg_status describe(tg_ctx *ctx, tg_save_piece *p) {
    const char *key = tg_shard_key(p->item);
    bool all = tg_block_count(&p->block) == tg_shape_numel(&p->whole);
    if (!(p->at = text_of(ctx, &p->block))) return ctx->run.status;
    p->name = all ? tg_host_strdup(ctx, key) : tg_format_path(ctx, "%s[%s]", key, p->at);
    p->bytes = tg_block_count(&p->block) * (int64_t)tg_dtype_size(p->item->x->dtype);
    p->hash = hash_of(p);
    return ctx->run.status;
}

/* Returns whether the block has an index in every dim in which the tensor has one. A part that lies in padding rows has
 * none. */
static bool has_indices(const tg_block *b, const tg_shape *whole) {
    for (int d = 0; d < whole->ndim; d++)
        if (whole->dim[d] && !b->n[d]) return false;
    return true;
}

/* Adds the item's piece, if it has elements. A part of a global tensor without elements is a piece too. */
static tg_status add(tg_save *w, const tg_shard_item *i) {
    tg_save_piece *p = &w->piece[w->n];
    *p = (tg_save_piece){.item = i, .whole = tg_shard_whole_shape(i)};
    TG_TRY(tg_shard_block(i, &p->block));
    w->n++;
    if (tg_block_count(&p->block) || (!tg_shape_numel(&p->whole) && has_indices(&p->block, &p->whole)))
        return describe(w->ctx, p);
    tg_block_free(w->ctx, &w->piece[--w->n].block);
    return TG_OK;
}

tg_status tg_save_list(tg_save *w) {
    w->piece_bytes = (size_t)w->s->n * sizeof *w->piece + 1;
    w->piece = tg_host_alloc(w->ctx, w->piece_bytes);
    if (!w->piece) return w->ctx->run.status;
    for (int i = 0; i < w->s->n; i++) TG_TRY(add(w, &w->s->item[i]));
    return TG_OK;
}

void tg_save_unlist(tg_save *w) {
    for (int i = 0; i < w->n; i++) {
        tg_block_free(w->ctx, &w->piece[i].block);
        tg_host_strfree(w->ctx, w->piece[i].name);
        tg_host_strfree(w->ctx, w->piece[i].at);
    }
    tg_host_free(w->ctx, w->piece, w->piece_bytes);
}

tg_tensor *tg_save_view(const tg_save_piece *p) {
    const tg_tensor *x = p->item->x;
    tg_shape s = tg_shape_make(x->ndim, x->shape);
    if (tg_storage_need(x->storage, x) != TG_OK) return NULL;
    if (p->item->range)
        s.dim[0] = tg_block_count(&p->block);
    else if (s.ndim)
        s.dim[0] = p->block.shape.dim[p->item->front.n]; /* without padding rows */
    return tg_temp_new(x->ctx, (tg_dtype)x->dtype, (int)s.ndim, s.dim, x->stride, tg_storage_ref(x->storage),
                       x->offset);
}
