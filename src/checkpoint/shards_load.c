/* Loads sharded state. Every rank reads the index, checks that the index has each key of the rank's own list, and
 * verifies a share of the files. No value changes before all ranks have passed these checks. Then each rank reads the
 * runs of the pieces that its parts consist of. */
#include <stdlib.h>

#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/comm.h"
#include "checkpoint/state/state_index.h"
#include "core/tensor/rehome.h"
#include "core/work.h"
#include "kernels/scalar.h"

/* What is read into an item. */
typedef struct part {
    tg_state_key *from; /* NULL: the state lacks the key, or the item is not loaded */
    tg_block block;
} part;

typedef struct loader {
    tg_shards *s;
    const char *call;
    tg_shards_load_opts o;
    tg_state state;
    part *part; /* [items of the list] */
    tg_rng *stream;
    int n_streams;
    size_t at;         /* length of the report so far */
    const char *first; /* the first key that one side lacks */
    const void *site;
} loader;

/* ---- Keys ---- */

static bool has_prefix(const char *key, const char *prefix) { return tg_key_after(key, prefix) != NULL; }

static bool is_renamed(const loader *l) {
    return (l->o.from_prefix && *l->o.from_prefix) || (l->o.to_prefix && *l->o.to_prefix);
}

/* Writes the key that the state has for a key of the list. Returns false if the list's key is none of those to load, or
 * after recording an error if the other key would be too long. */
static bool key_in_state(const loader *l, const char *key, char out[TG_SHARDS_KEY]) {
    const char *rest = tg_key_after(key, l->o.to_prefix);
    return rest && tg_shards_join(l->s, out, l->o.from_prefix, rest, "") == TG_OK;
}

/* Finds an item under its own key or, if it is a copy that is saved only once, under that of its first owner. */
static tg_state_key *find(const loader *l, const tg_shard_item *i) {
    char key[TG_SHARDS_KEY];
    tg_state_key *k = key_in_state(l, i->key, key) ? tg_state_find(&l->state, key) : NULL;
    if (k || !i->owner) return k;
    return key_in_state(l, i->owner, key) ? tg_state_find(&l->state, key) : NULL;
}

/* ---- The checks ---- */

/* Counts and reports a key that one side lacks. */
static void note(loader *l, const char *what, const char *key, int *count) {
    if (!l->first) l->first = key;
    ++*count;
    tg_text(l->o.report, l->o.report ? l->o.report_size : 0, &l->at, "%s %s\n", what, key);
}

static tg_status check_shape(const loader *l, const tg_shard_item *i, const tg_state_key *k) {
    char has[160], wants[160];
    tg_shape g = tg_shard_whole_shape(i);
    bool same = k->whole.ndim == g.ndim && memcmp(k->whole.dim, g.dim, (size_t)g.ndim * sizeof *g.dim) == 0;
    if (same && k->dtype == (tg_dtype)i->x->dtype) return TG_OK;
    tg_shape_text((int)k->whole.ndim, k->whole.dim, has, sizeof has);
    tg_shape_text((int)g.ndim, g.dim, wants, sizeof wants);
    return tg_fail(l->s->ctx, TG_ERR_FORMAT, "'%s': tensor '%.128s' is %s%s, expected %s%s%s", l->state.dir, i->key,
                   tg_dtype_name(k->dtype), has, tg_dtype_name((tg_dtype)i->x->dtype), wants,
                   same || i->rows != TG_NONE ? ""
                                              : "; call tg_shards_set_rows if the shapes differ only by padding rows");
}

/* Finds what is read into item i, and checks that it fits and that the item may be written. */
static tg_status check_item(loader *l, int i) {
    const tg_shard_item *item = &l->s->item[i];
    part *p = &l->part[i];
    if (!has_prefix(item->key, l->o.to_prefix)) return TG_OK;
    if (!(p->from = find(l, item))) return note(l, "missing", item->key, &l->o.missing), TG_OK;
    p->from->known = true;
    TG_TRY(check_shape(l, item, p->from));
    TG_TRY(tg_storage_check_write(item->x->storage, l->call));
    TG_TRY(tg_range_may_change(item->x, l->call));
    return tg_shard_block(item, &p->block);
}

/* Returns the text of an optimizer's number of steps. Returns NULL, without an error, if the state lacks it, or if it
 * is not loaded. */
static const char *steps_text(const loader *l, const char *key) {
    char own[TG_SHARDS_KEY];
    return key_in_state(l, key, own) ? tg_state_metadata(&l->state, own) : NULL;
}

static tg_status check_steps(loader *l, const char *key) {
    const char *text = steps_text(l, key);
    char *end;
    if (!has_prefix(key, l->o.to_prefix)) return TG_OK;
    if (text && strtoll(text, &end, 10) >= 0 && end != text && !*end) return TG_OK;
    if (!text && l->o.partial) return note(l, "missing", key, &l->o.missing), TG_OK;
    return tg_fail(l->s->ctx, TG_ERR_FORMAT, "'%s': the optimizer's step count '%.128s' is %s, expected 0 or more",
                   l->state.dir, key, text ? text : "missing");
}

