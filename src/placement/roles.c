/* Roles and linear sets of an op, from which the rule derives placements: what infer states, and what the op's
 * family fills in. */
#include "base/memory/host_memory.h"
#include "placement/draws.h"
#include "placement/rule.h"
#include "tape/call.h"

static tg_call_impl *impl(const tg_call *c) { return c->internal; }

/* ---- The rules of the current call ---- */

/* Returns the memory for the rules of a call. A context needs only one block, because no other op runs between infer
 * and the rule. */
static tg_rules *block(tg_ctx *ctx, size_t bytes) {
    tg_grid *g = tg_grid_own(ctx);
    if (g->rules_bytes >= bytes) return g->rules;
    tg_rules *more = tg_host_alloc(ctx, 2 * bytes);
    if (!more) return NULL;
    tg_host_free(ctx, g->rules, g->rules_bytes);
    g->rules_bytes = 2 * bytes;
    return g->rules = more;
}

tg_rules *tg_rules_of(tg_call *c) {
    tg_rules *r = impl(c)->rules;
    if (r) return r;
    size_t roles = (size_t)c->n_in * sizeof r->role[0];
    r = block(c->ctx, sizeof *r + roles);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    memset(r->role, TG_ROLE_OPEN, roles);
    r->n_sets = TG_ROLE_OPEN;
    r->move_dim = TG_ROLE_OPEN;
    r->move_to = -1;
    return impl(c)->rules = r;
}

/* Returns whether the statements of infer are kept. Without a grid they are not, because nothing is placed. */
static bool has_axes(const tg_call *c) { return tg_grid_axes(c->ctx) != 0; }

/* ---- Statements of infer ---- */

tg_status tg_call_role(tg_call *c, int i, int d, int j) {
    if (!c) return TG_ERR_ARGUMENT;
    if (i < 0 || i >= c->n_in || d < 0 || d >= TG_MAX_DIMS || j < TG_SUMMED || j >= TG_MAX_DIMS)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "tg_call_role: input is %d, dim %d and role %d; expected one of the %d inputs, a dim from "
                            "0 to %d, and an output dim, TG_WHOLE or TG_SUMMED",
                            i, d, j, c->n_in, TG_MAX_DIMS - 1);
    if (!has_axes(c)) return TG_OK;
    tg_rules *r = tg_rules_of(c);
    if (!r) return c->ctx->run.status;
    r->role[i][d] = (int8_t)j;
    return TG_OK;
}

tg_status tg_call_linear(tg_call *c, uint32_t set) {
    if (!c) return TG_ERR_ARGUMENT;
    if (!has_axes(c)) return TG_OK;
    tg_rules *r = tg_rules_of(c);
    if (!r) return c->ctx->run.status;
    if (r->n_sets < 0) r->n_sets = 0;
    if (!set) return TG_OK; /* set 0 says that the op is linear in no input */
    if (r->n_sets == TG_MAX_SETS)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_linear: an op may state at most %d sets of inputs",
                            TG_MAX_SETS);
    r->set[r->n_sets++] = set;
    return TG_OK;
}

tg_status tg_call_free(tg_call *c, int i, int shift) {
    for (int d = 0; has_axes(c) && c->input[i] && d < c->input[i]->ndim; d++) TG_TRY(tg_call_role(c, i, d, d + shift));
    return TG_OK;
}

tg_status tg_call_within(tg_call *c, uint32_t mask) {
    tg_rules *r = has_axes(c) ? tg_rules_of(c) : NULL;
    if (r) r->within = mask;
    return c->ctx->run.status;
}

tg_status tg_call_stretch(tg_call *c, uint32_t mask) {
    tg_rules *r = has_axes(c) ? tg_rules_of(c) : NULL;
    if (r) {
        r->stretch = mask;
        r->stretched_dims = ~0u;
    }
    return c->ctx->run.status;
}

tg_status tg_call_draws_now(tg_call *c) {
    uint32_t axes = has_axes(c) ? tg_draws_axes(c->ctx) : 0;
    tg_rules *r = axes ? tg_rules_of(c) : NULL;
    if (r) r->drawn |= axes;
    return c->ctx->run.status;
}

void tg_call_placed(tg_call *c) { impl(c)->placed = true; }

/* ---- Roles of the families; docs/placements.md has the table ---- */

void tg_rules_sets(const tg_call *c, tg_rules *r) {
    static const uint32_t sets[][2] = { /* up to two sets for each family; bit i stands for input i */
        [TG_FAMILY_SCALE] = {1},      [TG_FAMILY_ADDITIVE] = {UINT32_MAX},
        [TG_FAMILY_FACTORS] = {1, 2}, [TG_FAMILY_QUOTIENT] = {1},
        [TG_FAMILY_SELECT] = {6},     [TG_FAMILY_MATMUL] = {1, 2},
        [TG_FAMILY_LINEAR] = {5, 6},  [TG_FAMILY_SUM] = {1},
        [TG_FAMILY_MEAN] = {1},       [TG_FAMILY_SHAPE] = {UINT32_MAX},
        [TG_FAMILY_TAKE] = {1},       [TG_FAMILY_ATTENTION] = {4},
        [TG_FAMILY_CUSTOM] = {0},
    };
    unsigned family = (unsigned)c->op->family;
    if (r->n_sets >= 0) return;
    r->n_sets = 0;
    /* A mapping that states no sets is linear in the one tensor that it converts. */
    if (family == TG_FAMILY_CUSTOM && r->n_conversions && c->n_in == 1) r->set[r->n_sets++] = 1;
    for (int k = 0; family < TG_LEN(sets) && k < 2 && sets[family][k]; k++) r->set[r->n_sets++] = sets[family][k];
}

