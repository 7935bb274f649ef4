/* Shared by the programs that run over the op table: the loop over its samples, one run of a sample with results and
 * gradients as doubles, and the count of verdicts. */
#ifndef TG_TEST_REGISTRY_H
#define TG_TEST_REGISTRY_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>

#include "catalog/samples.h"

/* ---- Verdicts ---- */

typedef struct tally {
    int passed, failed;
} tally;

static inline bool verdict(tally *t, bool ok, const tg_op *op, const tg_sample *s, const char *format, ...)
    TG_PRINTF(5, 6);
static inline bool verdict(tally *t, bool ok, const tg_op *op, const tg_sample *s, const char *format, ...) {
    *(ok ? &t->passed : &t->failed) += 1;
    if (ok) return true;
    va_list ap;
    va_start(ap, format);
    printf("FAIL %s (%s): ", op->name, s && s->note ? s->note : "");
    vprintf(format, ap);
    puts("");
    va_end(ap);
    return false;
}

/* Prints the counts. Returns the status of the program; it has failed too if it has checked nothing. */
static inline int conclude(const tally *t) {
    if (!t->passed && !t->failed) puts("FAIL: nothing was checked; is there an op of the name that was given?");
    printf("%d passed, %d failed\n", t->passed, t->failed);
    return t->failed || !t->passed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- The table ---- */

/* argv[1], if given, is the only op to run. A quick run takes half of the ops, in turn, or the part that the program
 * says, and a sixth on other devices than the CPU, because sanitizers are slow. */
#ifndef QUICK_PART
#define QUICK_PART 2
#endif
static inline bool chosen(const tg_op *op, int argc, char **argv) {
    const char *turn = getenv("TG_TEST_TURN");
    unsigned long side = turn ? strtoul(turn, NULL, 10) : 0;
    if (argc >= 2) return !strcmp(op->name, argv[1]);
    for (const char *c = op->name; *c; c++) side += (unsigned char)*c;
    return !getenv("TG_TEST_QUICK") || side % (getenv("TG_TEST_DEVICE") ? 6 : QUICK_PART) == 1;
}

/* Returns whether piece i of a program's work is done. If TG_TEST_SHARE_name=N is set for the program of that name,
 * every N-th piece is, and TG_TEST_TURN chooses which. Otherwise all are. */
static inline bool in_share(const char *name, uint64_t i) {
    char of[64];
    snprintf(of, sizeof of, "TG_TEST_SHARE_%s", name);
    const char *share = getenv(of), *turn = getenv("TG_TEST_TURN");
    return !share || (i + strtoull(turn ? turn : "0", NULL, 10)) % strtoull(share, NULL, 10) == 0;
}

/* The long suite includes slow samples. Programs in tests/parallel run those of several ranks. */
static inline bool small(const tg_sample *s) { return !s->bench && s->ranks <= 1 && (!s->slow || getenv("TG_LONG")); }

/* Along how many directions the derivatives of a large sample are compared (tg_gradcheck_opts). */
enum { DIRECTIONS = 32 };

/* Returns whether a sample has so many elements that to change each of them would take too long. */
static inline bool is_large(const tg_sample *s) {
    enum { MANY = 1000 };
    int64_t elements = 0;
    for (int k = 0; k < s->n_in; k++) {
        int64_t n = s->input[k].kind == TG_SAMPLE_FLOAT;
        for (int d = 0; d < s->input[k].shape.ndim; d++) n *= s->input[k].shape.dim[d];
        elements += n;
    }
    return s->slow && elements > MANY;
}

/* ---- One run ---- */

typedef struct values {
    double *at;
    int64_t n;
    tg_dtype dtype;
    tg_shape shape;
} values;

typedef struct outcome {
    int n_out;
    values out[TG_CASE_OUTPUTS];
    values grad[TG_SAMPLE_INPUTS]; /* NULL if the input has none */
} outcome;

static inline void outcome_free(outcome *o) {
    for (int i = 0; i < TG_CASE_OUTPUTS; i++) free(o->out[i].at);
    for (int i = 0; i < TG_SAMPLE_INPUTS; i++) free(o->grad[i].at);
    *o = (outcome){0};
}

static inline values read_values(tg_tensor *x) {
    values v = {.n = tg_numel(x), .dtype = tg_dtype_of(x), .shape = tg_shape_of(x)};
    v.at = malloc((size_t)v.n * sizeof *v.at + 1);
    tg_read_f64(x, v.at, v.n);
    return v;
}

/* Returns number k of the cotangents: a sum of few powers of two, which is exact in every dtype. */
static inline double cotangent(int64_t k) { return (double)((k * 37 + 11) % 31 - 15) / 8; }

static inline tg_tensor *make_seed(tg_ctx *ctx, const tg_tensor *like, double scale) {
    tg_tensor *seed = tg_zeros(ctx, tg_dtype_of(like), tg_shape_of(like));
    int64_t n = tg_numel(like);
    double *v = malloc((size_t)n * sizeof *v + 1);
    for (int64_t i = 0; i < n; i++) v[i] = scale * cotangent(i);
    if (n) tg_write_f64(seed, v, n);
    free(v);
    return seed;
}

static inline int count_out(const tg_case *c, tg_tensor *const *out) {
    int n = 0;
    while (n < c->n_out && out[n]) n++;
    return n;
}

/* Lists the outputs from which a backward can start, each with a cotangent of the context. */
static inline int seed_all(tg_case *c, tg_tensor *const *out, int n_out, tg_tensor **roots, tg_tensor **seeds) {
    int n = 0;
    for (int i = 0; i < n_out; i++) {
        if (!tg_requires_grad(out[i])) continue;
        roots[n] = out[i];
        seeds[n++] = make_seed(c->ctx, out[i], 1);
    }
    return n;
}

static inline void drop_all(tg_tensor **x, int n) {
    for (int i = 0; i < n; i++) tg_drop(x[i]);
}

/* Runs forward and backward of one sample. */
static inline tg_status run_sample(tg_ctx *ctx, const tg_op *op, int i, const tg_case_opts *opts, outcome *o) {
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS], *roots[TG_CASE_OUTPUTS], *seeds[TG_CASE_OUTPUTS];
    tg_rng rng = {.seed = 7};
    *o = (outcome){0};
    tg_rng_set(ctx, NULL, &rng);
    if (tg_case_open(&c, ctx, op, i, opts) != TG_OK) return tg_ctx_status(ctx);
    tg_tape *t = tg_tape_new(ctx);
    tg_case_run(&c, t, c.input, c.n_in, out, c.n_out);
    if (tg_ctx_status(ctx) == TG_OK) {
        o->n_out = count_out(&c, out);
        for (int k = 0; k < o->n_out; k++) o->out[k] = read_values(out[k]);
        int n = seed_all(&c, out, o->n_out, roots, seeds);
        if (n) tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds));
        for (int k = 0; n && k < c.n_in; k++)
            if (tg_requires_grad(c.input[k]) &&
                tg_has_grad(c.input[k])) o->grad[k] = read_values(tg_grad_of(c.input[k]));
        drop_all(seeds, n);
    }
    tg_tape_free(t);
    tg_case_close(&c);
    return tg_ctx_status(ctx);
}

