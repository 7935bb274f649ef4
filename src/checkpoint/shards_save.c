/* Saves sharded state. The first rank of each pipeline stage writes a file with the stage's global tensors, except
 * copies of those that another stage owns (tg_share). The tensors are gathered on that rank one at a time, so it needs
 * memory for only the largest one. No file gets its final name before all files are complete. */
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <tapegrad/parallel.h>

#include "base/host_memory.h"
#include "io/safetensors.h"
#include "kernels/scalar.h"
#include "optim/optim.h"
#include "comm/comm.h"
#include "checkpoint/shards_file.h"

/* The contents of a file's header. */
typedef struct head {
    int n, count;      /* number of items, and of tensors in the file; items of one key are one tensor */
    tg_tensor *tensor; /* [n] only dtype and shape are set */
    int64_t *dims;     /* [n * TG_MAX_DIMS] shapes of the tensors */
    tg_named_tensor *named;
    tg_metadata *metadata;
    int n_metadata, capacity; /* number of metadata, and how many the array can hold */
    char text[4 + TG_LEN(((tg_shards *)0)->steps)][24]; /* text of the metadata that are numbers */
} head;

/* Values that all ranks agree on before the writers begin. */
typedef struct common {
    int64_t id; /* the same in all files of one save */
    tg_shards_metadata *metadata; /* random streams, and lists of places for keys of which this stage has only some */
    int n_metadata;
} common;

static void head_free(tg_ctx *ctx, head *h) {
    tg_host_free(ctx, h->tensor, (size_t)h->n * sizeof *h->tensor + 1);
    tg_host_free(ctx, h->dims, (size_t)h->n * TG_MAX_DIMS * sizeof *h->dims + 1);
    tg_host_free(ctx, h->named, (size_t)h->n * sizeof *h->named + 1);
    tg_host_free(ctx, h->metadata, (size_t)h->capacity * sizeof *h->metadata);
}

tg_shape tg_shard_in_file(const tg_shard_item *i) {
    tg_shape g = tg_shard_global(i->like);
    if (i->rows != TG_NONE) g.dim[0] = i->rows;
    return g;
}

static void add_number(head *h, const char *key, int64_t value) {
    char *text = h->text[h->n_metadata];
    snprintf(text, sizeof h->text[0], "%lld", (long long)value);
    h->metadata[h->n_metadata++] = (tg_metadata){key, text};
}

/* Adds the tensor with the item's key. `places` is the number of its places that this stage has. */
static void add_tensor(head *h, const tg_shard_item *i, int places) {
    tg_shape g = tg_shard_stacked(i, places);
    int64_t *dims = h->dims + (size_t)h->count * TG_MAX_DIMS;
    tg_tensor *x = &h->tensor[h->count];
    memcpy(dims, g.dim, sizeof g.dim);
    *x = (tg_tensor){.dtype = i->x->dtype, .ndim = (uint8_t)g.ndim, .shape = dims, .numel = 1};
    for (int d = 0; d < g.ndim; d++) x->numel *= dims[d];
    h->named[h->count++] = (tg_named_tensor){i->key, x};
}

/* Fills *h. The caller must call head_free afterwards, after an error too. */
static tg_status head_make(const tg_shards *s, const common *all, head *h) {
    tg_ctx *ctx = s->ctx;
    *h = (head){.n = s->n, .capacity = TG_LEN(h->text) + all->n_metadata};
    h->tensor = tg_host_alloc(ctx, (size_t)h->n * sizeof *h->tensor + 1);
    h->dims = tg_host_alloc(ctx, (size_t)h->n * TG_MAX_DIMS * sizeof *h->dims + 1);
    h->named = tg_host_alloc(ctx, (size_t)h->n * sizeof *h->named + 1);
    h->metadata = tg_host_alloc(ctx, (size_t)h->capacity * sizeof *h->metadata);
    TG_TRY(ctx->run.status);
    for (int i = 0; i < s->n; i++)
        if (tg_shard_is_first(s, i)) add_tensor(h, &s->item[i], tg_shard_places(s, i, NULL));
    h->metadata[h->n_metadata++] = (tg_metadata){"format", TG_SHARDS_FORMAT};
    add_number(h, "files", tg_parallel_size(s->p, TG_PP));
    add_number(h, "save", all->id);
    for (int i = 0; i < s->n_steps; i++) add_number(h, s->steps[i].key, tg_optim_steps(s->steps[i].optim));
    for (int i = 0; i < all->n_metadata; i++)
        h->metadata[h->n_metadata++] = (tg_metadata){all->metadata[i].key, all->metadata[i].text};
    return TG_OK;
}

