/* Random programs (program.h), run in the plain way and in the way that their bytes say: values and gradients are
 * the same, and nothing is leaked. The plain gradient is compared with forward mode, which goes through the
 * same nodes in the other direction, and, if the bytes ask for it, with finite differences of the plain run. */
#include <tapegrad/derivatives.h>
#include <tapegrad/gradcheck.h>

#include "program.h"

enum { MOST_LEAVES = CALLS * TG_SAMPLE_INPUTS };

const char *const fuzz_words[] = {NULL};

/* A seed is a program drawn at random. */
size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    uint64_t state = (uint64_t)i + 1;
    size_t n = 4 + 12 * (1 + (size_t)i % CALLS);
    if (i >= 100 || n > max) return 0;
    for (size_t k = 0; k < n; k++) out[k] = (uint8_t)fuzz_random(&state);
    return n;
}

/* Mutates the calls of 12 bytes after a head of 4: moves, doubles or drops one, or changes a byte. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    size_t n = size >= 4 ? (size - 4) / 12 : 0, a = 4 + 12 * fuzz_below(&state, n), b = 4 + 12 * fuzz_below(&state, n);
    uint8_t one[12];
    if (n < 2 || !fuzz_below(&state, 8)) return fuzz_mutate(data, size, max, &state);
    switch (fuzz_below(&state, 8)) {
    case 0: /* moves to another place */
        memcpy(one, data + a, 12);
        memmove(data + a, data + b, 12);
        memcpy(data + b, one, 12);
        return size;
    case 1: /* is removed */
        memmove(data + a, data + a + 12, size - a - 12);
        return size - 12;
    case 2: /* is inserted: a copy or a new one */
        if (size + 12 > max || n >= CALLS) return size;
        memcpy(one, data + b, 12);
        for (int k = 0; k < 12 && fuzz_below(&state, 2); k++)
            one[fuzz_below(&state, 12)] = (uint8_t)fuzz_random(&state);
        memmove(data + a + 12, data + a, size - a);
        memcpy(data + a, one, 12);
        return size + 12;
    case 3:
        data[fuzz_below(&state, 4)] ^= (uint8_t)(1 << fuzz_below(&state, 8));
        return size;
    case 4: /* changes its op */
        data[a + 1] = (uint8_t)fuzz_random(&state);
        data[a + 2] = (uint8_t)fuzz_random(&state);
        return size;
    case 5:
        return LLVMFuzzerMutate(data, size, max);
    default:
        data[a + fuzz_below(&state, 12)] = (uint8_t)fuzz_random(&state);
        return size;
    }
}

/* ---- Results of the plain run ---- */

typedef struct reference {
    program p;
    run r;
    tg_tensor *leaf[MOST_LEAVES];
    int n_leaves;
    double *grad[MOST_LEAVES]; /* NULL: none */
    double *value[LEAVES];     /* values of sinks */
    double largest;            /* of the gradients */
    bool finite;               /* all finite, and none so large that rounding matters */
} reference;

static double *read_all(tg_tensor *x) {
    int64_t n = tg_numel(x);
    double *v = malloc((size_t)n * sizeof *v + 1);
    tg_read_f64(x, v, n);
    return v;
}

static void restart(tg_ctx *ctx, const program *p) {
    tg_rng rng = {.seed = p->seed};
    tg_rng_set(ctx, NULL, &rng);
}

/* Returns the sum of all sinks times their cotangents. */
static tg_tensor *total(run *r, tg_tape *t) {
    tg_tensor *sum = NULL;
    for (int k = 0; k < r->p->n_sinks; k++) {
        tg_tensor *x = r->value[r->p->sink[k]], *g = cotangent(r->ctx, x, k);
        tg_tensor *y = tg_dot(t, tg_reshape(t, x, TG_SHAPE(-1)), tg_reshape(t, g, TG_SHAPE(-1)));
        sum = sum ? tg_add(t, sum, y) : y;
        tg_drop(g);
    }
    return sum;
}

