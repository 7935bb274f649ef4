/* The list of sharded state: tensors that are saved and loaded together, under keys that name the global tensors. */
#include "checkpoint/save/save.h"

#include <stdio.h>
#include <tapegrad/parallel.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/tensor/rehome.h"
#include "placement/placing.h"

tg_shards *tg_shards_new(const tg_parallel *p) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    if (!tg_ok(ctx)) return NULL;
    tg_shards *s = tg_host_alloc(ctx, sizeof *s);
    if (s) *s = (tg_shards){.ctx = ctx, .p = p};
    return s;
}

/* Removes the last item. */
static void remove_last(tg_shards *s) {
    tg_shard_item *i = &s->item[--s->n];
    tg_host_strfree(s->ctx, (char *)i->key);
    tg_host_strfree(s->ctx, (char *)i->owner);
}

void tg_shards_free(tg_shards *s) {
    if (!s) return;
    if (s->saving) s->saving->s = NULL; /* the save goes on without the list */
    while (s->n) remove_last(s);
    for (int i = 0; i < s->n_steps; i++) tg_host_strfree(s->ctx, (char *)s->steps[i].key);
    tg_host_free(s->ctx, s->item, (size_t)s->capacity * sizeof *s->item);
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_status tg_shards_undo_if_failed(tg_shards *s, int n, tg_status status) {
    while (status != TG_OK && s->n > n) remove_last(s);
    return status;
}

static tg_status enter(const tg_shards *s) { return s ? s->ctx->run.status : TG_ERR_ARGUMENT; }

/* ---- Adding ---- */

static const tg_shard_item *find(const tg_shards *s, const char *key) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->item[i].key, key) == 0) return &s->item[i];
    return NULL;
}

static tg_status grow(tg_shards *s) {
    void *items = s->item;
    bool grown = tg_host_grow(s->ctx, &items, s->n, &s->capacity, sizeof *s->item);
    s->item = items;
    return grown ? TG_OK : s->ctx->run.status;
}

/* Fails unless the placement says where each rank's elements belong in the global tensor. */
static tg_status check_place(const tg_shards *s, const char *key, const tg_tensor *x, const char *who) {
    char text[128];
    const tg_placements *p = tg_place_of(x);
    bool whole = tg_shard_is_located(x);
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (tg_grid_axes(s->ctx) >> a & 1 && p->at[a].kind == TG_VARYING)
            whole &= tg_parallel_comm(s->p, (tg_axis)a) != NULL;
    if (whole) return tg_place_check_shards(x, p, 0, who);
    tg_place_text(s->ctx, p, text, sizeof text);
    return tg_fail(s->ctx, TG_ERR_PLACEMENT,
                   "%s: '%.128s' is %s, but the global state can have only tensors that are equal on every rank and "
                   "shards with a layout; place it (tg_place), or call tg_as_shard first",
                   who, key, text);
}

tg_status tg_shards_check_key(const tg_shards *s, const char *key, const char *who) {
    size_t n = key ? strlen(key) : 0, good = key ? tg_utf8_check(key, n) : 0;
    if (good < n) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: the key is not UTF-8 from its byte %zu", who, good);
    if (n && n < TG_SHARDS_KEY) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: the key is %s, expected 1 to %d bytes", who,
                   key ? n ? "too long" : "empty" : "NULL", TG_SHARDS_KEY - 1);
}

/* Fails if the item's key exists already, unless both items have the same dims in front, different places, and the same
 * dtype and global shape. Fails also if the tensor and the dims in front have too many dims together. */
static tg_status check_new(const tg_shards *s, const tg_shard_item *i, const char *who) {
    for (int k = 0; k < s->n; k++) {
        const tg_shard_item *e = &s->item[k];
        const tg_shard_front *a = &e->front, *b = &i->front;
        if (strcmp(e->key, i->key) != 0) continue;
        tg_shape g = tg_shard_global(e->like), h = tg_shard_global(i->like);
        size_t dims = (size_t)a->n * sizeof *a->size;
        bool places = a->n && a->n == b->n && !memcmp(a->size, b->size, dims) && memcmp(a->at, b->at, dims);
        if (!places) return tg_fail(s->ctx, TG_ERR_STATE, "%s: the key '%.128s' exists already", who, i->key);
        if (e->x->dtype != i->x->dtype || g.ndim != h.ndim || memcmp(g.dim, h.dim, (size_t)g.ndim * sizeof *g.dim))
            return tg_fail(s->ctx, TG_ERR_SHAPE,
                           "%s: the tensors of the key '%.128s' differ in dtype or shape, expected the same for every "
                           "index of tg_shards_push",
                           who, i->key);
    }
    if (i->front.n + i->like->ndim <= TG_MAX_DIMS) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_SHAPE, "%s: '%.128s' has %s and %d in front, expected at most %d", who, i->key,
                   tg_count(i->like->ndim, "dim").text, i->front.n, TG_MAX_DIMS);
}

