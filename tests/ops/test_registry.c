/* Every op of the table on each of its samples, in float64: refused or correct, its gradient checked by finite
 * differences. Its backward is run over memory of NaN, adding, and with cotangents of any layout; its memory is
 * compared with device meta's; and its node's parameters must describe the call completely. */
#include "ops/registry.h"

#include <tapegrad/backward.h>

#include "gradcheck/gradcheck.h"
#include "ops/common/derive.h"

/* ---- Samples that must be refused ---- */

typedef struct state {
    int64_t live, nodes;
    tg_rng rng;
} state;

static state look(tg_ctx *ctx, tg_tape *t) {
    state s = {0};
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    s.live = m.live;
    s.nodes = tg_tape_nodes(t);
    tg_rng_get(ctx, NULL, &s.rng);
    return s;
}

/* Checks that the error is the expected one and names the op, and that nothing is left of the call. */
static void check_refused(tally *y, tg_ctx *ctx, const tg_op *op, int i, tg_dtype dtype) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL}, *given[TG_SAMPLE_INPUTS] = {NULL};
    tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = dtype, .seed = 1});
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, dtype, TG_SHAPE(2));
    tg_set_requires_grad(x, true);
    tg_neg(t, x);
    for (int k = 0; k < c.n_in; k++) given[k] = c.input[k];
    state before = look(ctx, t);
    tg_status got = tg_apply(t, op, s->params, given, c.n_in, out, c.n_out, NULL, NULL, TG_SITE);
    bool later = s->refused == TG_ERR_DATA && tg_ctx_ops(ctx)->poll; /* the device reports it at a later wait */
    if (later && got == TG_OK) {
        tg_status found = tg_ctx_ops(ctx)->sync(ctx);
        verdict(y, found == TG_ERR_DATA && strstr(tg_ctx_message(ctx), op->name), op, s,
                "%s, expected TG_ERR_DATA: \"%s\"", tg_status_name(found), tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_tape_free(t);
        tg_drop(x);
        tg_case_close(&c);
        return;
    }
    verdict(y, got == s->refused && tg_ctx_status(ctx) == got, op, s, "%s, expected %s: \"%s\"", tg_status_name(got),
            tg_status_name(s->refused), tg_ctx_message(ctx));
    bool named = strstr(tg_ctx_message(ctx), op->name) != NULL;
    verdict(y, got == TG_OK || named, op, s, "the message does not name the op: \"%s\"", tg_ctx_message(ctx));
    bool inert = true;
    for (int k = 0; got != TG_OK && k < c.n_out; k++) inert &= out[k] && !tg_is_alive(out[k]);
    verdict(y, inert, op, s, "an output of a refused call is alive");
    tg_ctx_clear(ctx);
    state after = look(ctx, t);
    verdict(y, got == TG_OK || !memcmp(&before, &after, sizeof before), op, s,
            "not freed: %lld bytes, %lld nodes, %lld draws", (long long)(after.live - before.live),
            (long long)(after.nodes - before.nodes), (long long)(after.rng.counter - before.rng.counter));
    verdict(y, tg_is_alive(tg_neg(t, x)), op, s, "the tape cannot be used after tg_ctx_clear: %s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_drop(x);
    tg_case_close(&c);
    tg_ctx_clear(ctx);
}

/* ---- Gradients and finite differences ---- */

static void check_gradient(tally *y, tg_ctx *ctx, const tg_op *op, int i, int64_t *elements) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    /* In a kinked sample every direction leads over some kink, so it is compared element by element. */
    int directions = is_large(s) && !s->kinked ? DIRECTIONS : 0;
    tg_status status = tg_gradcheck_op(ctx, op, i, &r, TG_GRADCHECK(.projections = directions));
    verdict(y, status == TG_OK, op, s, "%s", r.failed ? r.report : tg_ctx_message(ctx));
    verdict(y, status != TG_OK || r.worst <= 1, op, s,
            "off by %.3g tolerances, within the error estimate of the differences", r.worst);
    verdict(y, !r.kinks || s->kinked, op, s, "%lld kinks in a sample that should have none", (long long)r.kinks);
    verdict(y, !r.unsure, op, s, "%s", r.report);
    *elements += r.checked;
    tg_ctx_clear(ctx);
}