static void must_be_well(tg_ctx *ctx, const char *what) {
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "%s: %s: %s", what, tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx));
}

/* Directions of all leaves, and their images in forward mode. */
static double forward_mode(reference *f, tg_tensor *root, double *const *direction) {
    tg_tensor *din[MOST_LEAVES], *leaf[MOST_LEAVES], *dout = NULL;
    int n = 0;
    for (int k = 0; k < f->n_leaves; k++) {
        leaf[n] = f->leaf[k];
        din[n] = tg_zeros(f->r.ctx, tg_dtype_of(leaf[n]), tg_shape_of(leaf[n]));
        tg_write_f64(din[n], direction[k], tg_numel(leaf[n]));
        n++;
    }
    tg_jvp(f->r.tape, &root, 1, leaf, n, din, &dout);
    must_be_well(f->r.ctx, "forward mode");
    double v = tg_item(dout);
    for (int k = 0; k < n; k++) tg_drop(din[k]);
    return v;
}

static void check_forward(reference *f, tg_tensor *root) {
    double *direction[MOST_LEAVES], dot = 0, size = 0;
    uint64_t state = f->p.seed;
    for (int k = 0; k < f->n_leaves; k++) {
        int64_t n = tg_numel(f->leaf[k]);
        direction[k] = malloc((size_t)n * sizeof **direction + 1);
        for (int64_t i = 0; i < n; i++) direction[k][i] = fuzz_random(&state) >> 63 ? 1 : -1;
    }
    double got = forward_mode(f, root, direction);
    tg_backward_with(f->r.tape, &root, 1, TG_BACKWARD(.retain = true));
    must_be_well(f->r.ctx, "backward");
    for (int k = 0; k < f->n_leaves; k++) {
        double *g = tg_has_grad(f->leaf[k]) ? read_all(tg_grad_of(f->leaf[k])) : NULL;
        for (int64_t i = 0; g && i < tg_numel(f->leaf[k]); i++) {
            dot += g[i] * direction[k][i];
            size += fabs(g[i]);
        }
        free(g);
        free(direction[k]);
        tg_zero_grad(f->leaf[k]);
    }
    fuzz_must(!f->finite || !isfinite(dot + got) || fabs(dot - got) <= 1e-6 * (1 + size),
              "forward mode gives %.15g, backward %.15g", got, dot);
}

/* With larger values rounding may decide the result: attention exponentiates products of values. */
static double largest_value(const program *p) {
    for (int i = 0; i < p->n; i++)
        if (p->call[i].kind == CALL_OP && !strcmp(p->call[i].op->name, "attention")) return 1e2;
    return 1e4;
}

static void take_values(reference *f) {
    double most = largest_value(&f->p);
    f->finite = true;
    for (int k = 0; k < f->p.n_sinks; k++) f->value[k] = read_all(f->r.value[f->p.sink[k]]);
    for (int k = 0; k < LEAVES; k++) {
        double *v = f->r.value[k] ? read_all(f->r.value[k]) : NULL;
        for (int64_t i = 0; v && i < tg_numel(f->r.value[k]); i++) f->finite &= fabs(v[i]) <= most;
        free(v);
    }
}

static void take_gradients(reference *f) {
    for (int k = 0; k < f->n_leaves; k++) {
        if (!tg_has_grad(f->leaf[k])) continue;
        f->grad[k] = read_all(tg_grad_of(f->leaf[k]));
        for (int64_t i = 0; i < tg_numel(f->leaf[k]); i++) {
            f->finite &= (bool)isfinite(f->grad[k][i]);
            f->largest = fmax(f->largest, fabs(f->grad[k][i]));
        }
    }
}

/* ---- Finite differences of the plain run ---- */

static int64_t differences_of(const reference *f) {
    int64_t n = 0;
    for (int k = 0; k < f->n_leaves; k++)
        if (tg_dtype_of(f->leaf[k]) == TG_F64) n += tg_numel(f->leaf[k]);
    return n;
}

