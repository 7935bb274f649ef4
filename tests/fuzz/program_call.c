/* One call of a program: which inputs the op gets, and how it is called. */
#include "program.h"

/* ---- From one shape and domain to another ---- */

static int64_t numel_of(const tg_shape *s) {
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++) n *= s->dim[d];
    return n;
}

/* Returns the first `need` elements of x in order, repeated if there are fewer. */
static tg_tensor *resize(tg_tape *t, tg_tensor *x, int64_t need) {
    int64_t n = tg_numel(x);
    x = tg_reshape(t, x, TG_SHAPE(n));
    if (n < need) x = tg_repeat(t, x, 0, (need + n - 1) / n);
    return tg_numel(x) == need ? x : tg_slice(t, x, 0, 0, need, 1);
}

/* Maps smoothly into the domain, so that chains of ops stay in range. */
static tg_tensor *tame(tg_tape *t, tg_tensor *x, double lo, double hi) {
    if (lo == 0 && hi == 0) return tg_scale(t, tg_tanh(t, x), 1.5);
    return tg_add_scalar(t, tg_scale(t, tg_sigmoid(t, x), 0.96 * (hi - lo)), lo + 0.02 * (hi - lo));
}

static tg_tensor *fit(const run *r, tg_tape *t, tg_tensor *x, const tg_shape *shape, double lo, double hi,
                      bool untamed) {
    if (r->plain) x = tg_contiguous(t, x);
    tg_tensor *y = tg_reshape(t, resize(t, x, numel_of(shape)), *shape);
    return untamed && lo == 0 && hi == 0 ? y : tame(t, y, lo, hi);
}

/* ---- Values ---- */

static tg_tensor *value_at(const run *r, tg_tensor *const *v, int k) {
    if (k < LEAVES) return v[k];
    k -= LEAVES;
    return r->c[k / TG_SAMPLE_INPUTS].input[k % TG_SAMPLE_INPUTS];
}

/* Lists the values that call i may use, the latest first. */
static int usable(const run *r, int i, bool leaves, int *out) {
    const program *p = r->p;
    int n = 0;
    for (int k = i * RESULTS - 1; k >= 0; k--)
        if (r->value[k] && !p->overwritten[k]) out[n++] = k;
    for (int k = LEAVES; leaves && k < LEAVES + i * TG_SAMPLE_INPUTS; k++) {
        const tg_tensor *x = value_at(r, r->value, k);
        int j = (k - LEAVES) % TG_SAMPLE_INPUTS;
        bool twin = x && j > 0 && r->c[(k - LEAVES) / TG_SAMPLE_INPUTS].sample->aliases;
        if (x && !twin && tg_requires_grad(x) && tg_dtype_of(x) == TG_F64 && tg_numel(x) > 0) out[n++] = k;
    }
    return n;
}

/* Returns the value that a byte chooses; -1: the sample's own input. */
static int choose(const run *r, int i, uint8_t byte, bool own) {
    int from[VALUES], n = usable(r, i, own, from);
    if (!n || (own && byte < 96)) return -1;
    return from[byte % n];
}

/* In the first run, decides which values call i takes. */
static void decide(run *r, int i) {
    call *c = &r->p->call[i];
    const tg_sample *s = c->kind == CALL_OP ? r->c[i].sample : NULL;
    for (int j = 0; j < TG_SAMPLE_INPUTS; j++) c->source[j] = -1;
    if (s) {
        for (int j = 0; j < s->n_in; j++) {
            const tg_sample_input *in = &s->input[j];
            /* A recomputed function must not read elsewhere what it updates, such as running statistics. */
            bool moved = c->op->writes >> j & 1;
            bool may = in->kind == TG_SAMPLE_FLOAT && !in->frozen && (!in->dtype || in->dtype == TG_F64) && !moved;
            int k = may && (j == 0 || !s->aliases) ? choose(r, i, c->choice[j % 3], true) : -1;
            bool empty = k >= 0 && !c->raw && numel_of(&in->shape) == 0;
            bool large = k >= 0 && c->raw && tg_numel(value_at(r, r->value, k)) > LARGEST_RAW;
            c->source[j] = empty || large ? -1 : k;
        }
    } else {
        c->source[0] = choose(r, i, c->choice[0], false);
        if (c->kind == CALL_INPLACE && c->arg[0] % 5 != 3) c->source[1] = choose(r, i, c->choice[1], false);
    }
    for (int j = 0; j < TG_SAMPLE_INPUTS; j++)
        if (c->source[j] >= 0) r->p->last_use[c->source[j]] = i;
    if (c->kind == CALL_INPLACE && c->source[0] >= 0 && c->source[0] != c->source[1])
        r->p->overwritten[c->source[0]] = true;
}