/* ---- Writes of forward ---- */

static bool names_as_written(const tg_op *op, int k) {
    return (op->inplace && k == 0) || op->writes >> (k < 31 ? k : 31) & 1;
}

/* Forward changes only inputs that the op names, and updates their versions. Counts the changed inputs. */
static void check_writes(tally *y, tg_ctx *ctx, const tg_op *op, int i, int *changed) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL}, *given[TG_SAMPLE_INPUTS] = {NULL};
    uint64_t hash[TG_SAMPLE_INPUTS], now;
    uint32_t version[TG_SAMPLE_INPUTS];
    tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 1});
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_set_grad_mode(t, false); /* without gradients, ops in place accept leaves */
    tg_status status = tg_ctx_status(ctx);
    for (int k = 0; k < c.n_in && status == TG_OK; k++) {
        given[k] = c.input[k];
        if (!given[k]) continue;
        version[k] = given[k]->storage->version;
        status = tg_check_hash(given[k], &hash[k]);
    }
    if (status == TG_OK) status = tg_apply(t, op, s->params, given, c.n_in, out, c.n_out, NULL, NULL, TG_SITE);
    verdict(y, status == TG_OK, op, s, "%s", tg_ctx_message(ctx));
    for (int k = 0; k < c.n_in && status == TG_OK; k++) {
        if (!given[k] || tg_check_hash(given[k], &now) != TG_OK) continue;
        bool differs = now != hash[k], reported = given[k]->storage->version != version[k];
        *changed += differs && op->writes;
        verdict(y, !differs || (reported && (s->aliases || names_as_written(op, k))), op, s,
                "forward changes input %d%s", k, reported ? "" : ", and leaves its version");
    }
    tg_tape_free(t);
    tg_case_close(&c);
    tg_ctx_clear(ctx);
}

/* ---- Destinations of gradients ---- */

typedef enum route {
    ROUTE_LEAF,     /* directly into the leaf's buffer */
    ROUTE_SLOT,     /* inputs are results: into new memory, which is NaN in check mode */
    ROUTE_SLOT_ADD, /* the same, added to the contribution of a later op */
} route;

typedef enum seed_layout { SEED_ROWS, SEED_STRIDED, SEED_TRANSPOSED, SEED_EXPANDED, SEED_ONES } seed_layout;

/* Returns a cotangent in another layout. Elements of expanded ones are equal, like those of the gradient of a sum. */
static tg_tensor *seed_as(tg_tape *t, const tg_tensor *root, tg_tensor *seed, seed_layout layout) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_shape shape = tg_shape_of(root);
    int n = (int)shape.ndim;
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *g = seed;
    if (layout >= SEED_EXPANDED) {
        const double one = 1.25;
        tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(), &one);
        tg_tensor *wide = tg_expand(t, x, shape);
        g = layout == SEED_EXPANDED ? wide : tg_contiguous(t, wide);
        tg_drop(x);
    } else if (layout == SEED_TRANSPOSED && n > 1) {
        g = tg_transpose(t, tg_contiguous(t, tg_transpose(t, seed, -1, -2)), -1, -2);
    } else if (layout == SEED_STRIDED && n > 0) {
        g = tg_slice(t, tg_reshape(t, tg_stack(t, (tg_tensor *[]){seed, seed}, 2, -1), TG_SHAPE(tg_numel(seed) * 2)), 0,
                     0, INT64_MAX, 2);
        g = tg_view(t, g, shape);
    }
    tg_tape_set_grad_mode(t, grad);
    return g;
}

/* Makes every input that requires a gradient the result of an op. extra[] are ops on it that are recorded later. */
static void route_inputs(tg_tape *t, const tg_case *c, route way, tg_tensor **in) {
    for (int k = 0; k < c->n_in; k++) {
        in[k] = c->input[k];
        if (way == ROUTE_LEAF || !in[k] || !tg_requires_grad(in[k])) continue;
        in[k] = k && c->sample->aliases ? in[0] : tg_scale(t, in[k], 1);
    }
}

