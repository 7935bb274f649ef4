/* Reads elements of a global tensor from the pieces that have them. Short runs that lie near each other in a file are
 * read together. */
#include "checkpoint/state/state_index.h"

#include "base/memory/host_memory.h"

enum { WINDOW = 1 << 16 }; /* bytes of a window of the file; longer runs are read without it */

typedef struct piece_reader {
    tg_safetensors *f;
    const tg_safetensors_entry *e;
    int64_t first; /* offset in the file of element 0 of the piece */
    size_t size;   /* bytes of an element */
    char *to;
    char *window; /* the bytes of the file from `at` on; `held` of them */
    int64_t at, held;
    tg_summing sum; /* not used: the checksums of the pieces were compared before */
} piece_reader;

/* Reads n elements, of which the first is element `from` of the piece and element `to` of the block that is read. */
static tg_status read_run(void *user, int64_t from, int64_t to, int64_t n) {
    piece_reader *r = user;
    int64_t offset = r->first + from * (int64_t)r->size, bytes = n * (int64_t)r->size, left = r->e->stop - offset;
    char *dst = r->to + (size_t)to * r->size;
    if (bytes >= WINDOW) return tg_safetensors_read_bytes(r->f, r->e, offset, dst, (size_t)bytes, &r->sum);
    if (offset < r->at || offset + bytes > r->at + r->held) {
        r->at = offset;
        r->held = left < WINDOW ? left : WINDOW;
        TG_TRY(tg_safetensors_read_bytes(r->f, r->e, offset, r->window, (size_t)r->held, &r->sum));
    }
    memcpy(dst, r->window + (offset - r->at), (size_t)bytes);
    return TG_OK;
}

static tg_status read_piece(tg_state *d, const tg_state_key *k, const tg_state_piece *p, const tg_block *block,
                            piece_reader *r) {
    const tg_safetensors_entry *e = tg_state_entry(d, k, p);
    if (!e) return d->ctx->run.status;
    r->f = d->file[p->file].open;
    r->e = e;
    r->first = e->begin + p->skip * (int64_t)r->size;
    r->held = 0;
    return tg_block_meet(&p->block, block, read_run, r);
}

tg_status tg_state_read(tg_state *d, const tg_state_key *k, const tg_block *block, char *to) {
    piece_reader r = {.size = tg_dtype_size(k->dtype), .to = to, .sum = tg_summing_begin()};
    if (!(r.window = tg_host_alloc(d->ctx, WINDOW))) return d->ctx->run.status;
    tg_status s = TG_OK;
    for (int i = 0; i < k->n && s == TG_OK; i++)
        if (tg_block_common(&k->piece[i].block, block)) s = read_piece(d, k, &k->piece[i], block, &r);
    tg_host_free(d->ctx, r.window, WINDOW);
    return s;
}
