/* This rank's file: a safetensors file with the pieces that it writes. */
#include "checkpoint/save/save.h"

#include <stdlib.h>

#include "base/memory/host_memory.h"

void tg_save_undescribe(tg_save *w) {
    tg_outlines_free(w->ctx, &w->mine);
    free(w->pieces);
}

/* Returns the shape of the piece in the file: that of its block or, if the block is a range, one dim with its
 * elements. */
static tg_shape shape_of(const tg_save_piece *p) {
    int64_t n = tg_block_count(&p->block);
    return tg_block_is_range(&p->block) ? tg_shape_make(1, &n) : p->block.shape;
}

static bool describe(json_t *pieces, const tg_save_piece *p) {
    json_t *row =
        json_pack("{s:s, s:o, s:s}", "key", tg_shard_key(p->item), "shape", tg_json_shape(&p->whole), "at", p->at);
    return json_object_set_new(pieces, p->name, row) == 0;
}

tg_status tg_save_describe(tg_save *w) {
    int n = 0;
    bool good = true;
    for (int i = 0; i < w->n; i++) n += w->piece[i].mine;
    TG_TRY(tg_outlines_new(w->ctx, &w->mine, n));
    json_t *pieces = json_object();
    for (int i = 0, k = 0; i < w->n; i++) {
        const tg_save_piece *p = &w->piece[i];
        const tg_shape shape = shape_of(p);
        if (!p->mine) continue;
        tg_outlines_set(&w->mine, k++, p->name, (tg_dtype)p->item->x->dtype, &shape);
        good &= describe(pieces, p);
    }
    w->pieces = good ? tg_json_text(pieces, JSON_COMPACT) : NULL;
    json_decref(pieces);
    return w->pieces ? TG_OK : tg_save_no_memory(w);
}

/* Returns the elements of piece p as a temporary of ctx. If they are held, ctx is the thread's context. */
static tg_tensor *tensor_of(const tg_save_piece *p, const tg_tensor *like, tg_ctx *ctx) {
    if (!p->held) return tg_save_view(p);
    tg_storage *s = tg_storage_wrap(ctx, p->held, (size_t)p->bytes, NULL, NULL);
    return s ? tg_temp_new(ctx, (tg_dtype)like->dtype, 1, &like->numel, NULL, s, 0) : NULL;
}

static tg_status put(tg_safetensors_writer *f, const tg_save_piece *p, const tg_tensor *like) {
    tg_tensor *x = tensor_of(p, like, f->ctx);
    tg_status s = x ? tg_safetensors_put(f, x) : f->ctx->run.status;
    tg_temp_free(x);
    return s;
}

tg_status tg_save_write(tg_save *w, tg_ctx *ctx) {
    const tg_metadata metadata[] = {
        {"format", TG_STATE_FORMAT}, {TG_STATE_PIECES, w->pieces}, {TG_STATE_STEPS, w->steps}};
    tg_safetensors_writer f = {0};
    tg_status s = tg_safetensors_begin(&f, ctx, w->path, w->mine.named, w->mine.n, metadata, TG_LEN(metadata));
    for (int i = 0, k = 0; i < w->n && s == TG_OK; i++)
        if (w->piece[i].mine) s = put(&f, &w->piece[i], &w->mine.like[k++]);
    if (s == TG_OK) s = tg_safetensors_commit(&f, NULL);
    tg_safetensors_abandon(&f); /* has no effect after the commit */
    return s;
}