/* Finds the keys that are in no rank's list. Collective over the world. */
static tg_status check_unknown(loader *l) {
    tg_ctx *ctx = l->s->ctx;
    tg_comm *world = tg_parallel_world(l->s->p);
    int n = l->state.n_keys;
    uint8_t *known = tg_host_alloc(ctx, (size_t)n + 1);
    for (int i = 0; known && i < n; i++) known[i] = l->state.key[i].known;
    if (known && n && tg_comm_size(world) > 1) {
        tg_tensor *x = tg_from_host(ctx, TG_U8, TG_SHAPE(n), known);
        if (tg_comm_all_reduce(world, x, x, TG_REDUCE_MAX)) tg_read(x, known, (size_t)n);
        tg_drop(x);
    }
    for (int i = 0; i < n && ctx->run.status == TG_OK; i++)
        if (!known[i] && has_prefix(l->state.key[i].key, l->o.from_prefix))
            note(l, "unknown", l->state.key[i].key, &l->o.unknown);
    tg_host_free(ctx, known, (size_t)n + 1);
    if (!l->o.unknown || l->o.partial) return ctx->run.status;
    return tg_fail(ctx, TG_ERR_FORMAT, "'%s' has a tensor '%.128s' that is in no rank's list (%s in all)", l->state.dir,
                   l->first, tg_count(l->o.unknown, "tensor").text);
}

/* Verifies the checksums of this rank's share of the files. If there are at least as many files as ranks, the share is
 * every file whose number is this rank's modulo the number of ranks. Otherwise each file has one rank or more, and each
 * of them verifies a part of its tensors. */
static tg_status check_bytes(loader *l) {
    tg_comm *world = tg_parallel_world(l->s->p);
    int ranks = tg_comm_size(world), me = tg_comm_rank(world), files = l->state.n_files;
    for (int f = me % (files < ranks ? files ? files : 1 : ranks); f < files; f += ranks) {
        int readers = files < ranks ? (ranks - f + files - 1) / files : 1; /* ranks that read this file */
        tg_safetensors *file = tg_state_file_open(&l->state, f);
        TG_TRY(file ? tg_safetensors_verify(file, files < ranks ? me / files : 0, readers) : l->s->ctx->run.status);
    }
    return TG_OK;
}

/* Fails if pieces of a key overlap or leave a hole. Each rank checks a share of the keys. */
static tg_status check_keys(const loader *l) {
    tg_comm *world = tg_parallel_world(l->s->p);
    for (int i = tg_comm_rank(world); i < l->state.n_keys; i += tg_comm_size(world))
        TG_TRY(tg_state_check_key(&l->state, &l->state.key[i]));
    return TG_OK;
}

static tg_status check_all(loader *l) {
    for (int i = 0; i < l->s->n; i++) TG_TRY(check_item(l, i));
    if (l->o.missing && !l->o.partial)
        return tg_fail(l->s->ctx, TG_ERR_FORMAT, "'%s' has no tensor '%.128s' (%s missing in all)", l->state.dir,
                       l->first, tg_count(l->o.missing, "tensor").text);
    for (int i = 0; i < l->s->n_steps; i++) TG_TRY(check_steps(l, l->s->steps[i].key));
    if (l->n_streams) TG_TRY(tg_shards_read_streams(l->s, &l->state, l->stream));
    TG_TRY(check_unknown(l));
    TG_TRY(check_keys(l));
    return check_bytes(l);
}

/* ---- The data ---- */

/* Copies the elements of a block, which are row-major in host memory, to x. Padding rows of x become 0. */
static tg_status put(tg_tensor *x, const tg_shard_item *i, const tg_block *block, void *from) {
    tg_ctx *ctx = x->ctx;
    tg_shape s = tg_shape_make(x->ndim, x->shape);
    if (i->range)
        s.dim[0] = tg_block_count(block);
    else if (s.ndim)
        s.dim[0] = block->shape.dim[i->front.n];
    tg_tensor *rows =
        tg_temp_new(ctx, (tg_dtype)x->dtype, (int)s.ndim, s.dim, x->stride, tg_storage_ref(x->storage), x->offset);
    tg_tensor *dense = tg_temp_empty(ctx, (tg_dtype)x->dtype, (int)s.ndim, s.dim, TG_MEM_TEMPORARY);
    tg_status status = ctx->run.status;
    size_t bytes = (size_t)tg_block_count(block) * tg_dtype_size(x->dtype);
    if (status == TG_OK && rows->numel < x->numel) status = ctx->run.ops->fill(ctx, tg_array_of(x), 0);
    if (status == TG_OK && bytes)
        status = ctx->run.ops->copy(ctx, tg_data(dense), from, bytes, ctx->host ? TG_COPY_DEVICE : TG_COPY_FROM_HOST);
    if (status == TG_OK && bytes) {
        tg_array a = tg_array_of(dense);
        status = ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(rows), &a, 1, (const double[2]){0}, false);
    }
    tg_temp_free(dense);
    tg_temp_free(rows);
    return status;
}