static void move_leaves(reference *f, const double *x) {
    for (int k = 0; k < f->n_leaves; k++) {
        if (tg_dtype_of(f->leaf[k]) != TG_F64) continue;
        if (tg_numel(f->leaf[k])) tg_write_f64(f->leaf[k], x, tg_numel(f->leaf[k]));
        x += tg_numel(f->leaf[k]);
    }
}

static void plain_value(void *state, const double *x, int64_t n, double *y, int64_t m) {
    reference *f = state;
    (void)n, (void)m;
    tg_tape_reset(f->r.tape);
    restart(f->r.ctx, &f->p);
    move_leaves(f, x);
    tg_tape_set_grad_mode(f->r.tape, false);
    run_plain(&f->r, false);
    *y = tg_ctx_status(f->r.ctx) == TG_OK ? tg_item(total(&f->r, f->r.tape)) : NAN; /* outside of the domain of an op */
    tg_ctx_clear(f->r.ctx);
    tg_tape_set_grad_mode(f->r.tape, true);
}

static void plain_gradient(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    const reference *f = state;
    (void)x, (void)n, (void)m;
    for (int k = 0; k < f->n_leaves; k++) {
        if (tg_dtype_of(f->leaf[k]) != TG_F64) continue;
        for (int64_t i = 0; i < tg_numel(f->leaf[k]); i++) *gx++ = f->grad[k] ? *gy * f->grad[k][i] : 0;
    }
}

/* Elements may be equal, like repeated ones, and those of earlier results to the last bit. Then the deviation by
 * which a norm divides is only rounding. And the median of three equal elements has a smooth derivative along a
 * direction that moves two of them one way and the third the other way, which its gradient at any one of them cannot
 * express. */
static bool may_lack_slope(const program *p) {
    for (int i = 0; i < p->n; i++) {
        const call *c = &p->call[i];
        if (c->kind != CALL_OP) continue;
        const char *name = c->op->name;
        bool orders = !strcmp(name, "median") || !strcmp(name, "sort") || !strcmp(name, "topk");
        bool repeats = orders && tg_sample_at(c->op, c->sample)->input[0].layout == TG_SAMPLE_EXPANDED;
        if (repeats || (c->source[0] >= 0 && (orders || strstr(name, "norm") || strstr(name, "std")))) return true;
    }
    return false;
}

/* Compares along one direction of all leaves. If differences are inconclusive, as near a jump, nothing is compared. */
static void check_differences(reference *f) {
    int64_t n = differences_of(f);
    double *x = malloc((size_t)n * sizeof *x + 1), *at = x;
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    for (int k = 0; k < f->n_leaves; k++) {
        if (tg_dtype_of(f->leaf[k]) != TG_F64) continue;
        if (tg_numel(f->leaf[k])) tg_read_f64(f->leaf[k], at, tg_numel(f->leaf[k]));
        at += tg_numel(f->leaf[k]);
    }
    tg_status s = tg_gradcheck_fn(plain_value, plain_gradient, f, x, n, 1, &found,
                                  TG_GRADCHECK(.projections = 1, .no_extras = true, .seed = f->p.seed, .rtol = 1e-4,
                                               .atol = 1e-6 * (1 + f->largest)));
    bool wrong = s != TG_OK && !(found.cause && !strcmp(found.cause, "unknown"));
    fuzz_must(!wrong, "differences: %s", found.report);
    free(x);
}

/* ---- The program as its bytes say ---- */

/* If a program overwrites in place what a node has saved, backward refuses it. */
static bool overwrote(const run *r) {
    if (tg_ctx_status(r->ctx) != TG_ERR_VERSION || !r->bold) return false;
    tg_ctx_clear(r->ctx);
    return true;
}

static bool near(double a, double b, double size) {
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-8 * (1 + size);
}

static void compare(const reference *f, int k, tg_tensor *g, double times, const char *what) {
    double *got = g ? read_all(g) : NULL;
    char name[96];
    tg_describe(f->leaf[k], name, sizeof name);
    for (int64_t i = 0; f->finite && i < tg_numel(f->leaf[k]); i++) {
        double a = got ? got[i] : 0, b = f->grad[k] ? times * f->grad[k][i] : 0;
        fuzz_must(near(a, b, f->largest), "%s, leaf %d (%s), element %lld: %.17g, plain %.17g", what, k, name,
                  (long long)i, a, b);
    }
    free(got);
}