static bool is_same_front(const tg_shard_front *a, const tg_shard_front *b) {
    size_t bytes = (size_t)a->n * sizeof *a->size;
    return a->n == b->n && !memcmp(a->size, b->size, bytes) && !memcmp(a->at, b->at, bytes);
}

/* Gives an item the padding rows and the dims in front of an earlier item e whose elements are placed alike. Fails if i
 * is the tensor itself, rather than its state, and now has other dims in front. */
static tg_status follow(const tg_shards *s, tg_shard_item *i, const tg_shard_item *e, const char *who) {
    bool itself = i->x == i->like || i->x == i->leaf.tensor;
    if (itself && !is_same_front(&e->front, &s->front))
        return tg_fail(s->ctx, TG_ERR_STATE,
                       "%s: '%.128s' has other dims in front (tg_shards_push) than '%.128s', which is the same tensor "
                       "or its state; add both with the same dims in front",
                       who, i->key, e->key);
    i->rows = e->rows;
    i->front = e->front;
    return TG_OK;
}

/* Adds item i, whose key, x and like are set, and whose range if it has one. The caller has checked x and like. */
static tg_status add(tg_shards *s, tg_shard_item i, const char *who) {
    TG_TRY(tg_shards_check_key(s, i.key, who));
    if (i.x->tape)
        return tg_fail(s->ctx, TG_ERR_STATE, "%s: '%.128s' is owned by a tape, expected a tensor of the context", who,
                       i.key);
    TG_TRY(check_place(s, i.key, i.like, who));
    TG_TRY(grow(s));
    i.x_ref = tg_ref_of(i.x);
    i.like_ref = tg_ref_of(i.like);
    i.rows = TG_NONE;
    i.front = s->front;
    for (int k = 0; k < s->n; k++)
        if (s->item[k].like == i.like) TG_TRY(follow(s, &i, &s->item[k], who));
    TG_TRY(check_new(s, &i, who));
    if (!(i.key = tg_host_strdup(s->ctx, i.key))) return s->ctx->run.status;
    s->item[s->n++] = i;
    return TG_OK;
}

tg_status tg_shards_add_item(tg_shards *s, const char *key, tg_tensor *x, tg_tensor *like, const char *who) {
    TG_TRY(tg_check(s->ctx, x, who));
    TG_TRY(tg_check(s->ctx, like, who));
    if (x == like) x = like = tg_range_kept(x);
    tg_shard_item i = {.key = key, .x = x, .like = tg_range_whole(like)};
    if (i.like == like) return add(s, i, who);
    i.leaf = tg_ref_of(like);
    i.range = true;
    i.begin = like->ext->range_begin;
    i.end = i.begin + like->numel;
    return add(s, i, who);
}

tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x) {
    char full[TG_SHARDS_KEY];
    TG_TRY(enter(s));
    TG_TRY(tg_shards_check_key(s, key, "tg_shards_add_tensor"));
    TG_TRY(tg_shards_join(s, full, s->prefix, key, ""));
    return tg_shards_add_item(s, full, x, x, "tg_shards_add_tensor");
}

tg_status tg_shards_add_range(tg_shards *s, const char *key, tg_tensor *x, tg_tensor *param, int64_t begin,
                              int64_t end) {
    static const char *const who = "tg_shards_add_range";
    char full[TG_SHARDS_KEY];
    TG_TRY(enter(s));
    TG_TRY(tg_check(s->ctx, x, who));
    TG_TRY(tg_check(s->ctx, param, who));
    TG_TRY(tg_shards_check_key(s, key, who));
    if (begin < 0 || begin > end || end > param->numel)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: elements [%lld, %lld) of '%.128s', expected a range of [0, %lld)",
                       who, (long long)begin, (long long)end, key, (long long)param->numel);
    if (x->ndim != 1 || x->numel != end - begin)
        return tg_fail(s->ctx, TG_ERR_SHAPE, "%s: '%.128s' has %s and %s, expected 1 dim and %s", who, key,
                       tg_count(x->ndim, "dim").text, tg_count(x->numel, "element").text,
                       tg_count(end - begin, "element").text);
    TG_TRY(tg_shards_join(s, full, s->prefix, key, ""));
    return add(s, (tg_shard_item){.key = full, .x = x, .like = param, .range = true, .begin = begin, .end = end}, who);
}

