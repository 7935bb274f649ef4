/* Shared by the parts of the contract: host copies of device arrays, values, comparisons. */
#include "contract/device_contract.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad/device.h>

/* The bytes around the elements of a mirror have this value, which must not change. */
enum { BESIDE = 0xa5 };

contract contract_of(tg_ctx *ctx) {
    return (contract){.ctx = ctx, .ops = tg_ctx_ops(ctx), .dice = 1};
}

void contract_check(contract *c, bool ok, const char *format, ...) {
    c->checks++;
    if (ok || c->failures++) return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(c->message, sizeof c->message, format, ap);
    va_end(ap);
}

bool contract_close(tg_dtype dtype, double got, double want) {
    static const double tolerance[TG_DTYPE_COUNT] = {
        [TG_F32] = 1e-5, [TG_F64] = 1e-11, [TG_BF16] = 1e-2, [TG_F16] = 2e-3};
    if (got != got || want != want) return got != got && want != want;
    return got == want || fabs(got - want) <= tolerance[dtype] * (1 + fabs(want));
}

int64_t contract_roll(contract *c, int64_t n) {
    c->dice = c->dice * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((c->dice >> 33) % (uint64_t)n);
}

double contract_value(contract *c, tg_dtype dtype) {
    int64_t r = contract_roll(c, 4001);
    if (dtype == TG_BOOL) return (double)(r & 1);
    if (dtype == TG_U8 || (dtype >= TG_U16 && dtype <= TG_U64)) return (double)(r % 8);
    return dtype <= TG_F16 ? contract_rounded(dtype, (double)(r - 2000) / 900) : (double)(r % 13 - 6);
}

static size_t size_of(tg_dtype dtype) {
    return (size_t)tg_dtype_bits(dtype) / 8;
}

static int64_t set_layout(mirror *m, layout l) {
    int n = m->on.ndim;
    int order[TG_MAX_DIMS];
    int64_t step = l == STRIDED ? 2 : 1;
    for (int d = 0; d < n; d++) order[d] = d;
    if (l == TRANSPOSED && n > 1) {
        order[n - 1] = n - 2;
        order[n - 2] = n - 1;
    }
    for (int k = n - 1; k >= 0; k--) {
        int d = order[k];
        bool expanded = l == EXPANDED && d == 0;
        m->stride[d] = expanded ? 0 : step;
        step *= expanded ? 1 : m->shape[d];
    }
    return step;
}

mirror contract_make(contract *c, tg_dtype dtype, int ndim, const int64_t *shape, layout l) {
    mirror m = {.on = {.ndim = (uint8_t)ndim, .dtype = (uint8_t)dtype, .numel = 1}};
    for (int d = 0; d < ndim; d++) {
        m.shape[d] = shape[d];
        m.on.numel *= shape[d];
    }
    int64_t elements = set_layout(&m, l);
    m.on.contiguous = true;
    for (int64_t d = ndim - 1, step = 1; d >= 0; step *= shape[d--])
        m.on.contiguous &= shape[d] == 1 || m.stride[d] == step;
    m.shift = l == SHIFTED;
    m.bytes = (size_t)(elements + 1 + m.shift) * size_of(dtype);
    m.host = memset(malloc(m.bytes), BESIDE, m.bytes);
    m.base = c->ops->alloc(c->ctx, m.bytes, 64);
    m.on.data = m.base + (size_t)m.shift * size_of(dtype);
    for (int64_t i = 0; i < m.on.numel; i++) contract_set(&m, i, contract_value(c, dtype));
    return m;
}

static bool surroundings_are_whole(const mirror *m) {
    size_t size = size_of(m->on.dtype), other = 0;
    char *is_element = calloc(1, m->bytes);
    for (int64_t i = 0; i < m->on.numel; i++) memset(is_element + contract_offset(m, i) * (int64_t)size, 1, size);
    for (size_t i = 0; i < m->bytes; i++) other += !is_element[i] && (unsigned char)m->host[i] != BESIDE;
    free(is_element);
    return !other;
}

static void attach(mirror *m) {
    m->on.shape = m->shape;
    m->on.stride = m->stride;
}

void contract_push(contract *c, mirror *m) {
    attach(m);
    c->ops->copy(c->ctx, m->base, m->host, m->bytes, TG_COPY_FROM_HOST);
}

void contract_pull(contract *c, mirror *m) {
    c->ops->copy(c->ctx, m->host, m->base, m->bytes, TG_COPY_TO_HOST);
    c->ops->sync(c->ctx);
    contract_check(c, surroundings_are_whole(m), "%s, layout strides from %lld: bytes around the elements were written",
                   tg_dtype_name((tg_dtype)m->on.dtype), (long long)(m->on.ndim ? m->stride[0] : 0));
}

void contract_drop(contract *c, mirror *m) {
    c->ops->free(c->ctx, m->base, m->bytes);
    free(m->host);
}

int64_t contract_offset(const mirror *m, int64_t i) {
    int64_t at = m->shift;
    for (int d = m->on.ndim - 1; d >= 0; d--) {
        at += i % m->shape[d] * m->stride[d];
        i /= m->shape[d];
    }
    return at;
}