static int add_later_users(tg_tape *t, const tg_case *c, tg_tensor *const *in, tg_tensor **roots, tg_tensor **seeds,
                           int n) {
    for (int k = 0; k < (c->sample->aliases ? 1 : c->n_in); k++) {
        if (!in[k] || !tg_requires_grad(in[k]) || !tg_is_alive(in[k])) continue;
        roots[n] = tg_scale(t, in[k], 3);
        seeds[n] = make_seed(c->ctx, roots[n], 1);
        n++;
    }
    return n;
}

static void run_routed(tg_ctx *ctx, const tg_op *op, int i, route way, seed_layout layout, outcome *o) {
    enum { ROOTS = TG_CASE_OUTPUTS + TG_SAMPLE_INPUTS };
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS], *in[TG_SAMPLE_INPUTS], *roots[ROOTS], *seeds[ROOTS], *given[ROOTS];
    tg_rng rng = {.seed = 7};
    *o = (outcome){0};
    tg_rng_set(ctx, NULL, &rng);
    if (tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 3}) != TG_OK) return;
    tg_tape *t = tg_tape_new(ctx);
    route_inputs(t, &c, way, in);
    tg_case_run(&c, t, in, c.n_in, out, c.n_out);
    int n = tg_ctx_status(ctx) == TG_OK ? seed_all(&c, out, count_out(&c, out), roots, seeds) : 0;
    for (int k = 0; k < n; k++) given[k] = seed_as(t, roots[k], seeds[k], layout);
    int all = n && way == ROUTE_SLOT_ADD ? add_later_users(t, &c, in, roots, seeds, n) : n;
    for (int k = n; k < all; k++) given[k] = seeds[k];
    if (n) tg_backward_with(t, roots, all, TG_BACKWARD(.seeds = given));
    for (int k = 0; n && k < c.n_in; k++)
        if (tg_requires_grad(c.input[k]) && tg_has_grad(c.input[k])) o->grad[k] = read_values(tg_grad_of(c.input[k]));
    drop_all(seeds, all);
    tg_tape_free(t);
    tg_case_close(&c);
}

static void check_same(tally *y, tg_ctx *ctx, const tg_op *op, const tg_sample *s, outcome *got,
                       const outcome *expected, double tol, const char *what) {
    verdict(y, tg_ctx_status(ctx) == TG_OK, op, s, "%s: %s", what, tg_ctx_message(ctx));
    agree(y, op, s, got, expected, &(margin){.tol = tol, .floor = 1e-3}, what);
    outcome_free(got);
    tg_ctx_clear(ctx);
}

/* Adds 3 times the cotangent to the op's own gradient. */
static void add_users(outcome *o) {
    for (int k = 0; k < TG_SAMPLE_INPUTS; k++)
        for (int64_t i = 0; o->grad[k].at && i < o->grad[k].n; i++) o->grad[k].at[i] += 3 * cotangent(i);
}

static void check_routes(tally *y, tg_ctx *ctx, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    outcome leaf, ones, other;
    run_routed(ctx, op, i, ROUTE_LEAF, SEED_ROWS, &leaf);
    run_routed(ctx, op, i, ROUTE_LEAF, SEED_ONES, &ones);
    const double tol = 1e-13;
    run_routed(ctx, op, i, ROUTE_SLOT, SEED_ROWS, &other);
    check_same(y, ctx, op, s, &other, &leaf, tol, "gradient written into fresh memory");
    run_routed(ctx, op, i, ROUTE_LEAF, SEED_STRIDED, &other);
    check_same(y, ctx, op, s, &other, &leaf, tol, "strided cotangent");
    run_routed(ctx, op, i, ROUTE_LEAF, SEED_TRANSPOSED, &other);
    check_same(y, ctx, op, s, &other, &leaf, tol, "transposed cotangent");
    run_routed(ctx, op, i, ROUTE_LEAF, SEED_EXPANDED, &other);
    check_same(y, ctx, op, s, &other, &ones, tol, "expanded cotangent");
    run_routed(ctx, op, i, ROUTE_SLOT_ADD, SEED_ROWS, &other);
    add_users(&leaf);
    check_same(y, ctx, op, s, &other, &leaf, tol, "gradient added to another's");
    outcome_free(&other);
    outcome_free(&leaf);
    outcome_free(&ones);
    tg_ctx_clear(ctx);
}

