/* One AdamW step (tg_adamw_args), in one pass over parameter, gradient and moments. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/tile.h"

typedef struct coefficients {
    real beta1, beta2, gain1, gain2; /* gain1 and gain2 are 1 - beta1 and 1 - beta2, rounded once */
    real eps;
    real clip;   /* factor of the gradient */
    real rate;   /* learning rate / (1 - beta1^t) */
    real keep;   /* factor of the parameter: 1 - learning rate * weight decay if the decay is decoupled, else 1 */
    real decay;  /* 0 if the decay is decoupled, else weight decay */
    real unbias; /* 1 / sqrt(1 - beta2^t) */
} coefficients;

static coefficients coefficients_of(const tg_adamw_job *job) {
    double lr = job->step[TG_SCALAR_LR], wd = job->weight_decay;
    return (coefficients){
        .beta1 = (real)job->beta1,
        .beta2 = (real)job->beta2,
        .gain1 = (real)(1 - job->beta1),
        .gain2 = (real)(1 - job->beta2),
        .eps = (real)job->eps,
        .clip = (real)job->step[TG_SCALAR_COEFFICIENT],
        .rate = (real)(lr / job->step[TG_SCALAR_UNBIAS1]),
        .keep = job->decoupled ? (real)(1 - lr * wd) : 1,
        .decay = job->decoupled ? 0 : (real)wd,
        .unbias = (real)(1 / sqrt(job->step[TG_SCALAR_UNBIAS2])),
    };
}

static void step_tile(coefficients c, int64_t n, real *restrict p, const real *restrict grad, real *restrict m,
                      real *restrict v) {
    for (int64_t i = 0; i < n; i++) {
        real g = grad[i] * c.clip + c.decay * p[i];
        m[i] = c.beta1 * m[i] + c.gain1 * g;
        v[i] = c.beta2 * v[i] + c.gain2 * (g * g);
        p[i] = c.keep * p[i] - c.rate * m[i] / (real_sqrt(v[i]) * c.unbias + c.eps);
    }
}

/* Returns a tile that the caller changes: in place, or loaded into buf, from which tile_put later stores it. */
static real *tile_inout(const tg_rows *x, int64_t j, int64_t n, real *buf) {
    return (real *)tile_in(x, 0, j, n, buf);
}

void TG_K(adamw)(void *arg, int64_t begin, int64_t end) {
    const tg_adamw_job *job = arg;
    const tg_rows *master = job->master.data ? &job->master : &job->param;
    coefficients c = coefficients_of(job);
    real pbuf[TILE], gbuf[TILE], mbuf[TILE], vbuf[TILE];
    for (int64_t j = begin * TILE, last = end * TILE; j < last && j < job->param.n; j += TILE) {
        int64_t n = tile_len(job->param.n, j);
        real *p = tile_inout(master, j, n, pbuf), *m = tile_inout(&job->m, j, n, mbuf);
        real *v = tile_inout(&job->v, j, n, vbuf);
        step_tile(c, n, p, tile_in(&job->grad, 0, j, n, gbuf), m, v);
        tile_put(master, 0, j, n, false, p);
        tile_put(&job->m, 0, j, n, false, m);
        tile_put(&job->v, 0, j, n, false, v);
        if (job->master.data)
            tile_store(tg_row_at(&job->param, 0, j), job->param.dtype, 1, n, p);
    }
}