/* ---- Kinds of calls ---- */

static void call_op(const run *r, tg_tape *t, tg_tensor *const *v, int i, tg_tensor **out) {
    const call *c = &r->p->call[i];
    const tg_case *k = &r->c[i];
    tg_tensor *in[TG_SAMPLE_INPUTS];
    for (int j = 0; j < k->n_in; j++) {
        const tg_sample_input *s = &k->sample->input[j];
        in[j] = k->input[j];
        if (c->source[j] < 0) continue;
        tg_tensor *x = value_at(r, v, c->source[j]);
        in[j] = c->raw ? x : fit(r, t, x, &s->shape, s->lo, s->hi, c->untamed);
        if (r->plain) in[j] = tg_contiguous(t, in[j]);
    }
    for (int j = 1; j < k->n_in && k->sample->aliases; j++) in[j] = in[0];
    if (c->op->inplace) in[0] = tg_scale(t, in[0], 1);
    int n = c->op->n_out >= 0 ? c->op->n_out : TG_CASE_OUTPUTS;
    tg_ctx *ctx = tg_tape_ctx(t);
    if (tg_apply(t, c->op, k->sample->params, in, k->n_in, out, n, NULL, NULL, TG_SITE) == TG_OK || r->plain ||
        tg_ctx_status(ctx) != TG_ERR_SHAPE || c->refused || strcmp(c->op->name, "view"))
        return;
    tg_ctx_clear(ctx); /* this layout has no such view */
    in[0] = tg_contiguous(t, in[0]);
    tg_apply(t, c->op, k->sample->params, in, k->n_in, out, n, NULL, NULL, TG_SITE);
}

/* Any dims and indices, even if x does not have them. */
static tg_tensor *view_of(tg_tape *t, tg_tensor *x, const uint8_t *a) {
    int n = tg_ndim(x), d = (int)(a[1] % 10) - 1, e = (int)(a[2] % 9) - 1;
    int64_t size = tg_dim(x, d);
    tg_tensor *parts[2];
    int all[TG_MAX_DIMS];
    switch (a[0] % 10) {
    case 0:
        return tg_transpose(t, x, d, e);
    case 1:
        for (int i = 0; i < n; i++) all[i] = (i * (1 + a[2] % 2) + a[1]) % n;
        return tg_permute(t, x, (tg_dims){n, {all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]}});
    case 2:
        return tg_slice(t, x, d, a[2] % 4, a[3] % 8 ? a[3] % 8 : INT64_MAX, 1 + a[2] / 64);
    case 3:
        return tg_select(t, x, d, (int8_t)a[2] % 4);
    case 4:
        return tg_unsqueeze(t, x, d);
    case 5:
        return tg_squeeze(t, x, d);
    case 6:
        return tg_reshape(t, x, a[1] % 2 ? TG_SHAPE(-1) : TG_SHAPE(1 + a[2] % 4, -1));
    case 7:
        x = tg_slice(t, tg_reshape(t, x, TG_SHAPE(-1)), 0, 0, 6, 1);
        return tg_expand(t, tg_unsqueeze(t, x, 0), TG_SHAPE(1 + a[2] % 3, tg_dim(x, 0)));
    case 8:
        tg_split(t, x, d, (const int64_t[]){size / 2, size - size / 2}, 2, parts);
        return parts[a[2] % 2];
    default:
        return tg_contiguous(t, tg_transpose(t, x, d, e));
    }
}

static tg_tensor *apply_inplace(tg_tape *t, int which, tg_tensor *x, tg_tensor *y) {
    switch (which) {
    case 0:
        return tg_add_(t, x, y);
    case 1:
        return tg_sub_(t, x, y);
    case 2:
        return tg_mul_(t, x, y);
    case 3:
        return tg_relu_(t, x);
    default:
        return tg_copy_(t, x, y);
    }
}

