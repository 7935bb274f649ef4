/* Finds out how tensors or numbers differ between ranks. The ranks exchange hashes of the bytes. */
#include "base/hash.h"
#include "base/memory/host_memory.h"

#include <math.h>
#include <stdio.h>

#include <tapegrad/comm.h>

#include "comm/comm.h"
#include "kernels/scalar.h"
#include "placement/check.h"
#include "placement/rule.h"

/* Sets *bytes to the address of the bytes of x. If the host cannot read the device's memory, copies the bytes to host
 * memory at *copy, which the caller must free; else sets *copy to NULL. Check mode may be as slow as such copies
 * are. */
static tg_status host_bytes(const tg_tensor *x, const unsigned char **bytes, void **copy) {
    tg_ctx *ctx = x->ctx;
    *copy = NULL;
    TG_TRY(tg_storage_need(x->storage, x));
    size_t n = (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype);
    *bytes = tg_data(x);
    if (ctx->host || !n) return TG_OK;
    *bytes = *copy = tg_host_alloc(ctx, n);
    if (!*copy) return ctx->run.status;
    tg_status s = ctx->run.ops->copy(ctx, *copy, tg_data(x), n, TG_COPY_TO_HOST);
    if (s == TG_OK) return TG_OK;
    tg_host_free(ctx, *copy, n);
    *copy = NULL;
    return s;
}

tg_status tg_placement_hash(const tg_tensor *x, int64_t *out) {
    size_t n = (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype);
    const unsigned char *bytes;
    void *copy;
    TG_TRY(host_bytes(x, &bytes, &copy));
    *out = (int64_t)tg_hash_bytes(TG_HASH_START, bytes, n);
    tg_host_free(x->ctx, copy, n);
    return TG_OK;
}

/* ---- Comparing numbers ---- */

/* Gathers n numbers of every rank, in one collective. gathered has space for n numbers of each rank. */
static tg_status gather(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *gathered) {
    int64_t all = n * tg_comm_size(comm);
    tg_tensor *src = tg_temp_empty(ctx, TG_I64, 1, &n, TG_MEM_TEMPORARY);
    tg_tensor *dst = src ? tg_temp_empty(ctx, TG_I64, 1, &all, TG_MEM_TEMPORARY) : NULL;
    tg_status s = ctx->run.status;
    if (dst) {
        s = ctx->run.ops->copy(ctx, tg_data(src), mine, (size_t)n * sizeof *mine, TG_COPY_FROM_HOST);
        if (s == TG_OK && !tg_comm_all_gather(comm, dst, src)) s = ctx->run.status;
        if (s == TG_OK) s = tg_storage_need(dst->storage, dst);
        size_t bytes = (size_t)all * sizeof *gathered;
        if (s == TG_OK) s = ctx->run.ops->copy(ctx, gathered, tg_data(dst), bytes, TG_COPY_TO_HOST);
    }
    tg_temp_free(src);
    tg_temp_free(dst);
    return s;
}

tg_status tg_placement_find_other(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *wrong,
                                  int64_t *first, int64_t *other) {
    int64_t all = n * tg_comm_size(comm);
    *wrong = -1;
    if (comm->ops->silent) return TG_OK;
    int64_t *gathered = tg_host_alloc(ctx, (size_t)all * sizeof *gathered);
    if (!gathered) return ctx->run.status;
    tg_status s = gather(ctx, comm, mine, n, gathered);
    for (int64_t i = 0; s == TG_OK && i < all && *wrong < 0; i++) {
        if (gathered[i] == gathered[i % n]) continue;
        *wrong = i;
        if (first) *first = gathered[i % n];
        if (other) *other = gathered[i];
    }
    tg_host_free(ctx, gathered, (size_t)all * sizeof *gathered);
    return s;
}

tg_status tg_placement_compare_number(tg_ctx *ctx, tg_comm *comm, int64_t mine, int *rank, int64_t *first,
                                      int64_t *other) {
    int64_t wrong;
    TG_TRY(tg_placement_find_other(ctx, comm, &mine, 1, &wrong, first, other));
    *rank = (int)wrong;
    return TG_OK;
}

