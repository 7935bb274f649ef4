/* What nodes save, kept otherwise until backward reads it: by the caller's functions, as the refill of a discard. */
#include "base/host_memory.h"
#include "autograd/backward.h"
#include "core/capture.h"

typedef struct tg_packed {
    tg_tape *tape; /* that has packed it, and its others */
    struct tg_packed *next, *prev;
    tg_packer by;
    void *packed;
    tg_storage *storage; /* whose extra holds this */
    uint8_t dtype;
} tg_packed;

/* All elements of a storage, whatever handles it has. */
static tg_tensor *whole_of(tg_storage *s, uint8_t dtype) {
    int64_t n = (int64_t)(s->bytes / tg_dtype_size(dtype));
    return tg_temp_new(s->ctx, dtype, 1, &n, NULL, tg_storage_ref(s), 0);
}

static void end_packed(void *user) {
    tg_packed *p = user;
    tg_ctx *ctx = p->storage->ctx;
    *(p->prev ? &p->prev->next : &p->tape->packed) = p->next;
    if (p->next) p->next->prev = p->prev;
    if (p->by.drop) p->by.drop(p->by.user, p->packed);
    tg_host_free(ctx, p, sizeof *p);
}

/* The refill. Who writes through the handle changes no version: these are the bytes that were saved. */
static tg_status unpack(void *user, tg_ctx *ctx, void *dst, size_t bytes) {
    tg_packed *p = user;
    tg_storage *s = p->storage;
    const char *by = s->by;
    const void *by_site = s->by_site;
    uint32_t version = s->version;
    (void)dst, (void)bytes;
    tg_tensor *x = whole_of(s, p->dtype);
    if (!x) return ctx->run.status;
    tg_storage_extra *e = s->extra;
    bool temporary = s->temporary;
    s->temporary = true; /* until a tg_keep within the call, */
    e->refill = NULL;    /* which would end it */
    e->release = NULL;
    tg_status status = p->by.unpack(p->by.user, p->packed, x);
    if (status == TG_OK) status = ctx->run.status;
    if (status == TG_OK) status = tg_storage_need(s, x);
    e->refill = unpack;
    e->release = end_packed;
    e->user = p;
    tg_temp_free(x);
    s->version = version;
    s->by = by;
    s->by_site = by_site;
    if (!s->temporary)
        tg_pack_drop(s); /* who has kept it may outlive the packer */
    else
        s->temporary = temporary;
    return status;
}

static tg_packed *packed_of(const tg_storage *s) {
    return s->extra && s->extra->refill == unpack ? s->extra->user : NULL;
}

static tg_status keep_packed(tg_tape *t, tg_storage *s, void *packed, uint8_t dtype) {
    tg_storage_extra *e = tg_storage_extra_of(s);
    tg_packed *p = e ? tg_host_alloc(t->ctx, sizeof *p) : NULL;
    if (!p) {
        if (t->packer.drop) t->packer.drop(t->packer.user, packed);
        return t->ctx->run.status;
    }
    *p = (tg_packed){
        .tape = t, .next = t->packed, .by = t->packer, .packed = packed, .storage = s, .dtype = dtype};
    if (p->next) p->next->prev = p;
    t->packed = p;
    e->refill = unpack;
    e->version = s->version;
    e->release = end_packed;
    e->user = p;
    return TG_OK;
}

static tg_status pack_bytes(tg_tape *t, const tg_tensor *x, const void *site) {
    tg_storage *s = x->storage;
    void *packed = NULL;
    TG_TRY(tg_storage_need(s, x));
    tg_tensor *whole = whole_of(s, x->dtype);
    if (!whole) return t->ctx->run.status;
    bool grad = t->grad, temporary = s->temporary;
    t->grad = false;
    s->temporary = true; /* until a tg_keep within the call: such bytes stay */
    t->busy++;
    tg_status status = t->packer.pack(t->packer.user, t, whole, &packed);
    t->busy--;
    t->grad = grad;
    bool kept = !s->temporary;
    s->temporary = temporary && !kept;
    tg_temp_free(whole);
    if (status == TG_OK) status = t->ctx->run.status;
    if (status != TG_OK) {
        if (packed && t->packer.drop) t->packer.drop(t->packer.user, packed);
        return tg_fail(t->ctx, TG_ERR_CALLBACK, "the packer of what is saved failed with %s", tg_status_name(status));
    }
    if (packed && kept && t->packer.drop) t->packer.drop(t->packer.user, packed);
    if (!packed || kept) return TG_OK;
    TG_TRY(keep_packed(t, s, packed, x->dtype));
    tg_storage_discard(s, "tg_tape_pack", site);
    return TG_OK;
}

