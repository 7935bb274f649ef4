/* Tensors that nodes save for backward: checks that they are unchanged, releases them, and packs them until backward
 * reads them. The caller's functions pack and unpack (tg_tape_pack). The bytes of a packed storage are discarded; the
 * storage's refill function (core/memory/storage.h) unpacks them. */
#include "autograd/saved_tensors.h"

#include "base/callback.h"
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "core/capture/capture.h"

/* ---- Checks and release ---- */

static tg_status saved_changed(const tg_node *n, const tg_tensor *x, const char *which, int i) {
    char site[160], by_site[160] = "";
    const tg_storage *s = x->storage;
    tg_describe_site(x->ctx, tg_scope_site(n->scope, n->site), site, sizeof site);
    if (s && s->by_site) tg_describe_site(x->ctx, s->by_site, by_site, sizeof by_site);
    return tg_fail(x->ctx, TG_ERR_VERSION,
                   "%s of op %s (called from %s), saved for backward as %s %d, was overwritten by %s%s%s",
                   *tg_name(x) ? tg_name(x) : "a tensor", n->op->name, site, which, i,
                   s && s->by ? s->by : "an in-place op", *by_site ? ", called from " : "", by_site);
}

tg_status tg_node_check_saved(const tg_node *n) {
    tg_tensor **in = tg_node_in(n), **out = tg_node_out(n);
    const uint32_t *version = tg_node_versions(n);
    for (int i = 0; n->saves_in && i < n->n_in; i++, version++) {
        if (!in[i] || !tg_bit(n->saves_in, i)) continue;
        if (!in[i]->storage || in[i]->storage->version != *version) return saved_changed(n, in[i], "input", i);
        TG_TRY(tg_storage_need(in[i]->storage, in[i]));
    }
    for (int i = 0; n->saves_out && i < n->n_out; i++, version++) {
        if (!tg_bit(n->saves_out, i)) continue;
        if (!out[i]->storage || out[i]->storage->version != *version) return saved_changed(n, out[i], "output", i);
        TG_TRY(tg_storage_need(out[i]->storage, out[i]));
    }
    for (int i = 0; i < n->n_saved; i++) {
        tg_tensor *x = tg_node_kept(n)[i];
        TG_TRY(tg_storage_need(x->storage, x));
    }
    return TG_OK;
}

tg_status tg_node_ready(const tg_node *n) {
    if (TG_LIKELY(!(n->flags & TG_N_CONSUMED))) return tg_node_check_saved(n);
    char site[160];
    tg_ctx *ctx = tg_node_out(n)[0]->ctx;
    tg_describe_site(ctx, tg_scope_site(n->scope, n->site), site, sizeof site);
    return tg_fail(ctx, TG_ERR_STATE,
                   "op %s (called from %s) has run in an earlier backward, which released what the nodes had saved; "
                   "run that one with .retain = true",
                   n->op->name, site);
}

static void drop_packed(tg_storage *s);

/* Called when a node no longer needs x. If no other node has saved the bytes of x, discards them, provided that they
 * are temporary and belong to this tape. */
static void unsave(const tg_tape *t, tg_tensor *x, const char *by, const void *site) {
    tg_storage *s = x->storage;
    if (!s || --s->saves > 0) return;
    if (s->temporary && tg_storage_is_of(s, t)) tg_storage_discard(s, by, site);
    if (TG_UNLIKELY(s->extra != NULL)) drop_packed(s);
}

void tg_node_release(const tg_tape *t, tg_node *n) {
    tg_tensor **in = tg_node_in(n), **out = tg_node_out(n);
    for (int i = 0; n->saves_in && i < n->n_in; i++)
        if (in[i] && tg_bit(n->saves_in, i)) unsave(t, in[i], "the backward of an op that had saved them", n->site);
    for (int i = 0; n->saves_out && i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) unsave(t, out[i], "the backward of the op that made them", n->site);
    for (int i = 0; i < n->n_saved; i++) tg_temp_free(tg_node_kept(n)[i]);
    n->flags |= TG_N_CONSUMED;
}

/* ---- Packing ---- */

typedef struct tg_packed tg_packed;

/* The state of packing that is kept with a tape. */
typedef struct packing {
    tg_tape_listener listener;
    tg_pack_ops packer; /* pack is NULL if no packer is set */
    tg_packed *packed; /* list of packed forms that have not been dropped */
} packing;

struct tg_packed {
    packing *of;
    struct tg_packed *next, *prev; /* neighbors in the tape's list */
    tg_pack_ops by;
    void *packed;
    tg_storage *storage; /* the packed storage, whose extra->user points to this struct */
    uint8_t dtype;
};

