/* The checksum XXH64. Names and order of the steps follow its specification. */
#include "io/checksum.h"

#include <tapegrad/io.h>

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9,
                      P4 = 0x85EBCA77C2B2AE63, P5 = 0x27D4EB2F165667C5;

static uint64_t rotate(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }

static uint64_t load64(const uint8_t *at) {
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Adds eight bytes to an accumulator. */
static uint64_t mix(uint64_t acc, uint64_t v) { return rotate(acc + v * P2, 31) * P1; }

tg_summing tg_summing_begin(void) { return (tg_summing){.acc = {P1 + P2, P2, 0, 0 - P1}}; }

/* Adds n stripes of 32 bytes. */
static void add_stripes(tg_summing *s, const uint8_t *at, size_t n) {
    uint64_t a = s->acc[0], b = s->acc[1], c = s->acc[2], d = s->acc[3];
    for (; n > 0; n--, at += 32) {
        a = mix(a, load64(at));
        b = mix(b, load64(at + 8));
        c = mix(c, load64(at + 16));
        d = mix(d, load64(at + 24));
    }
    s->acc[0] = a;
    s->acc[1] = b;
    s->acc[2] = c;
    s->acc[3] = d;
}

void tg_summing_add(tg_summing *s, const void *data, size_t bytes) {
    const uint8_t *at = data;
    size_t held = s->bytes % sizeof s->rest, missing = sizeof s->rest - held;
    if (bytes == 0) return;
    s->bytes += bytes;
    if (held > 0) {
        size_t n = bytes < missing ? bytes : missing;
        memcpy(s->rest + held, at, n);
        if (n < missing) return;
        add_stripes(s, s->rest, 1);
        at += n;
        bytes -= n;
    }
    add_stripes(s, at, bytes / sizeof s->rest);
    memcpy(s->rest, at + bytes / sizeof s->rest * sizeof s->rest, bytes % sizeof s->rest);
}

/* Combines the accumulators. With less than one stripe of data they are not used. */
static uint64_t converge(const tg_summing *s) {
    if (s->bytes < sizeof s->rest) return P5;
    const uint64_t *v = s->acc;
    uint64_t sum = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
    for (int i = 0; i < 4; i++) sum = (sum ^ mix(0, v[i])) * P1 + P4;
    return sum;
}

uint64_t tg_summing_end(const tg_summing *s) {
    uint64_t sum = converge(s) + s->bytes;
    size_t n = s->bytes % sizeof s->rest;
    const uint8_t *at = s->rest;
    for (; n >= 8; n -= 8, at += 8) sum = rotate(sum ^ mix(0, load64(at)), 27) * P1 + P4;
    if (n >= 4) {
        uint32_t v;
        memcpy(&v, at, sizeof v);
        sum = rotate(sum ^ v * P1, 23) * P2 + P3;
        n -= 4;
        at += 4;
    }
    for (; n > 0; n--, at++) sum = rotate(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

uint64_t tg_checksum(const void *data, size_t bytes) {
    tg_summing s = tg_summing_begin();
    if (data) tg_summing_add(&s, data, bytes);
    return tg_summing_end(&s);
}

void tg_checksum_text(uint64_t sum, char out[TG_CHECKSUM_DIGITS]) {
    for (int i = TG_CHECKSUM_DIGITS - 1; i >= 0; i--, sum >>= 4) out[i] = "0123456789abcdef"[sum & 15];
}
