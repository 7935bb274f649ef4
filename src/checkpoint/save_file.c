/* This rank's file: a safetensors file with the pieces that it writes. */
#include "checkpoint/save.h"

#include <stdlib.h>

#include "base/host_memory.h"

void tg_save_undescribe(tg_save *w) {
    tg_host_free(w->ctx, w->named, w->named ? (size_t)w->n_mine * sizeof *w->named + 1 : 0);
    tg_host_free(w->ctx, w->like, w->like ? (size_t)w->n_mine * sizeof *w->like + 1 : 0);
    tg_host_free(w->ctx, w->dims, w->dims ? (size_t)w->n_mine * sizeof *w->dims + 1 : 0);
    free(w->pieces);
}

/* Returns the shape of the piece in the file: that of its block or, of a range, its number of elements. */
static tg_shape shape_of(const tg_save_piece *p) {
    int64_t n = tg_block_count(&p->block);
    return tg_block_is_range(&p->block) ? tg_shape_make(1, &n) : p->block.shape;
}

static void add_tensor(tg_save *w, const tg_save_piece *p, int k) {
    tg_shape s = shape_of(p);
    memcpy(w->dims[k], s.dim, sizeof s.dim);
    w->like[k] = (tg_tensor){.dtype = p->item->x->dtype, .ndim = (uint8_t)s.ndim, .shape = w->dims[k]};
    w->like[k].numel = tg_block_count(&p->block);
    w->named[k] = (tg_named_tensor){p->name, &w->like[k]};
}

static bool describe(json_t *pieces, const tg_save_piece *p) {
    json_t *row =
        json_pack("{s:s, s:o, s:s}", "key", tg_shard_key(p->item), "shape", tg_json_shape(&p->whole), "at", p->at);
    return json_object_set_new(pieces, p->name, row) == 0;
}

tg_status tg_save_describe(tg_save *w) {
    for (int i = 0; i < w->n; i++) w->n_mine += w->piece[i].mine;
    w->named = tg_host_alloc(w->ctx, (size_t)w->n_mine * sizeof *w->named + 1);
    w->like = tg_host_alloc(w->ctx, (size_t)w->n_mine * sizeof *w->like + 1);
    w->dims = tg_host_alloc(w->ctx, (size_t)w->n_mine * sizeof *w->dims + 1);
    TG_TRY(w->ctx->run.status);
    json_t *pieces = json_object();
    bool good = true;
    for (int i = 0, k = 0; i < w->n; i++) {
        if (!w->piece[i].mine) continue;
        add_tensor(w, &w->piece[i], k++);
        good &= describe(pieces, &w->piece[i]);
    }
    w->pieces = good ? json_dumps(pieces, JSON_COMPACT) : NULL;
    json_decref(pieces);
    if (w->pieces) return TG_OK;
    return tg_fail(w->ctx, TG_ERR_ARGUMENT, "tg_shards_save: no memory for the header, or a key is not UTF-8");
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
    tg_status s = tg_safetensors_begin(&f, ctx, w->path, w->named, w->n_mine, metadata, TG_LEN(metadata));
    for (int i = 0, k = 0; i < w->n && s == TG_OK; i++)
        if (w->piece[i].mine) s = put(&f, &w->piece[i], &w->like[k++]);
    if (s == TG_OK) s = tg_safetensors_commit(&f, NULL);
    tg_safetensors_abandon(&f); /* has no effect after the commit */
    return s;
}