/* ---- Modes of the tape ---- */

/* Without gradients the op gives the same bits and records no node; in evaluation mode it runs. */
static void check_modes(tally *y, tg_ctx *ctx, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL};
    outcome kept, bare = {0};
    const tg_case_opts o = {.dtype = TG_F64, .seed = 3};
    run_sample(ctx, op, i, &o, &kept);
    tg_rng rng = {.seed = 7};
    tg_rng_set(ctx, NULL, &rng);
    tg_case_open(&c, ctx, op, i, &o);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_set_grad_mode(t, false);
    tg_case_run(&c, t, c.input, c.n_in, out, c.n_out);
    bare.n_out = count_out(&c, out);
    for (int k = 0; k < bare.n_out; k++) bare.out[k] = read_values(out[k]);
    for (int k = 0; k < TG_SAMPLE_INPUTS; k++) {
        free(kept.grad[k].at);
        kept.grad[k].at = NULL;
    }
    verdict(y, tg_tape_nodes(t) == 0, op, s, "%lld nodes recorded without grad", (long long)tg_tape_nodes(t));
    check_same(y, ctx, op, s, &bare, &kept, 0, "without grad");
    tg_tape_set_grad_mode(t, true);
    tg_tape_set_training(t, false);
    verdict(y, tg_case_run(&c, t, c.input, c.n_in, out, c.n_out) == TG_OK, op, s, "in evaluation mode: %s",
            tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    outcome_free(&kept);
    tg_tape_free(t);
    tg_case_close(&c);
}

/* Computes the outputs with the random numbers from the start. */
static outcome results_of(tg_case *c, tg_tape *t, tg_tensor *const *in, const void *params, tg_tensor **out) {
    outcome o = {0};
    tg_rng_set(c->ctx, NULL, &(tg_rng){.seed = 7});
    if (tg_apply(t, c->op, params, in, c->n_in, out, c->n_out, NULL, NULL, TG_SITE) != TG_OK) return o;
    o.n_out = count_out(c, out);
    for (int k = 0; k < o.n_out; k++) o.out[k] = read_values(out[k]);
    return o;
}

/* The derivative of a linear op, or of one that is linear in each input, is the op itself, recorded with the params
 * as infer has completed them. */
static void check_params(tally *y, tg_ctx *ctx, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL};
    if (op->jvp != tg_jvp_linear && op->jvp != tg_jvp_multilinear) return;
    tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 3});
    tg_tape *t = tg_tape_new(ctx);
    outcome first = results_of(&c, t, c.input, s->params, out);
    const tg_node *n = NULL;
    for (int k = 0; k < first.n_out && !n; k++) n = tg_node_of(out[k]);
    if (n) {
        outcome again = results_of(&c, t, c.input, tg_node_params(n), out);
        check_same(y, ctx, op, s, &again, &first, 0, "recorded with its node's params");
    }
    outcome_free(&first);
    tg_tape_free(t);
    tg_case_close(&c);
    tg_ctx_clear(ctx);
}

/* ---- Device meta ---- */

typedef struct account {
    int n_out;
    tg_shape shape[TG_CASE_OUTPUTS];
    int64_t nodes, saved, live, gradients;
} account;