static tg_tensor *apply_aside(tg_tape *t, int which, tg_tensor *x, tg_tensor *y) {
    switch (which) {
    case 0:
        return tg_add(t, x, y);
    case 1:
        return tg_sub(t, x, y);
    case 2:
        return tg_mul(t, x, y);
    case 3:
        return tg_relu(t, x);
    default: /* x gets zeros as its gradient */
        return tg_copy_(t, tg_scale(t, x, 1), y);
    }
}

/* Calls in place if that is allowed, else on a copy. A recomputed function does not try in place, because its two
 * runs may differ in what is allowed, and a copy turns -0 into 0. */
static tg_tensor *call_inplace(run *r, tg_tape *t, tg_tensor *const *v, int i) {
    const call *c = &r->p->call[i];
    tg_ctx *ctx = tg_tape_ctx(t);
    int which = c->arg[0] % 5;
    tg_tensor *x = value_at(r, v, c->source[0]), *y = NULL;
    tg_shape shape = tg_shape_of(x);
    if (c->source[1] >= 0) y = fit(r, t, value_at(r, v, c->source[1]), &shape, 0, 0, c->untamed);
    else if (which != 3) y = tg_scale(t, x, 0.5);
    if (r->plain) return apply_aside(t, which, x, y);
    if (tg_ctx_status(ctx) == TG_OK && !r->functions && c->arg[1] % 4 && c->source[0] != c->source[1]) {
        tg_tensor *z = apply_inplace(t, which, x, y);
        if (tg_ctx_status(ctx) == TG_OK) {
            r->bold = true;
            return z;
        }
        if (tg_ctx_status(ctx) != TG_ERR_STATE) return z;
        tg_ctx_clear(ctx);
    }
    return apply_inplace(t, which, tg_scale(t, x, 1), y);
}

bool call_run(run *r, tg_tape *t, tg_tensor **v, int i) {
    call *c = &r->p->call[i];
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL};
    bool grad = tg_is_grad_on(t);
    if (c->kind != CALL_OP && c->source[0] < 0) return true;
    if (c->no_grad) tg_tape_set_grad_mode(t, false);
    tg_tensor *x = c->source[0] < 0 ? NULL : value_at(r, v, c->source[0]);
    if (r->plain && x) x = tg_contiguous(t, x);
    if (c->kind == CALL_OP) call_op(r, t, v, i, out);
    if (c->kind == CALL_VIEW) out[0] = view_of(t, x, c->arg);
    if (c->kind == CALL_DETACH) out[0] = tg_detach(t, x);
    if (c->kind == CALL_INPLACE) out[0] = call_inplace(r, t, v, i);
    if (c->no_grad) tg_tape_set_grad_mode(t, grad);
    if (tg_ctx_status(tg_tape_ctx(t)) != TG_OK) return false;
    for (int k = 0; k < RESULTS && out[k]; k++) {
        if (tg_dtype_of(out[k]) != TG_F64 || tg_numel(out[k]) == 0 || tg_numel(out[k]) > LARGEST_VALUE) continue;
        v[i * RESULTS + k] = r->plain ? tg_contiguous(t, out[k]) : out[k];
    }
    return true;
}

/* ---- The plain run ---- */

void run_plain(run *r, bool decides) {
    program *p = r->p;
    memset(r->value, 0, sizeof r->value);
    for (int k = 0; k < VALUES && decides; k++) p->last_use[k] = -1;
    for (int i = 0; i < p->n; i++) {
        if (!decides && p->call[i].refused) continue;
        if (decides) decide(r, i);
        if (call_run(r, r->tape, r->value, i)) continue;
        if (!decides) return;
        p->call[i].refused = tg_ctx_status(r->ctx);
        for (int j = 0; j < TG_SAMPLE_INPUTS; j++) {
            int k = p->call[i].source[j];
            if (k >= 0 && k < LEAVES && p->call[i].kind == CALL_INPLACE && j == 0) p->overwritten[k] = false;
        }
        tg_ctx_clear(r->ctx);
    }
    for (int k = 0; k < LEAVES && decides; k++) {
        if (!r->value[k] || p->last_use[k] >= 0 || p->overwritten[k]) continue;
        p->sink[p->n_sinks++] = k;
        p->last_use[k] = CALLS;
    }
}
