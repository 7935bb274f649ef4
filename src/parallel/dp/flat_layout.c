/* The layout of a tg_flat: which parameters a bucket has, where they begin in it, and which elements a rank has. */
#include <math.h>

#include "parallel/dp/flat.h"
#include "placement/placing.h"

enum {
    ALIGN = 64, /* in elements: every parameter begins at a multiple of this */
    UNIT = 128  /* in elements: every bucket ends at a multiple of this */
};

static int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int64_t least_common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

int tg_flat_group_of(const tg_tensor *x) {
    return tg_place_is_expert(x->place) ? TG_FLAT_EXPERTS : TG_FLAT_DENSE;
}

/* Returns the number of elements from which on a bucket of the group is full. */
static int64_t full_at(const tg_flat *f, int group) {
    return f->o.bucket == TG_AUTO ? (int64_t)fmax(40e6, 1e6 * f->group[group].ranks) : f->o.bucket;
}

/* Returns the open bucket for parameter x, or opens one. A shared parameter has a bucket of its own, so that the ranks
 * that share it divide it alike, whatever else they hold. */
static int bucket_for(tg_flat *f, const tg_tensor *x) {
    int group = tg_flat_group_of(x), k = f->n_buckets;
    bool shared = x->ext && x->ext->shared;
    while (!shared && --k >= 0)
        if (f->bucket[k].open && f->bucket[k].dtype == (tg_dtype)x->dtype && f->bucket[k].group == group) return k;
    f->bucket[f->n_buckets] = (tg_flat_bucket){.of = f, .dtype = x->dtype, .group = group, .open = !shared};
    return f->n_buckets++;
}

/* Makes item i, that of parameter x, and appends it to a bucket. */
static void add_item(tg_flat *f, tg_tensor *x, int i) {
    int b = bucket_for(f, x);
    tg_flat_bucket *k = &f->bucket[b];
    f->item[i] = (tg_flat_item){.of = f,
                                .param = x,
                                .ref = tg_ref_of(x),
                                .index = f->n - 1 - i,
                                .bucket = b,
                                .user = f->group[k->group].n++,
                                .numel = x->numel,
                                .offset = k->used};
    k->used += rounded_up(x->numel, ALIGN);
    k->last = i;
    k->n++;
    if (k->used >= full_at(f, k->group)) k->open = false;
}

/* Exchanges the two buckets, and their numbers in the items. */
static void swap(tg_flat *f, int a, int b) {
    tg_flat_bucket k = f->bucket[a];
    f->bucket[a] = f->bucket[b];
    f->bucket[b] = k;
    for (int i = 0; i < f->n; i++)
        if (f->item[i].bucket == a || f->item[i].bucket == b) f->item[i].bucket = a + b - f->item[i].bucket;
}

/* Sorts the buckets by the index of their last items. Items are still in the order in which backward produces
 * gradients, so this is the order in which it completes buckets. */
static void sort_buckets(tg_flat *f) {
    for (int k = 1; k < f->n_buckets; k++)
        for (int j = k; j > 0 && f->bucket[j].last < f->bucket[j - 1].last; j--) swap(f, j, j - 1);
}

/* Sorts the items by their buckets, and keeps the order of those of one bucket. */
static void sort_items(tg_flat *f) {
    for (int i = 1; i < f->n; i++)
        for (int j = i; j > 0 && f->item[j].bucket < f->item[j - 1].bucket; j--) {
            tg_flat_item it = f->item[j];
            f->item[j] = f->item[j - 1];
            f->item[j - 1] = it;
        }
    for (int i = f->n - 1; i >= 0; i--) f->bucket[f->item[i].bucket].first = i;
}

void tg_flat_lay_out(tg_flat *f, tg_tensor *const *params) {
    for (int i = 0; i < f->n; i++) add_item(f, params[f->n - 1 - i], i);
    sort_buckets(f);
    sort_items(f);
    for (int k = 0; k < f->n_buckets; k++) {
        tg_flat_bucket *b = &f->bucket[k];
        b->numel = rounded_up(b->used ? b->used : 1, least_common_multiple(UNIT, f->group[b->group].ranks));
    }
}

static int64_t between(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

void tg_flat_range(const tg_flat *f, const tg_flat_item *it, int rank, int64_t *begin, int64_t *end) {
    int64_t part = tg_flat_part(f, &f->bucket[it->bucket]), first = part * rank - it->offset;
    *begin = between(first, 0, it->numel);
    *end = between(first + part, 0, it->numel);
}
