/* The fused kernels of the CPU: its optional slots softmax, norm, cross-entropy, attention, dropout, prepare and adamw.
 * This header declares first the functions in the device table, and then what their drivers pass to the templates
 * (cpu.h).
 *
 * Every kernel is a tg_range_fn over units of work; those of attention are called with ranges of units instead
 * (attention.h). How the work is divided into units depends on shapes and strides alone. Arithmetic is in the
 * template's compute type: float for float32, bfloat16 and float16, double for float64. */
#ifndef TG_FUSED_H
#define TG_FUSED_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

tg_status tg_cpu_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log);
tg_status tg_cpu_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
tg_status tg_cpu_norm(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_cpu_norm_grad(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_cpu_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_cpu_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_cpu_attention(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_cpu_attention_grad(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_cpu_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
tg_status tg_cpu_prepare(tg_ctx *ctx, const tg_prepare_args *a);
tg_status tg_cpu_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n);

/* ---- For the drivers and their templates ---- */

/* X(name) for every kernel. Each copy of a template defines the kernel as a tg_range_fn. */
#define TG_FUSED_LIST(X)                                                          \
    X(softmax)                                                                    \
    X(softmax_grad)                                                               \
    X(norm)                                                                       \
    X(norm_grad)                                                                  \
    X(sum_partials)                                                               \
    X(cross_entropy)                                                              \
    X(cross_entropy_grad)                                                         \
    X(attention)                                                                  \
    X(attention_grad)                                                             \
    X(attention_grad_mask)                                                        \
    X(attention_grad_sink)                                                        \
    X(dropout)                                                                    \
    X(adamw)

#define TG_KERNEL_COPIES(name, T)                                                 \
    void tg_##name##_##T##_portable(void *arg, int64_t begin, int64_t end);       \
    void tg_##name##_##T##_avx2(void *arg, int64_t begin, int64_t end);           \
    void tg_##name##_##T##_avx512(void *arg, int64_t begin, int64_t end);
#define TG_X(name) TG_KERNEL_COPIES(name, f32) TG_KERNEL_COPIES(name, f64)
TG_FUSED_LIST(TG_X)
#undef TG_X

typedef enum tg_fused {
#define TG_X(name) TG_FUSED_##name,
    TG_FUSED_LIST(TG_X)
#undef TG_X
    TG_FUSED_COUNT
} tg_fused;

/* Runs the copy of a kernel for the context's level and this compute type over [0, units). */
void tg_fused_run(tg_ctx *ctx, tg_fused kernel, bool f64, int64_t units, void *job);

/* Returns how many of `count` rows of n elements make a unit that is large enough to be worth starting a thread, and so
 * large that there are at most 4096 units. */
int64_t tg_rows_per_unit(int64_t count, int64_t n);
/* Returns the number of units of `count` rows. */
static inline int64_t tg_units(int64_t count, int64_t per_unit) {
    return (count + per_unit - 1) / per_unit;
}
/* Returns the number of rows in units [0, end): one past the last row of unit end - 1. */
static inline int64_t tg_unit_end(int64_t count, int64_t per_unit, int64_t end) {
    return end * per_unit < count ? end * per_unit : count;
}

/* Number of elements of a row that a kernel handles at a time: few enough for the first-level cache. */
enum { TG_TILE = 1024 };

/* The blocks of work memory (tg_workspace) that these kernels use. */
enum { TG_WS_PARTIALS = 5, TG_WS_SCRATCH = 6 };

typedef struct tg_softmax_job {
    tg_rows y, x, gy, gx; /* gy, gx: for the gradient */
    int64_t per_unit; /* number of rows of a unit, also in the structs below */
    bool log, add;
} tg_softmax_job;

typedef struct tg_norm_job {
    tg_rows x, w, b, y, gy, gx, mean, rstd;
    int64_t per_unit;
    double eps;
    bool rms, add_x;
    bool streams; /* y is written with non-temporal stores (stream.h) */
    void *gw, *gb; /* the sums of each unit, [units, n] in the compute type; NULL: not wanted */
} tg_norm_job;

/* The job of kernel sum_partials: row r of out (+)= the sum of row r of `count` parts, in order. (+)= adds if `add` is
 * true, and overwrites otherwise. Parts are part_size elements apart, and the rows of a part are row_size elements
 * apart. A unit is one tile of a row. */
typedef struct tg_sum_job {
    tg_rows out;
    const void *parts; /* in the compute type */
    int64_t count, part_size, row_size, tiles; /* tiles: number of tiles of a row */
    bool add;
} tg_sum_job;

typedef struct tg_cross_entropy_job {
    tg_rows logits, target, loss, top, mass, gloss, glogits;
    int64_t per_unit, ignore_index;
    int64_t first, classes; /* column 0 of logits is class `first`; `classes` is the number of all classes */
    double smoothing;
    bool shard, add; /* shard: the columns of other classes are on other ranks */
} tg_cross_entropy_job;

typedef struct tg_dropout_job {
    tg_rows y, x;
    int64_t tiles; /* number of tiles of a row; a unit is one tile */
    double p;
    tg_draws draws;
    bool add;
} tg_dropout_job;

typedef struct tg_adamw_job {
    tg_rows param, grad, m, v, master;
    double beta1, beta2, eps, weight_decay;
    bool decoupled;
    const double *step;
} tg_adamw_job;

#endif
