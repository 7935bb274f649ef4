/* The values of sample inputs: numbers of a random generator that does not use the context's random streams, so that
 * they depend only on a seed. */
#include "catalog/sample_values.h"
#include "base/memory/host_memory.h"

#include <math.h>

#include "kernels/convert.h"

/* Returns the next number of splitmix64 (Steele et al., OOPSLA 2014). */
uint64_t tg_sample_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double tg_sample_uniform(uint64_t *state) { return ((double)(tg_sample_random(state) >> 11) + 0.5) * 0x1p-53; }

double tg_sample_normal(uint64_t *state) {
    double r = sqrt(-2 * log(tg_sample_uniform(state)));
    return r * cos(6.283185307179586 * tg_sample_uniform(state));
}

/* Rounds v to a number that dtype `grid` can represent if `grid` is float32, bfloat16 or float16. Otherwise returns
 * v. */
static double to_grid(double v, tg_dtype grid) {
    switch (grid) {
    case TG_F32: return (float)v;
    case TG_BF16: return tg_bf16_to_f32(tg_f64_to_bf16(v));
    case TG_F16: return tg_f16_to_f32(tg_f64_to_f16(v));
    default: return v;
    }
}

/* Returns element number i of starts [n], or [rows, n], which rise from 0 to s->hi in each row. They rise as a power of
 * the index: its square in row 0, the index itself in row 1, and smaller powers in further rows. So the rows differ. */
static double start_of(const tg_sample_input *s, int64_t i) {
    if (s->shape.ndim == 0 || s->shape.dim[s->shape.ndim - 1] < 2) return 0; /* a single one */
    double last = (double)s->shape.dim[s->shape.ndim - 1] - 1, row = floor((double)i / (last + 1));
    double power = 2 / (1 + row);
    return floor(s->hi * pow((double)i - row * (last + 1), power) / pow(last, power));
}

/* Returns element number i of an input, which tg_sample_input describes. */
static double draw(const tg_sample_input *s, int64_t i, tg_dtype grid, double jitter, uint64_t *state) {
    switch (s->kind) {
    case TG_SAMPLE_INDEX: return floor(s->lo + (s->hi - s->lo) * tg_sample_uniform(state));
    case TG_SAMPLE_BOOL: return s->hi > 0 ? fmod((double)i, s->hi) >= s->lo : (double)(tg_sample_random(state) >> 63);
    case TG_SAMPLE_STARTS: return start_of(s, i);
    default: break;
    }
    double v = s->lo == 0 && s->hi == 0 ? tg_sample_normal(state) : s->lo + (s->hi - s->lo) * tg_sample_uniform(state);
    if (s->zeros && i % s->zeros == s->zeros - 1) v = 0;
    uint64_t aside = ~*state; /* the jitter has its own stream, so that the other values do not depend on it */
    return to_grid(v, grid) * (1 + jitter * (2 * tg_sample_uniform(&aside) - 1));
}

tg_status tg_sample_fill(tg_tensor *x, const tg_sample_input *s, const tg_case_opts *o, uint64_t state) {
    if (x->ctx->meta || !x->numel) return TG_OK;
    size_t bytes = (size_t)x->numel * sizeof(double);
    double *v = tg_host_alloc(x->ctx, bytes);
    if (!v) return x->ctx->run.status;
    for (int64_t i = 0; i < x->numel; i++) v[i] = draw(s, i, o->grid ? o->grid : o->dtype, o->jitter, &state);
    tg_status status = tg_write_f64(x, v, x->numel);
    tg_host_free(x->ctx, v, bytes);
    return status;
}
