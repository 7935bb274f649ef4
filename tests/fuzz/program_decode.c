/* Decoding of bytes into a program: a head of 4 bytes, then 12 for each call. */
#include "program.h"

enum { HEAD = 4, CALL = 12, MOST_CASES = 4096 };

typedef struct sample_of {
    const tg_op *op;
    int sample;
} sample_of;

static sample_of cases[MOST_CASES];
static size_t n_cases;

static bool fits(const tg_op *op, const tg_sample *s) {
    if (s->bench || s->slow || s->ranks > 1 || !strcmp(op->name, "assume_placement")) return false;
    for (int i = 0; i < s->n_in; i++) {
        int64_t n = 1;
        for (int d = 0; d < s->input[i].shape.ndim; d++) n *= s->input[i].shape.dim[d];
        if (n > LARGEST_INPUT) return false;
    }
    return true;
}

static void find_cases(void) {
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        for (int k = 0; k < op->n_samples && n_cases < MOST_CASES; k++)
            if (fits(op, tg_sample_at(op, k))) cases[n_cases++] = (sample_of){op, k};
    }
}

static call_kind kind_of(uint8_t byte) {
    return byte < 160 || byte >= 232 ? CALL_OP : byte < 200 ? CALL_VIEW : byte < 225 ? CALL_INPLACE : CALL_DETACH;
}

static void decode_call(call *c, const uint8_t *b, int i, int n) {
    static const segment_kind kinds[8] = {SEGMENT_SCOPE, SEGMENT_RECOMPUTE, SEGMENT_REPLAY, SEGMENT_DISCARD};
    sample_of s = cases[(b[1] | b[2] << 8) % n_cases];
    int length = 1 + (b[7] >> 3) % 8;
    *c = (call){.kind = kind_of(b[0]), .op = s.op, .sample = s.sample, .raw = b[6] % 8 == 0, .untamed = b[6] & 8,
                .no_grad = b[6] >> 4 == 0, .choice = {b[3], b[4], b[5]}, .arg = {b[8], b[9], b[10], b[11]},
                .segment = kinds[b[7] % 8], .until = i + length < n ? i + length : n};
}

bool program_decode(program *p, const uint8_t *data, size_t size) {
    if (!n_cases) find_cases();
    if (size < HEAD + CALL) return false;
    size_t n = (size - HEAD) / CALL;
    *p = (program){.n = n < CALLS ? (int)n : CALLS, .seed = 1 + data[0] * 16u};
    p->twice = data[1] & 1;
    p->graph = (data[1] & 6) == 6;
    p->split = data[1] & 8;
    p->packed = data[1] & 16;
    p->forward = data[1] & 32;
    p->checked = data[1] & 64;
    p->again = (data[1] & 128) != 0;
    p->differences = data[2] % 4 == 0;
    for (int i = 0; i < p->n; i++) {
        const call *c = &p->call[i];
        decode_call(&p->call[i], data + HEAD + CALL * i, i, p->n);
        /* finite differences do not see a detach */
        bool cuts = c->no_grad || c->kind == CALL_DETACH || (c->kind == CALL_OP && !strcmp(c->op->name, "detach"));
        if (cuts) p->differences = false;
    }
    return true;
}

void program_print(const program *p, FILE *out) {
    static const char *const kinds[] = {"", "view", "in place", "detach"};
    static const char *const segments[] = {"", " scope", " recompute", " replay", " discard"};
    fprintf(out, "seed %d%s%s%s%s%s%s%s%s\n", (int)p->seed, p->twice ? " twice" : "", p->graph ? " graph" : "",
            p->split ? " split" : "", p->packed ? " packed" : "", p->forward ? " forward" : "",
            p->checked ? " checked" : "", p->again ? " again" : "", p->differences ? " differences" : "");
    for (int i = 0; i < p->n; i++) {
        const call *c = &p->call[i];
        const tg_sample *s = tg_sample_at(c->op, c->sample);
        fprintf(out, "%2d %s", i, c->kind == CALL_OP ? c->op->name : kinds[c->kind]);
        if (c->kind == CALL_OP) fprintf(out, " (sample %d: %s)", c->sample, s->note ? s->note : "");
        else fprintf(out, " (%d %d %d %d)", c->arg[0], c->arg[1], c->arg[2], c->arg[3]);
        for (int j = 0; j < (c->kind == CALL_OP ? s->n_in : 2); j++) fprintf(out, " %d", c->source[j]);
        fprintf(out, "%s%s%s %s", c->raw ? " raw" : "", c->untamed ? " untamed" : "", c->no_grad ? " no grad" : "",
                c->refused ? tg_status_name(c->refused) : "");
        if (c->segment) fprintf(out, "%s to %d", segments[c->segment], c->until - 1);
        fputc('\n', out);
    }
    for (int k = 0; k < p->n_sinks; k++) fprintf(out, "sink %d\n", p->sink[k]);
}