static void check_sinks(const reference *f, const run *r) {
    for (int k = 0; k < f->p.n_sinks && f->p.checked; k++) {
        tg_tensor *x = r->value[f->p.sink[k]];
        int64_t n = tg_numel(x);
        double *v = read_all(x), most = 0;
        if (overwrote(r)) {
            free(v);
            return;
        }
        must_be_well(r->ctx, "a sink");
        for (int64_t i = 0; i < n; i++) most = isfinite(f->value[k][i]) ? fmax(most, fabs(f->value[k][i])) : most;
        for (int64_t i = 0; f->finite && i < n; i++)
            fuzz_must(near(v[i], f->value[k][i], most), "value %d, element %lld: %.17g, plain %.17g", f->p.sink[k],
                      (long long)i, v[i], f->value[k][i]);
        free(v);
    }
}

typedef struct roots {
    int n;
    tg_tensor *root[LEAVES], *seed[LEAVES];
} roots;

static roots roots_of(const reference *f, const run *r) {
    roots o = {.n = 0};
    for (int k = 0; k < f->p.n_sinks; k++) {
        tg_tensor *x = r->value[f->p.sink[k]];
        if (!tg_requires_grad(x)) continue;
        o.root[o.n] = x;
        o.seed[o.n++] = cotangent(r->ctx, x, k);
    }
    return o;
}

/* Runs backward as the program says. Returns how many times it ran. */
static int backward(const program *p, const run *r, const roots *o) {
    int times = p->twice ? 2 : 1;
    for (int k = 0; k < times; k++) {
        bool last = k == times - 1;
        if (!p->split) {
            tg_backward_with(r->tape, o->root, o->n, TG_BACKWARD(.seeds = o->seed, .retain = !last));
            continue;
        }
        for (int i = 0; i < o->n; i++)
            tg_backward_with(r->tape, &o->root[i], 1,
                             TG_BACKWARD(.seeds = &o->seed[i], .retain = !last || i < o->n - 1));
    }
    return times;
}

static void check_backward(const reference *f, const run *r, const roots *o, tg_tensor *const *leaf) {
    int times = backward(&f->p, r, o);
    if (overwrote(r)) return;
    must_be_well(r->ctx, "backward of the program");
    for (int k = 0; k < f->n_leaves; k++)
        compare(f, k, tg_has_grad(leaf[k]) ? tg_grad_of(leaf[k]) : NULL, times, "gradient");
    must_be_well(r->ctx, "gradients of the program");
}

/* Some ops' vjp reads an input that the op need not save, such as a bias; a scope may have discarded it. */
static bool went_with_a_scope(const run *r) {
    bool scopes = false;
    for (int i = 0; i < r->p->n; i++) scopes |= r->p->call[i].segment == SEGMENT_SCOPE;
    if (tg_ctx_status(r->ctx) != TG_ERR_DISCARDED || !scopes) return false;
    tg_ctx_clear(r->ctx);
    return true;
}

/* Computes gradients as recorded tensors of the tape. */
static void check_graph(const reference *f, const run *r, const roots *o, tg_tensor *const *leaf) {
    tg_tensor *g[MOST_LEAVES];
    tg_grad(r->tape, o->root, o->n, leaf, f->n_leaves, g,
            TG_GRAD(.seeds = o->seed, .create_graph = true, .retain = f->p.twice, .allow_unused = true));
    if (overwrote(r) || went_with_a_scope(r)) return;
    must_be_well(r->ctx, "recorded gradients");
    for (int k = 0; k < f->n_leaves; k++) compare(f, k, g[k], 1, "recorded gradient");
    must_be_well(r->ctx, "recorded gradients");
}

/* ---- Packing ---- */

typedef struct packed {
    int64_t n;
    double v[];
} packed;