/* Returns a new one-dimensional handle on all bytes of a storage, as elements of this dtype. */
static tg_tensor *whole_of(tg_storage *s, uint8_t dtype) {
    int64_t n = (int64_t)(s->bytes / tg_dtype_size(dtype));
    return tg_temp_new(s->ctx, dtype, 1, &n, NULL, tg_storage_ref(s), 0);
}

static void end_packed(void *user) {
    tg_packed *p = user;
    tg_ctx *ctx = p->storage->ctx;
    *(p->prev ? &p->prev->next : &p->of->packed) = p->next;
    if (p->next) p->next->prev = p->prev;
    if (p->by.drop) p->by.drop(p->by.user, p->packed);
    tg_host_free(ctx, p, sizeof *p);
}

/* The refill function of a packed storage. Its writes do not count as a new version: they restore the saved bytes. */
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
    /* The caller's function may call tg_keep, which clears `temporary` and would free the refill that is running. */
    s->temporary = true;
    e->refill = NULL;
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
        drop_packed(s); /* the tensor was kept and may outlive the packer */
    else
        s->temporary = temporary;
    return status;
}

static tg_packed *packed_of(const tg_storage *s) {
    return s->extra && s->extra->refill == unpack ? s->extra->user : NULL;
}

static tg_status keep_packed(packing *of, const tg_pack_ops *by, tg_storage *s, void *packed, uint8_t dtype) {
    tg_ctx *ctx = of->listener.tape->ctx;
    tg_storage_extra *e = tg_storage_extra_of(s);
    tg_packed *p = e ? tg_host_alloc(ctx, sizeof *p) : NULL;
    if (!p) {
        if (by->drop) by->drop(by->user, packed);
        return ctx->run.status;
    }
    *p = (tg_packed){.of = of, .next = of->packed, .by = *by, .packed = packed, .storage = s, .dtype = dtype};
    if (p->next) p->next->prev = p;
    of->packed = p;
    e->refill = unpack;
    e->version = s->version;
    e->release = end_packed;
    e->user = p;
    return TG_OK;
}

static tg_status pack_bytes(packing *of, const tg_tensor *x, const void *site) {
    tg_tape *t = of->listener.tape;
    tg_storage *s = x->storage;
    void *packed = NULL;
    const tg_pack_ops by = of->packer; /* a copy, because the caller's function may set another packer, or none */
    if (!by.pack) return TG_OK;
    TG_TRY(tg_storage_need(s, x));
    tg_tensor *whole = whole_of(s, x->dtype);
    if (!whole) return t->ctx->run.status;
    bool grad = t->grad, temporary = s->temporary;
    t->grad = false;
    s->temporary = true; /* tg_keep in the caller's function clears it; the bytes then stay */
    t->busy++;
    tg_status status = by.pack(by.user, t, whole, &packed);
    t->busy--;
    t->grad = grad;
    bool kept = !s->temporary;
    s->temporary = temporary && !kept;
    tg_temp_free(whole);
    if (status == TG_OK) status = t->ctx->run.status;
    if (status != TG_OK) {
        if (packed && by.drop) by.drop(by.user, packed);
        return tg_callback_end(t->ctx, status, "tg_tape_pack: the packer of saved tensors");
    }
    if (packed && kept && by.drop) by.drop(by.user, packed);
    if (!packed || kept) return TG_OK;
    TG_TRY(keep_packed(of, &by, s, packed, x->dtype));
    tg_storage_discard(s, "tg_tape_pack", site);
    return TG_OK;
}

/* Returns whether x has bytes of this tape that nothing else manages. */
static bool may_pack(const tg_tape *t, const tg_tensor *x) {
    const tg_storage *s = x->storage;
    const tg_storage_extra *e = s ? s->extra : NULL;
    return s && s->bytes && s->block && !s->marked && s->state != TG_DISCARDED && tg_storage_is_of(s, t) &&
           !(e && (e->refill || e->restore || e->buffer || e->release || e->shared));
}

static tg_status pack_saved(packing *of, const tg_tensor *x, uint64_t serial, const void *site) {
    if (!x || !may_pack(of->listener.tape, x) || !x->storage->temporary || x->storage->birth <= serial) return TG_OK;
    return pack_bytes(of, x, site);
}

static tg_status pack_node(packing *of, const tg_node *n, uint64_t serial, const void *site) {
    for (int i = 0; i < n->n_in; i++)
        if (tg_bit(n->saves_in, i)) TG_TRY(pack_saved(of, tg_node_in(n)[i], serial, site));
    for (int i = 0; i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) TG_TRY(pack_saved(of, tg_node_out(n)[i], serial, site));
    for (int i = 0; i < n->n_saved; i++)
        if (may_pack(of->listener.tape, tg_node_kept(n)[i])) TG_TRY(pack_bytes(of, tg_node_kept(n)[i], site));
    return TG_OK;
}