/* Reads an item: in place if it is contiguous and the host can write its memory. */
static tg_status read_item(loader *l, int i) {
    tg_shard_item *item = &l->s->item[i];
    const part *p = &l->part[i];
    tg_tensor *x = item->x;
    size_t bytes = (size_t)tg_block_count(&p->block) * tg_dtype_size(x->dtype);
    TG_TRY(tg_storage_may_change(x));
    TG_TRY(tg_range_may_change(x, l->call));
    tg_tensor_wrote(x, l->call, l->site);
    TG_TRY(tg_range_wrote(x, l->call, l->site));
    if (x->ctx->host && x->flags & TG_F_CONTIGUOUS) {
        size_t all = (size_t)x->numel * tg_dtype_size(x->dtype);
        if (all > bytes) memset((char *)tg_data(x) + bytes, 0, all - bytes);
        return tg_state_read(&l->state, p->from, &p->block, tg_data(x));
    }
    char *to = tg_host_alloc(x->ctx, bytes + 1);
    tg_status s = to ? tg_state_read(&l->state, p->from, &p->block, to) : x->ctx->run.status;
    if (s == TG_OK) s = put(x, item, &p->block, to);
    tg_host_free(x->ctx, to, bytes + 1);
    return s;
}

/* Makes all checks, waits until every rank has passed them, and then reads all values. Collective over the world. */
static tg_status load(loader *l, const char *dir) {
    tg_shards *s = l->s;
    tg_comm *world = tg_parallel_world(s->p);
    l->n_streams = is_renamed(l) ? 0 : tg_shards_streams(s);
    l->part = tg_host_alloc(s->ctx, (size_t)s->n * sizeof *l->part + 1);
    l->stream = tg_host_alloc(s->ctx, (size_t)l->n_streams * sizeof *l->stream + 1);
    TG_TRY(s->ctx->run.status);
    TG_TRY(tg_state_open(&l->state, s->ctx, dir, &(tg_state_target){s, l->o.from_prefix, l->o.to_prefix}));
    TG_TRY(check_all(l));
    TG_TRY(tg_comm_barrier(world)); /* all ranks have passed the checks: from here on values change */
    for (int i = 0; i < s->n; i++)
        if (l->part[i].from) TG_TRY(read_item(l, i));
    for (int i = 0; i < s->n_steps; i++) {
        const char *text = steps_text(l, s->steps[i].key);
        if (text) TG_TRY(tg_optim_set_steps(s->steps[i].optim, strtoll(text, NULL, 10)));
    }
    if (l->n_streams) tg_shards_set_streams(s, l->stream);
    return tg_comm_barrier(world);
}

static void end(loader *l) {
    tg_shards *s = l->s;
    for (int i = 0; l->part && i < s->n; i++) tg_block_free(s->ctx, &l->part[i].block);
    tg_host_free(s->ctx, l->part, (size_t)s->n * sizeof *l->part + 1);
    tg_host_free(s->ctx, l->stream, (size_t)l->n_streams * sizeof *l->stream + 1);
    if (l->state.ctx) tg_state_close(&l->state);
}

static tg_status check_and_load(loader *l, const char *dir, tg_shards_load_opts *opts) {
    TG_TRY(l->s->ctx->run.status);
    TG_TRY(tg_options(l->s->ctx, &l->o, &tg_shards_load_opts_struct, opts, l->call));
    l->o.missing = l->o.unknown = 0;
    if (l->o.report && l->o.report_size) *l->o.report = 0;
    if (opts) tg_options_give(opts, &l->o); /* in case the call fails before it compares keys */
    TG_TRY(tg_shards_check_dir(l->s, dir, l->call));
    TG_TRY(tg_shards_check(l->s, l->call));
    TG_TRY(tg_shards_find_owners(l->s, l->call));
    tg_status s = load(l, dir);
    end(l);
    if (opts) tg_options_give(opts, &l->o);
    return s;
}

tg_status tg_shards_load_with(tg_shards *s, const char *dir, tg_shards_load_opts *opts) {
    loader l = {.s = s, .call = "tg_shards_load_with", .site = TG_SITE};
    if (!s) return TG_ERR_ARGUMENT;
    return tg_comm_note_missed(tg_parallel_world(s->p), check_and_load(&l, dir, opts));
}

tg_status tg_shards_load(tg_shards *s, const char *dir) {
    loader l = {.s = s, .call = "tg_shards_load", .site = TG_SITE};
    if (!s) return TG_ERR_ARGUMENT;
    return tg_comm_note_missed(tg_parallel_world(s->p), check_and_load(&l, dir, NULL));
}