static tg_status pack(void *user, tg_tape *t, tg_tensor *x, void **out) {
    (void)user, (void)t;
    if (tg_dtype_of(x) != TG_F64) return TG_OK;
    packed *p = malloc(sizeof *p + (size_t)tg_numel(x) * sizeof *p->v);
    p->n = tg_numel(x);
    *out = p;
    return tg_read_f64(x, p->v, p->n);
}

static tg_status unpack(void *user, void *from, tg_tensor *x) {
    const packed *p = from;
    (void)user;
    return tg_write_f64(x, p->v, p->n);
}

static void unpacked(void *user, void *p) {
    (void)user;
    free(p);
}

/* ---- One program ---- */

static void run_program(reference *f, tg_ctx *ctx, tg_tape *t) {
    run r;
    tg_tensor *leaf[MOST_LEAVES];
    run_open(&r, &f->p, ctx, false);
    r.tape = t;
    int n = run_leaves(&r, leaf);
    fuzz_must(n == f->n_leaves, "%d leaves, plain %d", n, f->n_leaves);
    for (int step = 0; step < (f->p.again ? 2 : 1); step++) {
        restart(ctx, &f->p);
        if (f->p.packed) tg_tape_pack(t, TG_PACK_OPS(.pack = pack, .unpack = unpack, .drop = unpacked));
        run_fancy(&r);
        must_be_well(ctx, "the program");
        check_sinks(f, &r);
        roots o = roots_of(f, &r);
        if (o.n && f->p.graph) check_graph(f, &r, &o, leaf);
        if (o.n && !f->p.graph) check_backward(f, &r, &o, leaf);
        for (int k = 0; k < o.n; k++) tg_drop(o.seed[k]);
        tg_tape_pack(t, NULL);
        tg_tape_reset(t);
        for (int k = 0; k < n; k++) tg_zero_grad(leaf[k]);
    }
    run_close(&r);
}

static void run_reference(reference *f, tg_ctx *ctx, tg_tape *t) {
    run_open(&f->r, &f->p, ctx, true);
    f->r.tape = t;
    f->n_leaves = run_leaves(&f->r, f->leaf);
    restart(ctx, &f->p);
    run_plain(&f->r, true);
    if (getenv("TG_FUZZ_PRINT")) program_print(&f->p, stderr);
    tg_tensor *root = total(&f->r, t);
    take_values(f);
    if (root && tg_requires_grad(root)) {
        if (f->p.forward) check_forward(f, root);
        tg_backward(t, root);
    }
    must_be_well(ctx, "the plain route");
    take_gradients(f);
    if (root && tg_requires_grad(root) && f->finite && f->p.differences && !may_lack_slope(&f->p))
        check_differences(f);
    tg_tape_reset(t);
}

static void close_reference(reference *f) {
    run_close(&f->r);
    for (int k = 0; k < f->n_leaves; k++) free(f->grad[k]);
    for (int k = 0; k < f->p.n_sinks; k++) free(f->value[k]);
}

/* A context and its tape, shared by all programs. live: bytes that it has between programs. */
typedef struct place {
    tg_ctx *ctx;
    tg_tape *tape;
    int64_t live;
} place;

static int64_t live_of(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

static place *place_of(place *at, bool check) {
    if (at->ctx) return at;
    at->ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .check = check));
    at->tape = tg_tape_new(at->ctx);
    at->live = live_of(at->ctx);
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static place places[3];
    reference f = {.largest = 0};
    if (!program_decode(&f.p, data, size)) return 0;
    place *plain = place_of(&places[0], false), *own = place_of(&places[1 + f.p.checked], f.p.checked);
    run_reference(&f, plain->ctx, plain->tape);
    run_program(&f, own->ctx, own->tape);
    close_reference(&f);
    for (size_t k = 0; k < COUNT(places); k++)
        fuzz_must(!places[k].ctx || live_of(places[k].ctx) == places[k].live, "%lld bytes are left",
                  (long long)(live_of(places[k].ctx) - places[k].live));
    return 0;
}