/* Converts a 16-bit float with this many bits of exponent to a number. */
static double half_value(uint16_t h, int exponent_bits) {
    int digits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int e = (h & 0x7fff) >> digits, top = (1 << exponent_bits) - 1;
    double m = h & ((1 << digits) - 1), v;
    if (e == top)
        v = m != 0 ? (double)NAN : (double)INFINITY;
    else
        v = e ? ldexp(m + (1 << digits), e - bias - digits) : ldexp(m, 1 - bias - digits);
    return h & 0x8000 ? -v : v;
}

/* Rounds v to a float with this many bits after the leading one and this smallest and largest exponent, ties to
 * even. */
static double rounded_float(double v, int digits, int least, int greatest) {
    if (v == 0 || !isfinite(v)) return v;
    int e = ilogb(v) < least ? least : ilogb(v);
    double r = ldexp(nearbyint(ldexp(v, digits - e)), e - digits);
    return fabs(r) >= ldexp(1, greatest + 1) ? copysign(INFINITY, v) : r;
}

static uint16_t half_bits(double v, int exponent_bits) {
    int digits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(rounded_float(v, digits, 1 - bias, bias));
    if (a != a) return (uint16_t)(top << digits | 1 << (digits - 1));
    if (isinf(a)) return (uint16_t)(sign | top << digits);
    if (a < ldexp(1, 1 - bias)) return (uint16_t)(sign | (int)ldexp(a, bias - 1 + digits));
    int e = ilogb(a);
    return (uint16_t)(sign | (((e + bias) << digits) + (int)ldexp(a, digits - e) - (1 << digits)));
}

static int64_t saturated(double v, double lo, double hi) {
    return v != v ? 0 : v <= lo ? (int64_t)lo : v >= hi ? (hi >= 0x1p63 ? INT64_MAX : (int64_t)hi) : (int64_t)v;
}

double contract_rounded(tg_dtype dtype, double v) {
    switch (dtype) {
    case TG_F32:
        return (double)(float)v;
    case TG_BF16:
        return rounded_float(v, 7, -126, 127);
    case TG_F16:
        return rounded_float(v, 10, -14, 15);
    case TG_I64:
        return (double)saturated(v, -0x1p63, 0x1p63);
    case TG_I32:
        return (double)saturated(v, -0x1p31, 0x1p31 - 1);
    case TG_U8:
        return (double)saturated(v, 0, 255);
    case TG_I8:
        return (double)saturated(v, -128, 127);
    case TG_I16:
        return (double)saturated(v, -32768, 32767);
    case TG_U16:
        return (double)saturated(v, 0, 65535);
    case TG_U32:
        return (double)saturated(v, 0, 0x1p32 - 1);
    case TG_U64:
        return v >= 0x1p64 ? 0x1p64 : v > 0 ? trunc(v) : 0;
    case TG_BOOL:
        return v != 0;
    default:
        return v;
    }
}

double contract_get(const mirror *m, int64_t i) {
    const char *p = m->host + contract_offset(m, i) * (int64_t)size_of(m->on.dtype);
    switch (m->on.dtype) {
    case TG_F32:
        return *(const float *)p;
    case TG_F64:
        return *(const double *)p;
    case TG_BF16:
        return half_value(*(const uint16_t *)p, 8);
    case TG_F16:
        return half_value(*(const uint16_t *)p, 5);
    case TG_I64:
        return (double)*(const int64_t *)p;
    case TG_I32:
        return *(const int32_t *)p;
    case TG_I8:
        return *(const int8_t *)p;
    case TG_I16:
        return *(const int16_t *)p;
    case TG_U16:
        return *(const uint16_t *)p;
    case TG_U32:
        return *(const uint32_t *)p;
    case TG_U64:
        return (double)*(const uint64_t *)p;
    default:
        return *(const uint8_t *)p;
    }
}

void contract_set(mirror *m, int64_t i, double v) {
    char *p = m->host + contract_offset(m, i) * (int64_t)size_of(m->on.dtype);
    switch (m->on.dtype) {
    case TG_F32:
        *(float *)p = (float)v;
        break;
    case TG_F64:
        *(double *)p = v;
        break;
    case TG_BF16:
        *(uint16_t *)p = half_bits(v, 8);
        break;
    case TG_F16:
        *(uint16_t *)p = half_bits(v, 5);
        break;
    case TG_I64:
        *(int64_t *)p = saturated(v, -0x1p63, 0x1p63);
        break;
    case TG_I32:
        *(int32_t *)p = (int32_t)contract_rounded(TG_I32, v);
        break;
    case TG_I8:
        *(int8_t *)p = (int8_t)contract_rounded(TG_I8, v);
        break;
    case TG_I16:
        *(int16_t *)p = (int16_t)contract_rounded(TG_I16, v);
        break;
    case TG_U16:
        *(uint16_t *)p = (uint16_t)contract_rounded(TG_U16, v);
        break;
    case TG_U32:
        *(uint32_t *)p = (uint32_t)contract_rounded(TG_U32, v);
        break;
    case TG_U64:
        *(uint64_t *)p = v >= 0x1p64 ? UINT64_MAX : (uint64_t)contract_rounded(TG_U64, v);
        break;
    default:
        *(uint8_t *)p = (uint8_t)contract_rounded(m->on.dtype, v);
    }
}