/* ---- The first element that differs ---- */

/* Finds the first element of x that is not the same on all ranks. x must have such an element. The ranks halve the
 * range in which the element lies, by comparing the hashes of the first half, until one element is left. So they send
 * only hashes. */
static tg_status first_different(const tg_tensor *x, tg_comm *comm, const unsigned char *bytes, int64_t *element) {
    size_t size = tg_dtype_size((tg_dtype)x->dtype);
    int64_t from = 0, to = x->numel;
    while (to - from > 1) {
        int64_t mid = from + (to - from) / 2, wrong;
        int64_t mine =
            (int64_t)tg_hash_bytes(TG_HASH_START, bytes + (size_t)from * size, (size_t)(mid - from) * size);
        TG_TRY(tg_placement_find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL));
        *(wrong < 0 ? &from : &to) = mid;
    }
    *element = from;
    return TG_OK;
}

/* Sets *value to element i of x, converted to float64. */
static tg_status value_of(tg_tensor *x, int64_t i, double *value) {
    tg_ctx *ctx = x->ctx;
    const double none[2] = {0, 0};
    const int64_t one = 1;
    tg_tensor *to = tg_temp_empty(ctx, TG_F64, 1, &one, TG_MEM_TEMPORARY);
    if (!to) return ctx->run.status;
    tg_array in = tg_array_of(to), out = in;
    in.data = (char *)tg_data(x) + (size_t)i * tg_dtype_size((tg_dtype)x->dtype);
    in.dtype = (tg_dtype)x->dtype;
    tg_status s = ctx->run.ops->apply(ctx, TG_FN_id, out, &in, 1, none, false);
    if (s == TG_OK) s = ctx->run.ops->copy(ctx, value, out.data, sizeof *value, TG_COPY_TO_HOST);
    tg_temp_free(to);
    return s;
}

tg_status tg_placement_describe_difference(tg_tensor *x, tg_comm *comm, int *rank, char *text, size_t n) {
    size_t size = tg_dtype_size((tg_dtype)x->dtype);
    const unsigned char *bytes;
    int64_t element = 0, wrong, pair[2] = {0, 0};
    double value = 0, other = 0;
    void *copy;
    TG_TRY(tg_placement_find_other(x->ctx, comm, &x->numel, 1, &wrong, &pair[0], &pair[1]));
    if (wrong >= 0) {
        *rank = (int)wrong;
        snprintf(text, n, "it has %s on rank 0 and %lld on rank %d", tg_count(pair[0], "element").text,
                 (long long)pair[1], *rank);
        return TG_OK;
    }
    TG_TRY(host_bytes(x, &bytes, &copy));
    tg_status s = first_different(x, comm, bytes, &element);
    int64_t mine = x->numel ? (int64_t)tg_hash_bytes(TG_HASH_START, bytes + (size_t)element * size, size) : 0;
    tg_host_free(x->ctx, copy, (size_t)x->numel * size);
    if (s == TG_OK) s = value_of(x, element, &value);
    if (s == TG_OK) s = tg_placement_find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL);
    TG_TRY(s);
    *rank = wrong < 0 ? 0 : (int)wrong;
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (tg_placement_find_other(x->ctx, comm, &bits, 1, &wrong, &pair[0], &pair[1]) != TG_OK) return x->ctx->run.status;
    memcpy(&value, &pair[0], sizeof value);
    memcpy(&other, &pair[1], sizeof other);
    /* Numbers of 64 bits may differ only after the 9 digits that are enough for float32. */
    int digits = size == 8 && fabs(value - other) <= 1e-8 * fabs(value) ? 17 : 9;
    if (wrong == *rank)
        snprintf(text, n, "element %lld is %.*g on rank 0 and %.*g on rank %d", (long long)element, digits, value,
                 digits, other, *rank);
    else
        snprintf(text, n, "element %lld is not the same", (long long)element);
    return TG_OK;
}