/* Gives dim d of input i that role, unless infer has stated one. */
static void set(tg_rules *r, int i, int d, int role) {
    if (r->role[i][d] == TG_ROLE_OPEN) r->role[i][d] = (int8_t)role;
}

static int dims_of(const tg_call *c, int i) { return i < c->n_in && c->input[i] ? c->input[i]->ndim : 0; }

/* Pairs the dims of every input with the output's dims, from the right, as broadcasting does. The last `but` dims of
 * each input get no role. */
static void align(const tg_call *c, tg_rules *r, int but) {
    int y = c->out[0]->ndim;
    for (int i = 0; i < c->n_in; i++)
        for (int d = 0, n = dims_of(c, i); n <= y && d < n - but; d++) set(r, i, d, d + y - n);
    r->stretch = c->op->inplace ? ~1u : ~0u; /* input 0 of an in-place op has the output's shape */
    r->stretched_dims = ~0u;
}

/* Gives the dims of the mask that role. Each other dim becomes the output dim of the same number or, if the op drops
 * the dims of the mask, the next output dim. */
static void reduce(const tg_call *c, tg_rules *r, uint32_t mask, int role) {
    bool gone = c->out[0]->ndim != c->input[0]->ndim;
    for (int d = 0, j = 0; d < c->input[0]->ndim; d++) {
        bool listed = mask >> d & 1;
        set(r, 0, d, listed ? role : gone ? j : d);
        j += !listed;
    }
}

static uint32_t last_dim(const tg_call *c) { return c->input[0]->ndim ? 1u << (c->input[0]->ndim - 1) : 0; }

static void matmul(const tg_call *c, tg_rules *r) {
    int a = dims_of(c, 0), b = dims_of(c, 1), y = c->out[0]->ndim;
    if (a < 2 || b < 2) return;
    align(c, r, 2);
    set(r, 0, a - 2, y - 2);
    set(r, 0, a - 1, TG_SUMMED);
    set(r, 1, b - 2, TG_SUMMED);
    set(r, 1, b - 1, y - 1);
}

static void linear(const tg_call *c, tg_rules *r) {
    int last = dims_of(c, 0) - 1;
    if (last < 0 || dims_of(c, 1) != 2) return;
    for (int d = 0; d < last; d++) set(r, 0, d, d);
    set(r, 0, last, TG_SUMMED);
    set(r, 1, 0, last);
    set(r, 1, 1, TG_SUMMED);
    if (c->n_in > 2) set(r, 2, 0, last);
}

/* q [b, h, sq, dk], k [b, g, sk, dk], v [b, g, sk, dv]: each of the g heads of k and v serves h / g neighboring
 * heads of q. The op itself states the roles of its other inputs. All other dims are whole. */
static void attention(const tg_call *c, tg_rules *r) {
    if (c->n_in < 3) return;
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 2; d++) set(r, i, d, d);
    set(r, 0, 2, 2);
    set(r, 2, 3, 3);
    r->stretch = 6;
    r->stretched_dims = r->uneven = 1u << 1;
    r->alike = 6;
}

/* Gives the dims that have no role yet the roles of the op's family. */
static void fill(const tg_call *c, tg_rules *r) {
    switch (c->op->family) {
    case TG_FAMILY_POINTWISE:
    case TG_FAMILY_SCALE:
    case TG_FAMILY_ADDITIVE:
    case TG_FAMILY_FACTORS:
    case TG_FAMILY_QUOTIENT:
    case TG_FAMILY_SELECT:
        align(c, r, 0);
        break;
    case TG_FAMILY_MATMUL:
        matmul(c, r);
        break;
    case TG_FAMILY_LINEAR:
        linear(c, r);
        break;
    case TG_FAMILY_SUM:
        reduce(c, r, c->dims, TG_SUMMED);
        break;
    case TG_FAMILY_MEAN:
    case TG_FAMILY_REDUCE:
        reduce(c, r, c->dims, TG_WHOLE);
        break;
    case TG_FAMILY_SOFTMAX:
        reduce(c, r, c->dims ? c->dims : last_dim(c), TG_WHOLE);
        break;
    case TG_FAMILY_ATTENTION:
        attention(c, r);
        break;
    case TG_FAMILY_CUSTOM:
        for (int d = 0; r->n_conversions && c->n_in == 1 && d < dims_of(c, 0); d++) set(r, 0, d, d);
        break;
    default:
        break;
    }
}

void tg_rules_roles(const tg_call *c, tg_rules *r) {
    if (r->filled) return;
    r->filled = true;
    if (c->n_in && c->n_out && c->input[0]) fill(c, r);
    for (int i = 0; i < c->n_in; i++)
        for (int d = 0; d < TG_MAX_DIMS; d++) set(r, i, d, TG_WHOLE);
}
