/* Joins several token streams into one: which part has a token, and how the parts are closed. */
#include "io/tokens.h"

#include "base/memory/host_memory.h"

/* Returns the index of the first element of `part` that is part[i]. */
static int first_of(tg_tokens *const *part, int i) {
    int k = 0;
    while (part[k] != part[i]) k++;
    return k;
}

static tg_status check_part(tg_ctx *ctx, tg_tokens *const *part, int i) {
    const tg_tokens *t = part[i];
    if (t && first_of(part, i) < i)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_tokens_join: parts %d and %d are one stream; open the file twice",
                       first_of(part, i), i);
    if (t && t->ctx == ctx && !t->n_parts) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_tokens_join: part %d is %s, expected a stream of ctx and of one file", i,
                   t ? t->n_parts ? "joined itself" : "of another context" : "NULL");
}

/* Allocates the arrays of n parts. */
static tg_status make_room(tg_tokens *t, int n) {
    size_t bytes = (size_t)n * sizeof(int64_t);
    t->part = tg_host_alloc(t->ctx, (size_t)n * sizeof(tg_tokens *));
    t->first_token = t->part ? tg_host_alloc(t->ctx, bytes) : NULL;
    t->first_document = t->first_token ? tg_host_alloc(t->ctx, bytes) : NULL;
    t->n_parts = n;
    return t->first_document ? TG_OK : tg_io_enter(t->ctx);
}

static void take_part(tg_tokens *t, int i, tg_tokens *part) {
    t->part[i] = part;
    t->first_token[i] = t->count;
    t->first_document[i] = t->documents;
    t->count += part->count;
    t->documents += part->documents;
    t->has_modes |= part->has_modes;
}

/* Closes the parts after an error, from the last to the first, and each once. */
static tg_tokens *refuse(tg_tokens *const *part, int n) {
    for (int i = n - 1; part && i >= 0; i--)
        if (first_of(part, i) == i) tg_tokens_close(part[i]);
    return NULL;
}

tg_tokens *tg_tokens_join(tg_ctx *ctx, tg_tokens *const *part, int n) {
    if (tg_io_enter(ctx) != TG_OK) return refuse(part, n);
    if (!part || n < 1) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_tokens_join: part is %p and n %d, expected 1 stream or more",
                (const void *)part, n);
        return NULL;
    }
    for (int i = 0; i < n && tg_io_enter(ctx) == TG_OK; i++) check_part(ctx, part, i);
    tg_tokens *t = tg_io_enter(ctx) == TG_OK ? tg_host_alloc(ctx, sizeof *t) : NULL;
    if (!t) return refuse(part, n);
    t->ctx = ctx;
    if (make_room(t, n) != TG_OK) {
        tg_tokens_close(t);
        return refuse(part, n);
    }
    for (int i = 0; i < n; i++) take_part(t, i, part[i]);
    return t;
}

void tg_tokens_close_parts(tg_tokens *t) {
    size_t n = (size_t)t->n_parts;
    for (int i = 0; t->part && i < t->n_parts; i++) tg_tokens_close(t->part[i]);
    tg_host_free(t->ctx, t->part, n * sizeof(tg_tokens *));
    tg_host_free(t->ctx, t->first_token, n * sizeof(int64_t));
    tg_host_free(t->ctx, t->first_document, n * sizeof(int64_t));
}

int tg_tokens_part_of(const tg_tokens *t, int64_t token) {
    int low = 0, high = t->n_parts;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (t->first_token[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}
