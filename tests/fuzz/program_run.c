/* Runs a program as its bytes say: in scopes, recomputed, with discarded tensors. */
#include "core/context.h"
#include "program.h"

/* ---- Leaves ---- */

void run_open(run *r, program *p, tg_ctx *ctx, bool plain) {
    memset(r, 0, sizeof *r);
    r->p = p;
    r->ctx = ctx;
    r->plain = plain;
    for (int i = 0; i < p->n; i++) {
        const call *c = &p->call[i];
        const tg_case_opts o = {.dtype = TG_F64, .seed = p->seed + (uint64_t)i, .rows = plain};
        if (c->kind == CALL_OP) tg_case_open(&r->c[i], ctx, c->op, c->sample, &o);
    }
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "no leaves: %s", tg_ctx_message(ctx));
}

void run_close(run *r) {
    for (int i = 0; i < r->p->n; i++)
        if (r->p->call[i].kind == CALL_OP) tg_case_close(&r->c[i]);
}

int run_leaves(const run *r, tg_tensor **out) {
    int n = 0;
    for (int i = 0; i < r->p->n; i++) {
        const tg_case *c = &r->c[i];
        for (int j = 0; r->p->call[i].kind == CALL_OP && j < c->n_in; j++)
            if (c->input[j] && tg_requires_grad(c->input[j]) && (j == 0 || !c->sample->aliases)) out[n++] = c->input[j];
    }
    return n;
}

tg_tensor *cotangent(tg_ctx *ctx, const tg_tensor *like, int sink) {
    double v[LARGEST_VALUE];
    int64_t n = tg_numel(like);
    for (int64_t i = 0; i < n; i++) v[i] = cos(0.7 * (double)i + 1.3 * sink) + 0.2;
    return tg_from_host(ctx, TG_F64, tg_shape_of(like), v);
}

/* ---- Segments ---- */

/* Calls from .. until - 1: the values that they take from before, and those that are used after them. */
typedef struct segment {
    run *r;
    int from, until, depth, n_in, n_out, input[LEAVES], out[LEAVES];
} segment;

/* depth: number of enclosing segments; the first call does not begin one again. */
static void range(run *r, tg_tape *t, tg_tensor **v, int from, int until, int depth);

static void look_at(segment *s, tg_tensor *const *v) {
    const program *p = s->r->p;
    bool given[LEAVES] = {false};
    for (int i = s->from; i < s->until; i++)
        for (int j = 0; j < TG_SAMPLE_INPUTS && !p->call[i].refused; j++) {
            int k = p->call[i].source[j];
            if (k >= 0 && k < s->from * RESULTS && v[k]) given[k] = true;
        }
    for (int k = 0; k < LEAVES; k++)
        if (given[k]) s->input[s->n_in++] = k;
    for (int k = s->from * RESULTS; k < s->until * RESULTS; k++)
        if (p->last_use[k] >= s->until) s->out[s->n_out++] = k;
}

static bool uses_leaf(const run *r, int i) {
    const call *c = &r->p->call[i];
    const tg_case *k = &r->c[i];
    if (c->kind != CALL_OP || c->refused || c->no_grad) return false;
    for (int j = 0; j < (k->sample->aliases ? 1 : k->n_in); j++)
        if (c->source[j] < 0 && k->input[j] && tg_requires_grad(k->input[j])) return true;
    return false;
}

/* Returns whether a function of these calls has an input or a leaf, as a recomputation needs. */
static bool has_input(const segment *s) {
    if (s->n_in) return true;
    for (int i = s->from; i < s->until; i++)
        if (uses_leaf(s->r, i)) return true;
    return false;
}

static tg_status calls(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const segment *s = state;
    tg_tensor *v[LEAVES] = {NULL};
    for (int k = 0; k < n_in; k++) v[s->input[k]] = in[k];
    s->r->functions++;
    range(s->r, t, v, s->from, s->until, s->depth);
    s->r->functions--;
    for (int k = 0; k < n_out; k++) out[k] = v[s->out[k]];
    return tg_ctx_status(tg_tape_ctx(t));
}

