/* Element-wise kernels: a function over contiguous elements for every formula, and the loop over tiles, which may have
 * any layout. */
#include "kernels/cpu/map.h"
#include "kernels/cpu/span.h"

/* Definitions that kernels/scalar.h asks for. MAP_PARAM converts a parameter, a double, to T. TG_M(f) names the
 * elementary function f of this type, such as tg_exp_f32. TG_SCALAR_INT is defined if T is an integer. */
#define MAP_INT_i64 1
#define MAP_INT_f32 0
#define MAP_INT_f64 0
#if SPAN_CAT(MAP_INT_, TG_T)
#define TG_SCALAR_INT
#define MAP_PARAM(x) tg_f64_to_i64(x)
#else
#define MAP_PARAM(x) (T)(x)
#endif
#define MAP_M(f, t) SPAN_CAT(tg_##f##_, t)
#define TG_M(f)     MAP_M(f, TG_T)
#include "kernels/scalar.h"

/* Tells the compiler that the iterations are independent. This holds even when an input is the output array itself,
 * because iteration k then reads and writes only element k. */
#ifdef __clang__
#define MAP_IVDEP
#else
#define MAP_IVDEP _Pragma("GCC ivdep")
#endif

#define MAP_INPUT(i, n) (n > i ? in##i[k] : (T)0)
#define MAP_LOOP(n, assign, value)                                                                                     \
    MAP_IVDEP                                                                                                          \
    for (int64_t k = 0; k < count; k++) {                                                                              \
        const T a = MAP_INPUT(0, n), b = MAP_INPUT(1, n), c = MAP_INPUT(2, n), d = MAP_INPUT(3, n);                    \
        (void)a, (void)b, (void)c, (void)d;                                                                            \
        y[k] assign(value);                                                                                            \
    }
#define TG_X(name, n, value)                                                                                           \
    static void row_##name(int64_t count, void *out, const void *const *in, double p_, double q_, bool add) {          \
        const T *in0 = in[0], *in1 = n > 1 ? in[1] : 0, *in2 = n > 2 ? in[2] : 0, *in3 = n > 3 ? in[3] : 0;            \
        const T p = MAP_PARAM(p_), q = MAP_PARAM(q_);                                                                  \
        T *y = out;                                                                                                    \
        (void)in1, (void)in2, (void)in3, (void)p, (void)q;                                                             \
        if (add)                                                                                                       \
            MAP_LOOP(n, +=, value)                                                                                     \
        else                                                                                                           \
            MAP_LOOP(n, =, value)                                                                                      \
    }
TG_FORMULAS_ANY(TG_X)
#ifndef TG_SCALAR_INT
TG_FORMULAS_REAL(TG_X)
#endif
#undef TG_X

static const tg_map_row_fn row_table[TG_FN_COUNT] = {
#define TG_X(name, n, value) [TG_FN_##name] = row_##name,
    TG_FORMULAS_ANY(TG_X)
#ifndef TG_SCALAR_INT
        TG_FORMULAS_REAL(TG_X)
#endif
#undef TG_X
};

static void load(void *t, const void *src, tg_dtype dtype, int64_t stride, int64_t n) {
    span_load(t, src, dtype, stride, n);
}

static void store(void *dst, tg_dtype dtype, int64_t stride, int64_t n, const void *t) {
    span_store(dst, dtype, stride, n, t);
}

/* Transposes a column-major block into row-major buf, four columns at a time. */
static void transpose(T *restrict buf, const T *restrict columns, int64_t rows, int64_t cols) {
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4)
        for (int64_t r = 0; r < rows; r++)
            for (int k = 0; k < 4; k++) buf[r * cols + c + k] = columns[(c + k) * rows + r];
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) buf[r * cols + c] = columns[c * rows + r];
}

