/* Arrays whose elements lie more than 2^31 elements apart: offsets need 64 bits. The memory between them is not
 * touched. The CPU device is left out, as its allocator may fill new memory. */
#include <string.h>

#include "device_contract.h"
#include "kernels/scalar.h"

enum { ROWS_HERE = 2, COLUMNS = 35, N = ROWS_HERE * COLUMNS };
static const int64_t far = ((int64_t)1 << 31) + 4099;

typedef struct spread {
    int64_t shape[2], stride[2];
    tg_array on;
} spread;

static tg_array *lay(spread *s, void *data, tg_dtype dtype, int64_t columns, int64_t row, int64_t column) {
    *s = (spread){.shape = {ROWS_HERE, columns}, .stride = {row, column}};
    s->on = (tg_array){data, s->shape, s->stride, ROWS_HERE * columns, 2, (uint8_t)dtype, false};
    return &s->on;
}

/* Bytes of a row of the wide array. */
static bool row_is(contract *c, const char *at, const uint8_t *want) {
    uint8_t got[COLUMNS];
    return c->ops->copy(c->ctx, got, at, sizeof got, TG_COPY_TO_HOST) == TG_OK && !memcmp(got, want, sizeof got);
}

static void far_copies(contract *c, char *wide, char *close) {
    const double none[2] = {0, 0};
    uint8_t here[N], back[N];
    spread w, t, n, m;
    tg_array *all = lay(&w, wide, TG_U8, COLUMNS, far, 1), *packed = lay(&n, close, TG_U8, COLUMNS, COLUMNS, 1);
    tg_array *again = lay(&m, close + 256, TG_U8, COLUMNS, COLUMNS, 1);
    for (int i = 0; i < N; i++) here[i] = (uint8_t)(3 * i + 1);
    c->ops->copy(c->ctx, close, here, sizeof here, TG_COPY_FROM_HOST);
    c->ops->apply(c->ctx, TG_FN_id, *all, packed, 1, none, false);
    contract_check(c, row_is(c, wide, here) && row_is(c, wide + far, here + COLUMNS), "map to far rows");
    c->ops->apply(c->ctx, TG_FN_id, *again, all, 1, none, false);
    c->ops->copy(c->ctx, back, close + 256, sizeof back, TG_COPY_TO_HOST);
    contract_check(c, !memcmp(back, here, sizeof here), "map from far rows");
    /* The large stride is the inner one, as in a transposed array. */
    lay(&t, wide, TG_U8, 2, 1, far);
    lay(&n, close, TG_U8, 2, 1, COLUMNS);
    c->ops->fill(c->ctx, *all, 7);
    c->ops->apply(c->ctx, TG_FN_id, t.on, &n.on, 1, none, false);
    memset(back, 7, sizeof back);
    memcpy(back, here, 2);
    memcpy(back + COLUMNS, here + COLUMNS, 2);
    contract_check(c, row_is(c, wide, back) && row_is(c, wide + far, back + COLUMNS), "map and fill of far columns");
}

/* [all] contains 7 now, except for two elements of each row. */
static void far_sums(contract *c, char *wide, char *close) {
    spread w, whole, rows, index, one;
    int64_t sums[COLUMNS], want = 0, which[ROWS_HERE] = {1, 0}, huge = ((int64_t)1 << 32) + 1;
    uint8_t held[N], got[N];
    tg_array *all = lay(&w, wide, TG_U8, COLUMNS, far, 1);
    for (int r = 0; r < ROWS_HERE; r++)
        c->ops->copy(c->ctx, held + r * COLUMNS, wide + r * far, COLUMNS, TG_COPY_TO_HOST);
    for (int i = 0; i < N; i++) want += held[i];
    lay(&whole, close, TG_I64, 1, 0, 0);
    whole.shape[0] = whole.on.numel = 1;
    c->ops->reduce(c->ctx, TG_SUM, whole.on, *all, 1, false);
    c->ops->copy(c->ctx, sums, close, sizeof *sums, TG_COPY_TO_HOST);
    contract_check(c, sums[0] == want, "the sum of far rows: %lld, not %lld", (long long)sums[0], (long long)want);
    lay(&rows, close, TG_I64, COLUMNS, 0, 1);
    rows.shape[0] = 1;
    rows.on.numel = COLUMNS;
    c->ops->reduce(c->ctx, TG_SUM, rows.on, *all, 1, false);
    c->ops->copy(c->ctx, sums, close, sizeof sums, TG_COPY_TO_HOST);
    for (int i = 0; i < COLUMNS; i++)
        contract_check(c, sums[i] == held[i] + held[COLUMNS + i], "the sum over far rows, column %d", i);
    c->ops->copy(c->ctx, close, which, sizeof which, TG_COPY_FROM_HOST); /* exchanges the rows */
    lay(&index, close, TG_I64, COLUMNS, 1, 0);
    lay(&one, close + 64, TG_U8, COLUMNS, COLUMNS, 1);
    c->ops->take(c->ctx, one.on, *all, index.on, 0, NULL);
    c->ops->copy(c->ctx, got, close + 64, sizeof got, TG_COPY_TO_HOST);
    contract_check(c, !memcmp(got, held + COLUMNS, COLUMNS) && !memcmp(got + COLUMNS, held, COLUMNS),
                   "take of far rows");
    c->ops->put_add(c->ctx, *all, one.on, index.on, 0, NULL);
    for (int i = 0; i < N; i++) held[i] = (uint8_t)(2 * held[i]);
    contract_check(c, row_is(c, wide, held) && row_is(c, wide + far, held + COLUMNS), "put_add into far rows");
    /* An index beyond 2^32 into a dim that is expanded. */
    c->ops->copy(c->ctx, close, &huge, sizeof huge, TG_COPY_FROM_HOST);
    lay(&index, close, TG_I64, COLUMNS, 0, 0);
    lay(&w, wide, TG_U8, COLUMNS, 0, 1);
    w.shape[0] = huge + 1;
    w.on.numel = (huge + 1) * COLUMNS;
    c->ops->fill(c->ctx, one.on, 1);
    c->ops->take(c->ctx, one.on, w.on, index.on, 0, NULL);
    c->ops->copy(c->ctx, got, close + 64, sizeof got, TG_COPY_TO_HOST);
    contract_check(c, !memcmp(got, held, COLUMNS) && !memcmp(got + COLUMNS, held, COLUMNS), "take at a great index");
}

void contract_far(contract *c) {
    if (c->ops->host) return;
    size_t bytes = (size_t)far + 4096, few = 4096;
    char *wide = c->ops->alloc(c->ctx, bytes, 64), *close = c->ops->alloc(c->ctx, few, 64);
    contract_check(c, wide && close, "%zu bytes of memory", bytes);
    if (wide && close) {
        far_copies(c, wide, close);
        far_sums(c, wide, close);
    }
    if (wide) c->ops->free(c->ctx, wide, bytes);
    if (close) c->ops->free(c->ctx, close, few);
}