/* The tape's own bytes, that nobody else has something to do with. */
static bool may_pack(const tg_tape *t, const tg_tensor *x) {
    const tg_storage *s = x->storage;
    const tg_storage_extra *e = s ? s->extra : NULL;
    return s && s->bytes && s->block && !s->marked && s->state != TG_DISCARDED && tg_storage_is_of(s, t) &&
           !(e && (e->refill || e->restore || e->buffer || e->release || e->shared));
}

static tg_status pack_saved(tg_tape *t, const tg_tensor *x, uint64_t serial, const void *site) {
    if (!x || !may_pack(t, x) || !x->storage->temporary || x->storage->birth <= serial) return TG_OK;
    return pack_bytes(t, x, site);
}

static tg_status pack_node(tg_tape *t, const tg_node *n, uint64_t serial, const void *site) {
    for (int i = 0; i < n->n_in; i++)
        if (tg_bit(n->saves_in, i)) TG_TRY(pack_saved(t, tg_node_in(n)[i], serial, site));
    for (int i = 0; i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) TG_TRY(pack_saved(t, tg_node_out(n)[i], serial, site));
    for (int i = 0; i < n->n_saved; i++)
        if (may_pack(t, tg_node_kept(n)[i])) TG_TRY(pack_bytes(t, tg_node_kept(n)[i], site));
    return TG_OK;
}

tg_status tg_pack_since(tg_tape *t, uint64_t serial, const void *site) {
    if (t->ctx->meta) return TG_OK;
    TG_TRY(tg_recording_refuse(t->ctx, "tg_tape_pack", "packs what nodes save", site));
    for (tg_node *n = t->last; n; n = n->prev) {
        if (n->flags & TG_N_LEAF) continue; /* of a tensor that may be older */
        if (n->n_out && tg_node_out(n)[0]->serial <= serial) break;
        if (!(n->flags & TG_N_CONSUMED)) TG_TRY(pack_node(t, n, serial, site));
    }
    return TG_OK;
}

void tg_pack_drop(tg_storage *s) {
    tg_packed *p = packed_of(s);
    if (!p) return;
    s->extra->refill = NULL;
    s->extra->release = NULL;
    s->extra->user = NULL;
    end_packed(p);
}

/* Another tape has entered it, and reads it later. Under an error nothing is unpacked: the bytes are gone then, and who
 * reads them is told so. */
void tg_pack_end(tg_tape *t) {
    for (const tg_packed *p; (p = t->packed);) {
        tg_storage *s = p->storage;
        if (tg_ok(t->ctx) && !t->ctx->ending) tg_storage_need(s, NULL);
        tg_pack_drop(s);
        if (t->packed == p) return; /* it is being unpacked now, by whoever resets its tape meanwhile */
    }
}

static void again(const tg_tensor *x, bool saved) {
    tg_storage *s = x ? x->storage : NULL;
    bool packed = s && packed_of(s) && s->extra->version == s->version;
    if (packed && (saved || s->temporary)) tg_storage_discard(s, "tg_tape_pack", NULL);
}

void tg_pack_again(const tg_node *n) {
    for (int i = 0; i < n->n_in; i++)
        if (tg_bit(n->saves_in, i)) again(tg_node_in(n)[i], false);
    for (int i = 0; i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) again(tg_node_out(n)[i], false);
    for (int i = 0; i < n->n_saved; i++) again(tg_node_kept(n)[i], true);
}

/* ---- The public side ---- */

tg_status tg_tape_pack(tg_tape *t, const tg_packer *given) {
    tg_packer p;
    TG_TRY(tg_tape_check(t, "tg_tape_pack"));
    TG_TRY(tg_options(t->ctx, &p, sizeof p, given, "tg_tape_pack: the packer"));
    if (given && (!p.pack || !p.unpack))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_tape_pack: the packer needs pack and unpack");
    t->packer = p;
    return TG_OK;
}

tg_status tg_pack(tg_tensor *x) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, "tg_pack"));
    if (!x->tape || !x->tape->packer.pack || ctx->meta) return TG_OK;
    TG_TRY(tg_recording_refuse(ctx, "tg_pack", "packs what nodes save", TG_SITE));
    if (!x->storage->saves || !x->storage->temporary || !may_pack(x->tape, x)) return TG_OK;
    return pack_bytes(x->tape, x, TG_SITE);
}