static void recompute(segment *given, tg_tape *t, tg_tensor **v, bool replays) {
    run *r = given->r;
    tg_tensor *in[LEAVES], *out[LEAVES];
    segment *s = malloc(sizeof *s); /* for the second run */
    *s = *given;
    for (int k = 0; k < s->n_in; k++) in[k] = v[s->input[k]];
    const tg_recompute_opts *o = TG_RECOMPUTE(.name = "calls", .destroy = free);
    if (replays && t == r->tape) {
        tg_replay *replay = tg_replay_open(t);
        tg_replay_run(replay, calls, s, in, s->n_in, out, s->n_out, o);
        r->replay[r->n_replays++] = replay;
    } else {
        tg_recompute(t, calls, s, in, s->n_in, out, s->n_out, o);
    }
    for (int k = 0; k < given->n_out; k++) v[given->out[k]] = out[k];
}

/* ---- Refills of discarded bytes ---- */

typedef struct kept {
    size_t bytes;
    char data[];
} kept;

static tg_status refill(void *user, tg_ctx *ctx, void *dst, size_t bytes) {
    const kept *k = user;
    fuzz_must(bytes == k->bytes, "a refill of %zu bytes, discarded were %zu", bytes, k->bytes);
    memcpy(dst, k->data, bytes);
    return tg_ctx_status(ctx);
}

static void discard(tg_tensor *x) {
    size_t bytes = x->storage->bytes;
    const char *from = tg_host_data(x);
    if (!from) return;
    kept *k = malloc(sizeof *k + bytes);
    k->bytes = bytes;
    memcpy(k->data, from - (size_t)x->offset * sizeof(double), bytes);
    if (tg_discard_with(x, refill, free, k) == TG_ERR_STATE) tg_ctx_clear(x->ctx); /* a node has saved it */
}

/* ---- The whole program ---- */

static void run_segment(run *r, tg_tape *t, tg_tensor **v, int from, int until, int depth) {
    const call *c = &r->p->call[from];
    segment s = {.r = r, .from = from, .until = until, .depth = depth + 1};
    look_at(&s, v);
    tg_tensor *out[LEAVES];
    bool recomputes = c->segment == SEGMENT_RECOMPUTE || c->segment == SEGMENT_REPLAY;
    if (recomputes && s.n_out && has_input(&s)) {
        recompute(&s, t, v, c->segment == SEGMENT_REPLAY);
        return;
    }
    if (c->segment == SEGMENT_SCOPE) tg_scope_open(t, "scope");
    range(r, t, v, from, until, depth + 1);
    for (int k = 0; k < s.n_out; k++) out[k] = v[s.out[k]];
    if (c->segment == SEGMENT_SCOPE) tg_scope_close(t, out, s.n_out);
    for (int k = 0; k < s.n_out && c->segment == SEGMENT_DISCARD; k++)
        if (tg_ctx_status(r->ctx) == TG_OK) discard(out[k]);
}

/* A call that was refused in the plain run must be refused here too; within a function it is omitted. */
static void refused_too(run *r, tg_tape *t, tg_tensor **v, int i) {
    const call *c = &r->p->call[i];
    bool refused = !call_run(r, t, v, i);
    fuzz_must(refused && tg_ctx_status(r->ctx) == c->refused, "call %d was refused with %s, now %s: %s", i,
              tg_status_name(c->refused), tg_status_name(tg_ctx_status(r->ctx)), tg_ctx_message(r->ctx));
    tg_ctx_clear(r->ctx);
}

static void range(run *r, tg_tape *t, tg_tensor **v, int from, int until, int depth) {
    for (int i = from; i < until && tg_ctx_status(r->ctx) == TG_OK;) {
        const call *c = &r->p->call[i];
        int end = c->until < until ? c->until : until;
        if (c->segment && depth < 3 && (i > from || depth == 0)) {
            run_segment(r, t, v, i, end, depth);
            i = end;
            continue;
        }
        if (!c->refused) call_run(r, t, v, i);
        else if (depth == 0) refused_too(r, t, v, i);
        i++;
    }
}

void run_fancy(run *r) {
    memset(r->value, 0, sizeof r->value);
    r->n_replays = 0;
    range(r, r->tape, r->value, 0, r->p->n, 0);
    for (int i = 0; i < r->n_replays; i++) tg_replay_close(r->replay[i], NULL);
}