tg_status tg_shards_join(const tg_shards *s, char key[TG_SHARDS_KEY], const char *prefix, const char *name,
                         const char *suffix) {
    const char *before = prefix ? prefix : "", *after = name ? name : "";
    int n = snprintf(key, TG_SHARDS_KEY, "%s%s%s%s", before, *before && *after ? "." : "", after, suffix);
    if (n < TG_SHARDS_KEY) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards: the key '%.64s...' has %d bytes, expected at most %d", key, n,
                   TG_SHARDS_KEY - 1);
}

tg_status tg_shards_set_rows(tg_shards *s, const char *key, int64_t rows) {
    TG_TRY(enter(s));
    const tg_shard_item *i = key ? find(s, key) : NULL;
    if (!i)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_set_rows: there is no key '%.128s'", key ? key : "(NULL)");
    TG_TRY(tg_shards_check(s, "tg_shards_set_rows"));
    if (i->front.n)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "tg_shards_set_rows: '%.128s' has dims in front (tg_shards_push); only other tensors may have "
                       "padding rows",
                       key);
    tg_shape g = tg_shard_global(i->like);
    if (g.ndim < 1 || rows < 1 || rows > g.dim[0])
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_set_rows: %s of '%.128s', expected 1 to %lld",
                       tg_count(rows, "row").text, key, (long long)(g.ndim ? g.dim[0] : 0));
    for (int k = 0; k < s->n; k++)
        if (s->item[k].like == i->like) s->item[k].rows = rows;
    return TG_OK;
}

/* ---- Listing ---- */

int tg_shards_count(const tg_shards *s) { return s ? s->n : 0; }

tg_status tg_shards_check_dir(const tg_shards *s, const char *dir, const char *who) {
    if (!dir || !*dir) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: dir is %s", who, dir ? "empty" : "NULL");
    if (!s->ctx->meta) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_DEVICE, "%s: tensors of device \"meta\" have no bytes", who);
}

tg_status tg_shards_check(const tg_shards *s, const char *who) {
    for (int i = 0; i < s->n; i++) {
        const tg_shard_item *e = &s->item[i];
        bool range = e->leaf.tensor && e->leaf.tensor->serial != e->leaf.serial;
        if (range || e->x->serial != e->x_ref.serial || e->like->serial != e->like_ref.serial)
            return tg_fail(s->ctx, TG_ERR_HANDLE, "%s: the tensor of '%.128s' was dropped; it must outlive the list",
                           who, e->key);
    }
    return TG_OK;
}

/* Appends a dim to the global shape, and the index in it of this rank's first element. */
static void append(tg_shard_info *info, int64_t size, int64_t first) {
    info->whole.dim[info->whole.ndim++] = size;
    info->offset.dim[info->offset.ndim++] = first;
}

tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out) {
    TG_TRY(enter(s));
    if (!out) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_at: out is NULL");
    TG_TRY(tg_size_check(s->ctx, out->size, sizeof *out, "tg_shards_at"));
    if (i < 0 || i >= s->n)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_at: index %d is out of range; the list has %s", i,
                       tg_count(s->n, "tensor").text);
    TG_TRY(tg_shards_check(s, "tg_shards_at"));
    const tg_shard_item *e = &s->item[i];
    tg_shard_info info = {.size = out->size, .key = e->key, .tensor = e->x};
    tg_shape g = tg_shard_global(e->like);
    for (int d = 0; d < e->front.n; d++) append(&info, e->front.size[d], e->front.at[d]);
    for (int d = 0; d < e->like->ndim; d++) {
        int64_t run, full = e->like->shape[d];
        append(&info, g.dim[d], full ? tg_shard_index(e->like, d, tg_grid_of(s->ctx)->rank, 0, &run) : 0);
    }
    for (int a = 0; a < TG_MAX_AXES; a++) info.placement[a] = tg_place_on(e->like, (tg_axis)a);
    info.replica = tg_shard_replica(s->p, e->like);
    memcpy(out, &info, out->size);
    return TG_OK;
}