/* Copies the tile of operand x that starts at `at` (rows * cols elements) into buf, which is in row-major order. */
static void gather(T *buf, const tg_map_operand *x, const char *at, int ndim, int64_t rows, int64_t cols) {
    int64_t row_step = x->stride[ndim - 2], col_step = x->stride[ndim - 1];
    if (!x->column_major) {
        for (int64_t r = 0; r < rows; r++) load(buf + r * cols, at + r * row_step * x->size, x->dtype, col_step, cols);
        return;
    }
    T columns[TG_MAP_TILE];
    for (int64_t c = 0; c < cols; c++) load(columns + c * rows, at + c * col_step * x->size, x->dtype, row_step, rows);
    transpose(buf, columns, rows, cols);
}

/* Copies buf, in row-major order, to the tile of operand x that starts at `at`. */
static void scatter(const T *buf, const tg_map_operand *x, char *at, int ndim, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        store(at + r * x->stride[ndim - 2] * x->size, x->dtype, x->stride[ndim - 1], cols, buf + r * cols);
}

/* Finds the byte offset of tile t in every operand, and the tile's size in rows and columns. */
static void locate(const tg_map_plan *m, int64_t t, int64_t *offset, int64_t *rows, int64_t *cols) {
    int last = m->ndim - 1;
    int64_t across = (m->shape[last] + m->cols - 1) / m->cols, down = (m->shape[last - 1] + m->rows - 1) / m->rows;
    int64_t at[TG_MAX_DIMS + 1];
    at[last] = t % across * m->cols;
    t /= across;
    at[last - 1] = t % down * m->rows;
    t /= down;
    for (int d = last - 2; d >= 0; d--) {
        at[d] = t % m->shape[d];
        t /= m->shape[d];
    }
    *cols = m->shape[last] - at[last] < m->cols ? m->shape[last] - at[last] : m->cols;
    *rows = m->shape[last - 1] - at[last - 1] < m->rows ? m->shape[last - 1] - at[last - 1] : m->rows;
    for (int i = 0; i <= m->n_in; i++) {
        offset[i] = 0;
        for (int d = 0; d <= last; d++) offset[i] += at[d] * m->x[i].stride[d] * m->x[i].size;
    }
}

/* Computes tile t. buf has a buffer for each operand: buf[0] for the output m->x[0], and buf[i] for the input m->x[i],
 * which the row function gets as in[i - 1]. Only operands that are not direct need their buffers. */
static void map_tile(const tg_map_plan *m, int64_t t, T buf[][TG_MAP_TILE]) {
    int64_t offset[1 + TG_MAP_INPUTS], rows, cols;
    const void *in[TG_MAP_INPUTS] = {0};
    locate(m, t, offset, &rows, &cols);
    for (int i = 1; i <= m->n_in; i++) {
        const tg_map_operand *x = &m->x[i];
        in[i - 1] = x->direct ? x->data + offset[i] : (char *)buf[i];
        if (!x->direct) gather(buf[i], x, x->data + offset[i], m->ndim, rows, cols);
    }
    char *out = m->x[0].data + offset[0];
    if (m->x[0].direct) {
        m->row(rows * cols, out, in, m->p, m->q, m->add);
        return;
    }
    if (m->add) gather(buf[0], &m->x[0], out, m->ndim, rows, cols);
    m->row(rows * cols, buf[0], in, m->p, m->q, m->add);
    scatter(buf[0], &m->x[0], out, m->ndim, rows, cols);
}

/* Computes the tiles of units [begin, end). */
static void map_tiles(void *plan, int64_t begin, int64_t end) {
    const tg_map_plan *m = plan;
    T buf[1 + TG_MAP_INPUTS][TG_MAP_TILE];
    int64_t last = end * m->per_unit < m->tiles ? end * m->per_unit : m->tiles;
    for (int64_t t = begin * m->per_unit; t < last; t++) map_tile(m, t, buf);
}

const tg_map_kernels TG_K(map_kernels) = {.row = row_table, .tiles = map_tiles, .load = load, .store = store};
