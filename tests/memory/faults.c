/* What the cases of memory faults share: tensors of known values, names of files, and digests of results. */
#include "memory/faults.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void note(trial *r, tg_tensor *x) {
    double v[1 << 12];
    int64_t n = tg_numel(x);
    note_bytes(r, &n, sizeof n);
    if (n > 0 && n <= (int64_t)(sizeof v / sizeof *v) && tg_read_f64(x, v, n) == TG_OK)
        note_bytes(r, v, (size_t)n * sizeof *v);
}

const char *in_dir(const trial *r, const char *name) {
    static char paths[2][512];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof *paths, "%s/%s", r->dir, name);
    return paths[turn];
}

tg_tensor *wave(trial *r, tg_dtype dtype, tg_shape shape, double phase) {
    double v[1 << 12];
    tg_tensor *x = tg_zeros(r->ctx, dtype, shape);
    int64_t n = tg_numel(x);
    for (int64_t i = 0; i < n; i++) v[i] = sin(0.7 * (double)(i + 1) + phase);
    if (n) tg_write_f64(x, v, n);
    return x;
}

tg_tensor *some_ids(trial *r, int64_t rows, int64_t n, int64_t vocab, int64_t first, int64_t step) {
    int64_t v[1 << 10];
    for (int64_t i = 0; i < rows * n; i++) v[i] = (first + 3 * (i / n) + step * (i % n)) % vocab;
    return tg_from_host(r->ctx, TG_I64, TG_SHAPE(rows, n), v);
}
