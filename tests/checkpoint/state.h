/* Shared by the tests of sharded state: a directory that is removed in the end, a module without a rule of its own, and
 * parameters of which each rank has the values of its places. */
#ifndef TG_STATE_H
#define TG_STATE_H

#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/nn.h>
#include <tapegrad/average.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>

#include "on_ranks.h"

/* ---- The directory ---- */

static char root[] = "/tmp/tapegrad-state-XXXXXX";

/* Writes the path of a file in the directory, whose name is formatted, to buf and returns it. */
__attribute__((format(printf, 2, 3))) static inline const char *in_root(char buf[256], const char *format, ...) {
    int at = snprintf(buf, 256, "%s/", root);
    va_list ap;
    va_start(ap, format);
    vsnprintf(buf + at, 256 - (size_t)at, format, ap);
    va_end(ap);
    return buf;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *of) {
    (void)st, (void)type, (void)of;
    return remove(path);
}

/* The main function: makes the directory, runs the tests, and removes it. */
static inline int state_main(const char *name, const TTest *const *tests, size_t n) {
    if (!mkdtemp(root)) return EXIT_FAILURE;
    int result = tg_check_main(name, tests, n);
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0 ? result : EXIT_FAILURE;
}

/* Returns the bytes of a file of a saved state, which the caller frees, and their number; NULL if there is none. */
static inline char *slurp(const char *dir, const char *name, long *n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)*n + 1);
    if (fread(data, 1, (size_t)*n, f) != (size_t)*n) *n = -1;
    fclose(f);
    return data;
}

/* Whether two states that one rank has saved are the same. */
static inline bool same_state(const char *a, const char *b) {
    long n = 0, m = 0;
    char *x = slurp(a, "rank-00000.safetensors", &n), *y = slurp(b, "rank-00000.safetensors", &m);
    bool same = x && y && n > 0 && n == m && !memcmp(x, y, (size_t)n);
    free(x);
    free(y);
    return same;
}

/* Changes a bit of a file. */
static inline void flip(const char *dir, const char *name, int64_t at) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    ck_assert_msg(f != NULL, "%s", path);
    fseek(f, (long)at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 16, f);
    ck_assert(c != EOF && fclose(f) == 0);
}

/* ---- Modules and parameters ---- */

static const tg_module_ops box = {.size = sizeof(tg_module_ops), .kind = "box"};

/* Returns where element (row, col) of this rank's part lies along both dims of the global tensor, as one index. rows
 * and inner: the numbers of rows and columns of the part; width: that of the global tensor. */
static inline int64_t place_in_whole(const tg_parallel *p, const tg_place_at *places, int n_places, int64_t row,
                                     int64_t col, int64_t rows, int64_t inner, int64_t width) {
    for (int q = n_places - 1; q >= 0; q--) { /* the axis that was placed last is the innermost */
        tg_placement to = places[q].placement;
        int64_t n = tg_parallel_size(p, places[q].axis), r = tg_parallel_rank(p, places[q].axis);
        if (to.kind != TG_VARYING) continue;
        if (to.dim == 1) {
            col += r * inner;
            continue;
        }
        int64_t chunks = to.layout == TG_ZIGZAG ? 2 : to.layout == TG_STRIDED ? to.chunks : 1, size = rows / chunks;
        int64_t chunk = row / size;
        chunk = to.layout == TG_ZIGZAG ? (chunk ? 2 * n - 1 - r : r) : chunk * n + r;
        row = chunk * size + row % size;
        rows *= n;
    }
    return row * width + col;
}

/* Creates a parameter with the values of tensor number k, times scale, at this rank's places in the global tensor. */
static inline tg_tensor *filled(const tg_parallel *p, const char *name, int k, tg_dtype dtype, tg_shape whole,
                                const tg_place_at *places, int n_places, double scale) {
    tg_shape mine = whole;
    int64_t inner = 1, width = 1;
    double v[8192];
    for (int i = 0; i < n_places; i++)
        if (places[i].placement.kind == TG_VARYING)
            mine.dim[places[i].placement.dim] /= tg_parallel_size(p, places[i].axis);
    tg_tensor *x = tg_param_new(tg_parallel_ctx(p), name, dtype, mine, 0);
    for (int i = 0; i < n_places; i++) tg_place(p, x, places[i].axis, places[i].placement);
    for (int d = 1; d < mine.ndim; d++) inner *= mine.dim[d], width *= whole.dim[d];
    int64_t rows = mine.ndim ? mine.dim[0] : 1;
    for (int64_t i = 0; i < tg_numel(x); i++) {
        int64_t row = mine.ndim ? i / inner : 0, col = mine.ndim ? i % inner : 0;
        v[i] = scale * at(k, place_in_whole(p, places, n_places, row, col, rows, inner, width));
    }
    tg_write_f64(x, v, tg_numel(x));
    return x;
}

#endif