/* Packs the tensors that were made since a scope was opened and that nodes have saved, except those that are marked as
 * outputs of the scope. */
static tg_status pack_since(packing *of, uint64_t serial, const void *site) {
    const tg_tape *t = of->listener.tape;
    if (!of->packer.pack || t->ctx->meta) return TG_OK;
    TG_TRY(tg_recording_refuse(t->ctx, "tg_tape_pack", "packs what nodes save", site));
    for (tg_node *n = t->last; n; n = n->prev) {
        if (n->flags & TG_N_LEAF) continue; /* the age of a leaf is not that of its node, so it does not end the loop */
        if (tg_node_out(n)[0]->serial <= serial) break;
        if (!(n->flags & TG_N_CONSUMED)) TG_TRY(pack_node(of, n, serial, site));
    }
    return TG_OK;
}

/* Drops the packed form of s, if it has one: these bytes will not be unpacked again. */
static void drop_packed(tg_storage *s) {
    tg_packed *p = packed_of(s);
    if (!p) return;
    s->extra->refill = NULL;
    s->extra->release = NULL;
    s->extra->user = NULL;
    end_packed(p);
}

/* Called when the tape's handles have ended. Storages that are still packed have other readers, such as another tape
 * that uses them as inputs. They are unpacked now, because the packer may end with the step. Under an error nothing
 * is unpacked: the bytes are lost, and later reads fail. */
static void unpack_all(packing *of) {
    const tg_ctx *ctx = of->listener.tape->ctx;
    for (const tg_packed *p; (p = of->packed);) {
        tg_storage *s = p->storage;
        if (tg_ok(ctx) && !ctx->ending) tg_storage_need(s, NULL);
        drop_packed(s);
        if (of->packed == p) return; /* p is being unpacked now, by a function of the caller that has reset the tape */
    }
}

/* Discards the bytes of x again if they were packed and have not changed since. `saved` says that x is a buffer of
 * tg_call_save. */
static void repack(const tg_tensor *x, bool saved) {
    tg_storage *s = x ? x->storage : NULL;
    bool packed = s && packed_of(s) && s->extra->version == s->version;
    if (packed && (saved || s->temporary)) tg_storage_discard(s, "tg_tape_pack", NULL);
}

static void close_scope(tg_tape_listener *l, uint64_t serial, const void *site) {
    pack_since((packing *)l, serial, site);
}

static void reset(tg_tape_listener *l, bool freed) {
    packing *of = (packing *)l;
    unpack_all(of);
    if (freed) of->packer = (tg_pack_ops){0};
}

static const tg_tape_listener_ops packing_ops = {
    .size = sizeof(packing), .scope_closed = close_scope, .reset = reset};

static packing *packing_of(const tg_tape *t) {
    packing *of = (packing *)tg_tape_listener_of(t, &packing_ops);
    return of && of->packer.pack ? of : NULL;
}

void tg_saved_repack(const tg_tape *t, const tg_node *n) {
    const packing *of = (const packing *)tg_tape_listener_of(t, &packing_ops);
    if (!of || !of->packed) return;
    for (int i = 0; i < n->n_in; i++)
        if (tg_bit(n->saves_in, i)) repack(tg_node_in(n)[i], false);
    for (int i = 0; i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) repack(tg_node_out(n)[i], false);
    for (int i = 0; i < n->n_saved; i++) repack(tg_node_kept(n)[i], true);
}

/* ---- Public functions ---- */

tg_status tg_tape_pack(tg_tape *t, const tg_pack_ops *given) {
    tg_pack_ops p;
    TG_TRY(tg_tape_check(t, "tg_tape_pack"));
    TG_TRY(tg_options(t->ctx, &p, &tg_pack_ops_struct, given, "tg_tape_pack: the packer"));
    if (given && (!p.pack || !p.unpack))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tape_pack: pack or unpack of the packer is NULL, expected two functions");
    packing *of = (packing *)(given ? tg_tape_listen(t, &packing_ops) : tg_tape_listener_of(t, &packing_ops));
    if (of) of->packer = p;
    return t->ctx->run.status;
}

tg_status tg_pack(tg_tensor *x) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, "tg_pack"));
    packing *of = x->tape ? packing_of(x->tape) : NULL;
    if (!of || ctx->meta) return TG_OK;
    TG_TRY(tg_recording_refuse(ctx, "tg_pack", "packs what nodes save", TG_SITE));
    if (!x->storage->saves || !x->storage->temporary || !may_pack(x->tape, x)) return TG_OK;
    return pack_bytes(of, x, TG_SITE);
}
