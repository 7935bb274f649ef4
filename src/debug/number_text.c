/* Numbers as text, as NumPy writes the elements of an array. The shortest digits that identify a float are found by
 * writing it with more and more digits until they read back as the same number. */
#include "debug/number_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/text.h"
#include "kernels/convert.h"
#include "kernels/float8.h"

/* ---- Elements ---- */

static double float_at(tg_dtype dtype, const void *p, int64_t i) {
    switch (dtype) {
    case TG_F64: return ((const double *)p)[i];
    case TG_BF16: return tg_bf16_to_f32(((const uint16_t *)p)[i]);
    case TG_F16: return tg_f16_to_f32(((const uint16_t *)p)[i]);
    case TG_F8E4M3: return tg_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    case TG_F8E5M2: return tg_f8e5m2_to_f32(((const uint8_t *)p)[i]);
    case TG_F8E8M0: return tg_f8e8m0_to_f32(((const uint8_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}

static int64_t integer_at(tg_dtype dtype, const void *p, int64_t i) {
    switch (dtype) {
    case TG_I64: return ((const int64_t *)p)[i];
    case TG_I32: return ((const int32_t *)p)[i];
    case TG_I16: return ((const int16_t *)p)[i];
    case TG_I8: return ((const int8_t *)p)[i];
    case TG_U32: return ((const uint32_t *)p)[i];
    case TG_U16: return ((const uint16_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

/* Writes an integer, right-aligned in `width` characters. Returns its length. */
static int integer_text(tg_dtype dtype, const void *p, int64_t i, int width, char out[TG_NUMBER_TEXT]) {
    if (dtype == TG_U64)
        return snprintf(out, TG_NUMBER_TEXT, "%*llu", width, (unsigned long long)((const uint64_t *)p)[i]);
    return snprintf(out, TG_NUMBER_TEXT, "%*lld", width, (long long)integer_at(dtype, p, i));
}

/* Rounds a number to a float dtype. */
static double rounded(tg_dtype dtype, double v) {
    switch (dtype) {
    case TG_F64: return v;
    case TG_BF16: return tg_bf16_to_f32(tg_f64_to_bf16(v));
    case TG_F16: return tg_f16_to_f32(tg_f64_to_f16(v));
    case TG_F8E4M3: return tg_f8e4m3_to_f32(tg_f32_to_f8e4m3(tg_f64_to_f32_odd(v)));
    case TG_F8E5M2: return tg_f8e5m2_to_f32(tg_f32_to_f8e5m2(tg_f64_to_f32_odd(v)));
    case TG_F8E8M0: return tg_f8e8m0_to_f32(tg_f32_to_f8e8m0(tg_f64_to_f32_odd(v)));
    default: return (float)v;
    }
}

/* ---- Digits of a float ---- */

static bool reads_back(tg_dtype dtype, const char *text, double v) {
    return dtype == TG_F32 ? strtof(text, NULL) == (float)v : rounded(dtype, strtod(text, NULL)) == v;
}

/* Returns how many digits after the first one identify v. */
static int digits_of(tg_dtype dtype, double v) {
    char text[40];
    for (int digits = 0; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits, v);
        if (reads_back(dtype, text, v)) return digits;
    }
    return 17;
}

/* Returns the decimal exponent of v after rounding to this many digits after the first one. */
static int exponent_of(double v, int digits) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", digits, v);
    return atoi(strchr(text, 'e') + 1);
}

/* Removes zeros at the end of the digits after the decimal point. The point stays. */
static void trim(char *text) {
    char *end = text + strlen(text);
    while (end[-1] == '0') *--end = 0;
}

/* Writes v without an exponent: as many digits as identify it, at most `precision` of them after the decimal point, as
 * in "1.". Digits in front of the point that are not needed are zeros. */
static void positional(tg_dtype dtype, double v, int precision, char out[TG_NUMBER_TEXT]) {
    char digit[40];
    int digits = digits_of(dtype, v), after = digits - exponent_of(v, digits);
    if (after > 0) {
        snprintf(out, TG_NUMBER_TEXT, "%#.*f", after < precision ? after : precision, v); /* # keeps the point */
        tg_text_point(out);
        trim(out);
        return;
    }
    snprintf(digit, sizeof digit, "%.*e", digits, v); /* "-d.ddde+xx": moves the digits, and fills up with zeros */
    tg_text_point(digit);
    int at = 0, zeros = -after;
    for (const char *c = digit; *c != 'e'; c++)
        if (*c != '.') out[at++] = *c;
    while (zeros-- > 0) out[at++] = '0';
    memcpy(out + at, ".", 2);
}

/* Writes the digits of v in scientific notation, without the exponent, as in "-1.5". Returns the exponent. */
static int scientific(tg_dtype dtype, double v, int precision, char out[TG_NUMBER_TEXT]) {
    int digits = digits_of(dtype, v);
    snprintf(out, TG_NUMBER_TEXT, "%#.*e", digits < precision ? digits : precision, v);
    tg_text_point(out);
    char *e = strchr(out, 'e');
    int exponent = atoi(e + 1);
    *e = 0;
    trim(out);
    return exponent;
}

/* ---- The format of an array ---- */

/* What is known of the elements of an array, from which their format follows. */
typedef struct extent {
    double least, most; /* smallest and largest magnitude of the finite elements that are not 0; 0 if there are none */
    int left, right;    /* the most characters before and after the decimal point of a finite element */
    int exponent;       /* the most digits of an exponent */
    bool others;        /* an element is NaN or infinite */
    bool negative_infinity;
} extent;

static void widen(int *width, size_t to) {
    if (*width < (int)to) *width = (int)to;
}

/* Fills least, most, others and negative_infinity. */
static extent magnitudes(tg_dtype dtype, const void *p, int64_t n) {
    extent e = {0};
    for (int64_t i = 0; i < n; i++) {
        double v = fabs(float_at(dtype, p, i));
        e.others |= !isfinite(v);
        e.negative_infinity |= isinf(v) && float_at(dtype, p, i) < 0;
        if (!isfinite(v) || v == 0) continue;
        if (!e.most || v < e.least) e.least = v;
        if (v > e.most) e.most = v;
    }
    return e;
}

/* Widens left, right and exponent to what v needs in the format f. */
static void measure(extent *e, const tg_number_format *f, double v) {
    char text[TG_NUMBER_TEXT];
    int exponent = 0;
    if (f->scientific)
        exponent = abs(scientific(f->dtype, v, f->precision, text));
    else
        positional(f->dtype, v, f->precision, text);
    char *point = strchr(text, '.');
    widen(&e->left, (size_t)(point - text));
    widen(&e->right, strlen(point + 1));
    widen(&e->exponent, exponent >= 100 ? 3 : 2);
}

static tg_number_format float_format(tg_dtype dtype, const void *p, int64_t n, int precision) {
    extent e = magnitudes(dtype, p, n);
    tg_number_format f = {.dtype = dtype, .precision = precision};
    f.scientific = e.most >= 1e8 || (e.most && (e.least < 0.0001 || rounded(dtype, e.most / e.least) > 1000));
    for (int64_t i = 0; i < n; i++)
        if (isfinite(float_at(dtype, p, i))) measure(&e, &f, float_at(dtype, p, i));
    if (f.scientific) f.precision = e.right;
    f.exponent = e.exponent;
    f.right = e.right + (f.scientific ? e.exponent + 2 : 0);
    f.left = e.left;
    if (e.others) { /* "nan", "inf" and "-inf" end where the numbers end */
        int others = 3 + e.negative_infinity - (f.right + 1);
        if (f.left < others) f.left = others;
    }
    return f;
}

tg_number_format tg_number_format_for(tg_dtype dtype, const void *elements, int64_t n, int precision) {
    if (tg_is_real(dtype)) return float_format(dtype, elements, n, precision);
    tg_number_format f = {.dtype = dtype, .left = dtype == TG_BOOL ? 5 : 0};
    char text[TG_NUMBER_TEXT];
    for (int64_t i = 0; i < n && dtype != TG_BOOL; i++)
        widen(&f.left, (size_t)integer_text(dtype, elements, i, 0, text));
    return f;
}

/* ---- Elements of the array ---- */

static void other_text(const tg_number_format *f, double v, char out[TG_NUMBER_TEXT]) {
    const char *name = isnan(v) ? "nan" : v < 0 ? "-inf" : "inf";
    snprintf(out, TG_NUMBER_TEXT, "%*s", f->left + 1 + f->right, name);
}

static void float_text(const tg_number_format *f, double v, char out[TG_NUMBER_TEXT]) {
    char text[TG_NUMBER_TEXT];
    int exponent = 0;
    if (!isfinite(v)) {
        other_text(f, v, out);
        return;
    }
    if (f->scientific)
        exponent = scientific(f->dtype, v, f->precision, text);
    else
        positional(f->dtype, v, f->precision, text);
    const char *point = strchr(text, '.');
    int at = snprintf(out, TG_NUMBER_TEXT, "%*s%s", f->left - (int)(point - text), "", text);
    int missing = (f->scientific ? f->precision : f->right) - (int)strlen(point + 1);
    for (; missing > 0; missing--) out[at++] = f->scientific ? '0' : ' ';
    out[at] = 0;
    if (f->scientific)
        snprintf(out + at, TG_NUMBER_TEXT - (size_t)at, "e%c%0*d", exponent < 0 ? '-' : '+', f->exponent,
                 abs(exponent));
}

void tg_number_text(const tg_number_format *f, const void *elements, int64_t i, char out[TG_NUMBER_TEXT]) {
    if (tg_is_real(f->dtype))
        float_text(f, float_at(f->dtype, elements, i), out);
    else if (f->dtype == TG_BOOL)
        snprintf(out, TG_NUMBER_TEXT, "%*s", f->left, ((const uint8_t *)elements)[i] ? "True" : "False");
    else
        integer_text(f->dtype, elements, i, f->left, out);
}

/* Returns the magnitude from which a scalar is written in scientific notation. */
static double scientific_from(tg_dtype dtype) { return dtype == TG_F64 ? 1e16 : dtype == TG_F32 ? 1e6 : 1e3; }

void tg_scalar_text(tg_dtype dtype, const void *elements, char out[TG_NUMBER_TEXT]) {
    tg_number_format f = {.dtype = dtype, .precision = 400, .exponent = 2};
    double v = tg_is_real(dtype) ? float_at(dtype, elements, 0) : 0, size = fabs(v);
    if (!tg_is_real(dtype)) {
        tg_number_text(&f, elements, 0, out);
        return;
    }
    if (!isfinite(v)) {
        snprintf(out, TG_NUMBER_TEXT, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    if (v == 0 || (size >= 1e-4 && size < scientific_from(dtype))) {
        positional(dtype, v, f.precision, out);
        if (out[strlen(out) - 1] == '.') strcat(out, "0");
        return;
    }
    int exponent = scientific(dtype, v, f.precision, out);
    size_t at = strlen(out);
    if (out[at - 1] == '.') at--;
    snprintf(out + at, TG_NUMBER_TEXT - at, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}