/* Nodes and bytes that a sample creates and keeps, forward and backward. */
static account account_of(tg_ctx *ctx, const tg_op *op, int i) {
    tg_case c;
    account a = {0};
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL}, *roots[TG_CASE_OUTPUTS], *seeds[TG_CASE_OUTPUTS];
    tg_memory_info m = TG_MEMORY_INFO();
    tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 3});
    tg_tape *t = tg_tape_new(ctx);
    tg_case_run(&c, t, c.input, c.n_in, out, c.n_out);
    a.n_out = count_out(&c, out);
    for (int k = 0; k < a.n_out; k++) a.shape[k] = tg_shape_of(out[k]);
    tg_memory_query(ctx, &m);
    a.nodes = tg_tape_nodes(t);
    a.saved = m.by_category[TG_MEM_SAVED];
    a.live = m.live;
    int n = 0;
    for (int k = 0; k < a.n_out; k++) {
        if (!tg_requires_grad(out[k])) continue;
        roots[n] = out[k];
        seeds[n++] = tg_zeros(ctx, tg_dtype_of(out[k]), tg_shape_of(out[k]));
    }
    if (n) tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds));
    tg_memory_query(ctx, &m);
    a.gradients = m.by_category[TG_MEM_GRADIENT];
    drop_all(seeds, n);
    tg_tape_free(t);
    tg_case_close(&c);
    return a;
}

/* Device meta has the same shapes, nodes and bytes as a real device. */
static void check_on_paper(tally *y, tg_ctx *plain, tg_ctx *paper, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    account real = account_of(plain, op, i), meta = account_of(paper, op, i);
    verdict(y, tg_ctx_status(paper) == TG_OK, op, s, "on paper: %s", tg_ctx_message(paper));
    tg_ctx_clear(plain);
    tg_ctx_clear(paper);
    verdict(y, real.n_out == meta.n_out && !memcmp(real.shape, meta.shape, sizeof real.shape), op, s,
            "on paper its outputs have other shapes");
    verdict(y, real.nodes == meta.nodes && real.saved == meta.saved && real.live == meta.live &&
                   real.gradients == meta.gradients,
            op, s, "%lld nodes, bytes saved %lld, live %lld, of gradients %lld; on paper %lld, %lld, %lld, %lld",
            (long long)real.nodes, (long long)real.saved, (long long)real.live, (long long)real.gradients,
            (long long)meta.nodes, (long long)meta.saved, (long long)meta.live, (long long)meta.gradients);
}

/* ---- The table ---- */

static void check_op(tally *y, tg_ctx *ctx, tg_ctx *plain, tg_ctx *paper, const tg_op *op) {
    int before = y->failed, samples = 0, refused = 0, changed = 0;
    int64_t elements = 0;
    verdict(y, op->n_samples >= 6, op, NULL, "%d samples, expected 6 or more", op->n_samples);
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (!small(s)) continue;
        samples++;
        if (s->refused) {
            refused++;
            check_refused(y, plain, op, i, TG_F32);
            check_refused(y, plain, op, i, TG_F64);
            continue;
        }
        check_writes(y, plain, op, i, &changed);
        check_gradient(y, ctx, op, i, &elements);
        check_routes(y, ctx, op, i);
        check_modes(y, ctx, op, i);
        check_params(y, ctx, op, i);
        check_on_paper(y, plain, paper, op, i);
    }
    verdict(y, changed || !op->writes, op, NULL, "no sample changes what the op names as written");
    printf("%-22s %3d samples (%d refused), %6lld elements: %s\n", op->name, samples, refused, (long long)elements,
           y->failed == before ? "ok" : "FAILED");
}

int main(int argc, char **argv) {
    tally y = {0};
    const char *device = getenv("TG_TEST_DEVICE"); /* NULL: the CPU */
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = device, .threads = 1, .check = true));
    tg_ctx *plain = tg_ctx_new(TG_CONFIG(.device = device, .threads = 1));
    tg_ctx *paper = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    for (int i = 0; i < tg_op_count(); i++) {
        if (!in_share("registry", (uint64_t)i) || !chosen(tg_op_at(i), argc, argv)) continue;
        check_op(&y, ctx, plain, paper, tg_op_at(i));
    }
    tg_ctx_free(ctx);
    tg_ctx_free(plain);
    tg_ctx_free(paper);
    return conclude(&y);
}