/* Chooses the number that identifies the save in all its files: the time on the first stage in nanoseconds, or 0 if
 * there is only one file. Collective over the pipeline. */
static tg_status agree_on_id(const tg_shards *s, int64_t *id) {
    struct timespec now;
    tg_comm *pp = tg_parallel_comm(s->p, TG_PP);
    *id = 0;
    if (tg_parallel_size(s->p, TG_PP) == 1) return TG_OK;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t mine = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    tg_tensor *x = tg_from_host(s->ctx, TG_I64, TG_SHAPE(1), &mine);
    if (tg_comm_broadcast(pp, x, 0)) tg_read(x, id, sizeof *id);
    tg_drop(x);
    return s->ctx->run.status;
}

/* Writes the rows of `whole` that belong in the file: all except padding rows. */
static tg_status put(tg_safetensors_writer *w, const tg_shard_item *i, tg_tensor *whole) {
    tg_shape g = tg_shard_in_file(i);
    tg_tensor *rows =
        tg_temp_new(w->ctx, whole->dtype, (int)g.ndim, g.dim, NULL, tg_storage_ref(whole->storage), whole->offset);
    if (!rows) return w->ctx->run.status;
    tg_status s = tg_safetensors_put(w, rows);
    tg_temp_free(rows);
    return s;
}

/* Gathers a tensor, and writes it if w is not NULL. */
static tg_status put_one(const tg_shards *s, const tg_shard_item *i, tg_safetensors_writer *w) {
    tg_tensor *whole = tg_shard_whole(s, i);
    tg_status status = s->ctx->run.status;
    if (status == TG_OK && w) status = put(w, i, whole);
    if (whole) tg_temp_free(whole);
    return status;
}

/* Gathers the n items order[] of one key. If `stack` is not NULL, copies them to it, one after another. */
static tg_status gather_places(const tg_shards *s, const int *order, int n, tg_tensor *stack) {
    const double none[2] = {0, 0};
    tg_status status = TG_OK;
    for (int k = 0; k < n && status == TG_OK; k++) {
        tg_tensor *whole = tg_shard_whole(s, &s->item[order[k]]);
        status = s->ctx->run.status;
        if (status == TG_OK && stack) {
            tg_array from = tg_array_of(whole), to = from;
            to.stride = stack->stride + (stack->ndim - whole->ndim);
            to.data = (char *)tg_data(stack) + (size_t)(k * whole->numel) * tg_dtype_size(stack->dtype);
            if (whole->numel) status = s->ctx->run.ops->apply(s->ctx, TG_FN_id, to, &from, 1, none, false);
        }
        if (whole) tg_temp_free(whole);
    }
    return status;
}

/* Gathers the tensors of a key with dims in front, and writes them as one tensor if w is not NULL. */
static tg_status put_stacked(const tg_shards *s, int i, int *order, tg_safetensors_writer *w) {
    int n = tg_shard_places(s, i, order);
    tg_shape g = tg_shard_stacked(&s->item[i], n);
    tg_tensor *stack =
        w ? tg_temp_empty(s->ctx, (tg_dtype)s->item[i].x->dtype, (int)g.ndim, g.dim, TG_MEM_TEMPORARY) : NULL;
    tg_status status = s->ctx->run.status;
    if (status == TG_OK) status = gather_places(s, order, n, stack);
    if (status == TG_OK && w) status = tg_safetensors_put(w, stack);
    tg_temp_free(stack);
    return status;
}

