/* Items with the same key (tg_shards_push): which slice of the file's tensor each of them is. */
#include "checkpoint/shards_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/host_memory.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "placement/placing.h"

/* Returns the place as one row-major number, and sets *places to the number of places, the product of the sizes. */
static int64_t place_of(const tg_shard_front *f, int64_t *places) {
    int64_t place = 0;
    *places = 1;
    for (int d = 0; d < f->n; d++) {
        place = place * f->size[d] + f->at[d];
        *places *= f->size[d];
    }
    return place;
}

static int64_t place_in(const tg_shard_item *i) {
    int64_t places;
    return place_of(&i->front, &places);
}

/* Returns whether item k is another place of item i's key that this stage saves. */
static bool same_key(const tg_shards *s, int i, int k) {
    if (tg_is_share_copy(s->item[k].like)) return false;
    return i == k || (s->item[i].front.n && strcmp(s->item[i].key, s->item[k].key) == 0);
}

bool tg_shard_is_first(const tg_shards *s, int i) {
    for (int k = 0; s->item[i].front.n && k < i; k++)
        if (same_key(s, i, k)) return false;
    return !tg_is_share_copy(s->item[i].like);
}

int tg_shard_places(const tg_shards *s, int i, int *order) {
    int n = 0;
    for (int k = i; k < s->n; k++) {
        if (!same_key(s, i, k)) continue;
        int j = n++;
        for (; order && j > 0 && place_in(&s->item[order[j - 1]]) > place_in(&s->item[k]); j--) order[j] = order[j - 1];
        if (order) order[j] = k;
    }
    return n;
}

static tg_shape with_front(const int64_t *front, int n, tg_shape rest) {
    tg_shape s = {.ndim = n + rest.ndim};
    memcpy(s.dim, front, (size_t)n * sizeof *front);
    memcpy(s.dim + n, rest.dim, (size_t)rest.ndim * sizeof *rest.dim);
    return s;
}

tg_shape tg_shard_stacked(const tg_shard_item *i, int n) {
    int64_t places, some = n;
    place_of(&i->front, &places);
    return n == places ? with_front(i->front.size, i->front.n, tg_shard_in_file(i))
                       : with_front(&some, 1, tg_shard_in_file(i));
}

/* Returns whether item i is the first one of a key of which this stage has only some of the places. */
static bool is_partial(const tg_shards *s, int i) {
    int64_t places;
    place_of(&s->item[i].front, &places);
    return tg_shard_is_first(s, i) && tg_shard_places(s, i, NULL) < places;
}

int tg_shards_partial_keys(const tg_shards *s) {
    int n = 0;
    for (int i = 0; i < s->n; i++) n += is_partial(s, i);
    return n;
}

static tg_status describe(const tg_shards *s, int i, int *order, tg_shards_metadata *out) {
    int n = tg_shard_places(s, i, order);
    size_t at = 0;
    out->bytes = (size_t)n * 21 + 1; /* the longest number and a space */
    if (!(out->text = tg_host_alloc(s->ctx, out->bytes))) return s->ctx->run.status;
    snprintf(out->key, sizeof out->key, TG_SHARDS_PLACES, s->item[i].key);
    for (int k = 0; k < n; k++)
        tg_text(out->text, out->bytes, &at, "%s%lld", k ? " " : "", (long long)place_in(&s->item[order[k]]));
    return TG_OK;
}

tg_status tg_shards_describe_places(const tg_shards *s, tg_shards_metadata *out) {
    size_t bytes = (size_t)s->n * sizeof(int) + 1;
    int *order = tg_host_alloc(s->ctx, bytes);
    tg_status status = order ? TG_OK : s->ctx->run.status;
    for (int i = 0; i < s->n && status == TG_OK; i++)
        if (is_partial(s, i)) status = describe(s, i, order, out++);
    tg_host_free(s->ctx, order, bytes);
    return status;
}

/* ---- Loading ---- */

/* Returns the index of a place in a list such as "3 4 5", or -1, and sets *n to the length of the list. */
static int index_in(const char *list, int64_t place, int *n) {
    int found = -1;
    char *end;
    *n = 0;
    for (const char *at = list;; at = end) {
        long long v = strtoll(at, &end, 10);
        if (end == at) return found;
        if (v == place) found = *n;
        ++*n;
    }
}

bool tg_shard_find_spot(const tg_shard_item *i, const char *key, const tg_safetensors *f, tg_shard_spot *out) {
    char places[TG_SHARDS_KEY + sizeof TG_SHARDS_PLACES];
    int n, row;
    snprintf(places, sizeof places, TG_SHARDS_PLACES, key);
    const char *list = i->front.n ? tg_safetensors_metadata(f, places) : NULL;
    if (!list) {
        *out = (tg_shard_spot){key, with_front(i->front.size, i->front.n, tg_shard_in_file(i)), {i->front.n}};
        for (int d = 0; d < i->front.n; d++) out->at[1 + d] = (int)i->front.at[d];
        return true;
    }
    if ((row = index_in(list, place_in(i), &n)) < 0) return false;
    *out = (tg_shard_spot){key, with_front(&(int64_t){n}, 1, tg_shard_in_file(i)), {1, row}};
    return true;
}

/* Maps an index of a tensor with dims of size 1 in front. `at` is that of a tg_shard_spot. */
static int64_t index_of(const tg_tensor *x, int d, const int *at, int64_t local, int64_t *run) {
    *run = x->shape[d] - local;
    return d < at[0] ? at[1 + d] : local;
}

tg_status tg_shard_read_spot(tg_safetensors *f, const tg_shard_item *i, const tg_shard_spot *spot, tg_tensor *rows,
                             const void *site) {
    static const int64_t ones[TG_SHARD_FRONTS] = {1, 1, 1, 1};
    if (!spot->at[0]) return tg_safetensors_fill(f, spot->key, rows, false, site);
    const tg_safetensors_part part = {spot->shape, index_of, spot->at};
    tg_shape s = with_front(ones, spot->at[0], tg_shard_in_file(i));
    tg_tensor *to = tg_temp_new(rows->ctx, (tg_dtype)rows->dtype, (int)s.ndim, s.dim, NULL,
                                tg_storage_ref(rows->storage), rows->offset);
    if (!to) return rows->ctx->run.status;
    tg_status status = tg_safetensors_fill_part(f, spot->key, to, &part, false, "tg_shards_load", site);
    tg_temp_free(to);
    return status;
}