/* ---- Comparison ---- */

static inline double largest(const values *v) {
    double most = 0;
    for (int64_t i = 0; i < v->n; i++)
        if (fabs(v->at[i]) > most && isfinite(v->at[i])) most = fabs(v->at[i]);
    return most;
}

/* Tolerance between two results: tol times the largest element or `floor`, whichever is larger, plus what the
 * condition of the sample adds. If all are 0 the bits must be equal. */
typedef struct margin {
    double tol, floor;
    double out[TG_CASE_OUTPUTS], grad[TG_SAMPLE_INPUTS];
} margin;

static inline bool agrees(double a, double b, double within) {
    if (!memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b))) return true;
    return within > 0 && (a == b || fabs(a - b) <= within);
}

/* Returns the first element that differs, or -1; 0 if even the shapes differ. */
static inline int64_t first_difference(const values *a, const values *b, double within) {
    if (a->n != b->n || !a->at != !b->at || memcmp(&a->shape, &b->shape, sizeof a->shape)) return 0;
    for (int64_t i = 0; a->at && i < a->n; i++)
        if (!agrees(a->at[i], b->at[i], within)) return i;
    return -1;
}

static inline bool agree_one(tally *t, const tg_op *op, const tg_sample *s, const values *a, const values *b,
                             double within, const char *what, const char *kind, int which) {
    int64_t at = first_difference(a, b, within);
    bool there = at >= 0 && a->at && b->at && at < a->n && at < b->n;
    return verdict(t, at < 0, op, s, "%s: %s %d differs at %lld: %.9g, expected %.9g within %.3g", what, kind, which,
                   (long long)at, there ? a->at[at] : NAN, there ? b->at[at] : NAN, within);
}

/* Compares all results and gradients. */
static inline void agree(tally *t, const tg_op *op, const tg_sample *s, const outcome *a, const outcome *b,
                         const margin *m, const char *what) {
    if (!verdict(t, a->n_out == b->n_out, op, s, "%s: %d outputs, expected %d", what, a->n_out, b->n_out)) return;
    bool ok = true;
    for (int i = 0; i < a->n_out && ok; i++)
        ok = agree_one(t, op, s, &a->out[i], &b->out[i], m->tol * fmax(m->floor, largest(&b->out[i])) + m->out[i], what,
                       "output", i);
    for (int i = 0; i < TG_SAMPLE_INPUTS && ok; i++)
        if (a->grad[i].at || b->grad[i].at)
            ok = agree_one(t, op, s, &a->grad[i], &b->grad[i],
                           m->tol * fmax(m->floor, largest(&b->grad[i])) + m->grad[i], what, "gradient", i);
}

#endif