/* Gathers all tensors, and writes them if w is not NULL. */
static tg_status put_all(const tg_shards *s, tg_safetensors_writer *w) {
    size_t bytes = (size_t)s->n * sizeof(int) + 1;
    int *order = tg_host_alloc(s->ctx, bytes);
    tg_status status = s->ctx->run.status;
    for (int i = 0; i < s->n && status == TG_OK; i++) {
        if (!tg_shard_is_first(s, i)) continue;
        status = s->item[i].front.n ? put_stacked(s, i, order, w) : put_one(s, &s->item[i], w);
    }
    tg_host_free(s->ctx, order, bytes);
    return status;
}

static tg_status make_directory(tg_ctx *ctx, const char *dir) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    if (ops.mkdir(ops.user, dir, 0777) == 0) return tg_sync_directory_of(ctx, dir);
    return errno == EEXIST ? TG_OK : tg_file_fail(ctx, "make the directory", dir, -1);
}

/* Makes the directory and begins this rank's file. */
static tg_status begin(const tg_shards *s, const char *dir, const common *all, tg_safetensors_writer *w) {
    head h;
    char *path = tg_format_path(s->ctx, TG_SHARDS_FILE, dir, tg_parallel_rank(s->p, TG_PP));
    tg_status status = path ? make_directory(s->ctx, dir) : s->ctx->run.status;
    if (status == TG_OK) {
        status = head_make(s, all, &h);
        if (status == TG_OK) status = tg_safetensors_begin(w, s->ctx, path, h.named, h.count, h.metadata, h.n_metadata);
        head_free(s->ctx, &h);
    }
    tg_host_strfree(s->ctx, path);
    return status;
}

static tg_status save_with(tg_shards *s, const char *dir, common *all, tg_safetensors_writer *w) {
    tg_comm *world = tg_parallel_world(s->p);
    bool writes = tg_shards_writer(s);
    TG_TRY(agree_on_id(s, &all->id));
    TG_TRY(tg_shards_describe_streams(s, all->metadata));
    TG_TRY(tg_shards_describe_places(s, all->metadata + tg_shards_streams(s)));
    if (writes) TG_TRY(begin(s, dir, all, w));
    TG_TRY(put_all(s, writes ? w : NULL));
    TG_TRY(tg_comm_barrier(world)); /* wait until every file is complete */
    if (writes) TG_TRY(tg_safetensors_commit(w, NULL));
    return tg_comm_barrier(world);
}

static tg_status save(tg_shards *s, const char *dir, tg_safetensors_writer *w) {
    common all = {.n_metadata = tg_shards_streams(s) + tg_shards_partial_keys(s)};
    size_t bytes = (size_t)all.n_metadata * sizeof *all.metadata;
    if (bytes && !(all.metadata = tg_host_alloc(s->ctx, bytes))) return s->ctx->run.status;
    tg_status status = save_with(s, dir, &all, w);
    for (int i = 0; i < all.n_metadata; i++) tg_host_free(s->ctx, all.metadata[i].text, all.metadata[i].bytes);
    tg_host_free(s->ctx, all.metadata, bytes);
    return status;
}

static tg_status check_and_save(tg_shards *s, const char *dir) {
    TG_TRY(s->ctx->run.status);
    if (!dir || !*dir) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_save: dir is %s", dir ? "empty" : "NULL");
    if (s->ctx->meta) return tg_fail(s->ctx, TG_ERR_DEVICE, "tg_shards_save: tensors of device \"meta\" have no bytes");
    TG_TRY(tg_shards_check(s, "tg_shards_save"));
    TG_TRY(tg_shards_find_owners(s, "tg_shards_save")); /* so that each copy has an owner that saves it */
    tg_safetensors_writer w = {0};
    tg_status status = save(s, dir, &w);
    tg_safetensors_abandon(&w); /* has no effect after the commit */
    return status;
}

tg_status tg_shards_save(tg_shards *s, const char *dir) {
    if (!s) return TG_ERR_ARGUMENT;
    return tg_comm_note_missed(tg_parallel_world(s->p), check_and_save(s, dir));
}
