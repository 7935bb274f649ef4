/* Blocks of global tensors: making them, comparing two, and their text. */
#include "checkpoint/block.h"

#include <stdlib.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/tensor/tensor.h"

/* ---- Making ---- */

tg_status tg_block_open(tg_ctx *ctx, tg_block *b, int ndim, int n_spans) {
    *b = (tg_block){.shape.ndim = ndim, .n_spans = n_spans};
    tg_span *all = n_spans ? tg_host_alloc(ctx, (size_t)n_spans * sizeof *all) : NULL;
    if (n_spans && !all) {
        b->n_spans = 0;
        return ctx->run.status;
    }
    b->span[0] = all;
    return TG_OK;
}

void tg_block_free(tg_ctx *ctx, tg_block *b) {
    tg_host_free(ctx, b->span[0], (size_t)b->n_spans * sizeof **b->span);
    *b = (tg_block){0};
}

void tg_block_add(tg_block *b, int dim, int64_t first, int64_t n) {
    int k = b->n[dim];
    if (dim && !k) b->span[dim] = b->span[dim - 1] + b->n[dim - 1];
    tg_span *last = k ? &b->span[dim][k - 1] : NULL;
    b->shape.dim[dim] += n;
    if (last && last->first + last->n == first)
        last->n += n;
    else if (n)
        b->span[dim][b->n[dim]++] = (tg_span){first, n};
}

int64_t tg_block_full(const tg_block *b) { return tg_shape_numel(&b->shape); }

void tg_block_close(tg_block *b) {
    b->begin = 0;
    b->end = tg_block_full(b);
}

tg_status tg_block_all(tg_ctx *ctx, const tg_shape *whole, tg_block *out) {
    TG_TRY(tg_block_open(ctx, out, (int)whole->ndim, (int)whole->ndim));
    for (int d = 0; d < whole->ndim; d++) tg_block_add(out, d, 0, whole->dim[d]);
    tg_block_close(out);
    return TG_OK;
}

/* ---- Text ---- */

size_t tg_block_text(const tg_block *b, char *buf, size_t n) {
    size_t at = 0;
    if (n) *buf = 0;
    for (int d = 0; d < b->shape.ndim; d++) {
        if (d) tg_text(buf, n, &at, ",");
        for (int k = 0; k < b->n[d]; k++)
            tg_text(buf, n, &at, "%s%lld:%lld", k ? "+" : "", (long long)b->span[d][k].first,
                    (long long)(b->span[d][k].first + b->span[d][k].n));
    }
    if (tg_block_is_range(b)) tg_text(buf, n, &at, ";%lld:%lld", (long long)b->begin, (long long)b->end);
    return at;
}

/* Reads "first:stop" and moves *at past it. Returns false unless 0 <= first < stop <= most. */
static bool parse_pair(const char **at, int64_t most, int64_t *first, int64_t *stop) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *first = strtoll(*at, &end, 10);
    if (*end != ':' || end[1] < '0' || end[1] > '9') return false;
    *stop = strtoll(end + 1, &end, 10);
    *at = end;
    return *first < *stop && *stop <= most;
}

/* Reads the spans of a dim of size n. */
static bool parse_dim(const char **at, int64_t n, int dim, tg_block *b) {
    int64_t from = -1; /* where the last span ended; the next one begins later, or both would be one */
    tg_block_add(b, dim, 0, 0);
    while (n) {
        int64_t first, stop;
        if (!parse_pair(at, n, &first, &stop) || first <= from) return false;
        tg_block_add(b, dim, first, stop - first);
        from = stop;
        if (**at != '+') break;
        ++*at;
    }
    return true;
}

static bool parse(const char *at, const tg_shape *whole, tg_block *b) {
    for (int d = 0; d < whole->ndim; d++) {
        if (d && *at++ != ',') return false;
        if (!parse_dim(&at, whole->dim[d], d, b)) return false;
    }
    tg_block_close(b);
    if (*at == ';' && (at++, !parse_pair(&at, b->end, &b->begin, &b->end))) return false;
    return !*at;
}

bool tg_block_parse(tg_ctx *ctx, const char *text, const tg_shape *whole, tg_block *out) {
    int spans = (int)whole->ndim;
    for (const char *c = text; *c; c++) spans += *c == '+';
    if (tg_block_open(ctx, out, (int)whole->ndim, spans) != TG_OK) return false;
    if (parse(text, whole, out)) return true;
    tg_block_free(ctx, out);
    return false;
}

/* ---- Two blocks ---- */

/* State of tg_block_meet. From dim `inner` on both blocks have the same spans; `run` is their number of elements. */
typedef struct meeting {
    const tg_block *a, *b;
    int inner;
    int64_t run;
    tg_block_fn fn;
    void *user;
} meeting;

static bool same_spans(const tg_block *a, const tg_block *b, int d) {
    return a->n[d] == b->n[d] && !memcmp(a->span[d], b->span[d], (size_t)a->n[d] * sizeof **a->span);
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Calls fn for n consecutive elements of the spans of both blocks, except those that are outside the range (begin to
 * end - 1) of either block. a, b: the row-major number of the first of these elements in the spans of each block. */
static tg_status pass(const meeting *m, int64_t a, int64_t b, int64_t n) {
    int64_t lo = most(0, most(m->a->begin - a, m->b->begin - b)), hi = least(n, least(m->a->end - a, m->b->end - b));
    return lo < hi ? m->fn(m->user, a + lo - m->a->begin, b + lo - m->b->begin, hi - lo) : TG_OK;
}

static tg_status meet_dim(const meeting *m, int d, int64_t a, int64_t b);

/* Visits n indices of dim d that both blocks have. a, b: the row-major index of the first of them in each block, over
 * dims 0 to d. */
static tg_status meet_indices(const meeting *m, int d, int64_t a, int64_t b, int64_t n) {
    if (d + 1 == m->inner) return pass(m, a * m->run, b * m->run, n * m->run);
    for (int64_t i = 0; i < n; i++) TG_TRY(meet_dim(m, d + 1, a + i, b + i));
    return TG_OK;
}

/* Visits all indices of dim d that both blocks have. a, b: the row-major index in each block over the dims before d. */
static tg_status meet_dim(const meeting *m, int d, int64_t a, int64_t b) {
    if (d == m->inner) return pass(m, a * m->run, b * m->run, m->run);
    const tg_span *p = m->a->span[d], *q = m->b->span[d];
    const tg_span *p_end = p + m->a->n[d], *q_end = q + m->b->n[d];
    int64_t at_p = a * m->a->shape.dim[d], at_q = b * m->b->shape.dim[d]; /* the blocks' indices where p and q begin */
    while (p < p_end && q < q_end) {
        int64_t first = most(p->first, q->first), stop = least(p->first + p->n, q->first + q->n);
        if (first < stop) TG_TRY(meet_indices(m, d, at_p + first - p->first, at_q + first - q->first, stop - first));
        if (p->first + p->n == stop)
            at_p += p++->n;
        else
            at_q += q++->n;
    }
    return TG_OK;
}

tg_status tg_block_meet(const tg_block *a, const tg_block *b, tg_block_fn fn, void *user) {
    meeting m = {.a = a, .b = b, .inner = (int)a->shape.ndim, .run = 1, .fn = fn, .user = user};
    while (m.inner > 0 && same_spans(a, b, m.inner - 1)) m.run *= a->shape.dim[--m.inner];
    return meet_dim(&m, 0, 0, 0);
}

static tg_status add_up(void *user, int64_t a, int64_t b, int64_t n) {
    (void)a, (void)b;
    *(int64_t *)user += n;
    return TG_OK;
}

/* Returns the number of indices of dim d that are in both blocks. */
static int64_t common_indices(const tg_block *a, const tg_block *b, int d) {
    int64_t n = 0;
    for (int i = 0, k = 0; i < a->n[d] && k < b->n[d];) {
        const tg_span *p = &a->span[d][i], *q = &b->span[d][k];
        int64_t p_stop = p->first + p->n, q_stop = q->first + q->n;
        n += most(0, least(p_stop, q_stop) - most(p->first, q->first));
        i += p_stop <= q_stop;
        k += q_stop < p_stop;
    }
    return n;
}

int64_t tg_block_common(const tg_block *a, const tg_block *b) {
    int64_t all = 1, n = 0;
    for (int d = 0; d < a->shape.ndim; d++) all *= common_indices(a, b, d);
    if (!all || (!tg_block_is_range(a) && !tg_block_is_range(b))) return all;
    tg_block_meet(a, b, add_up, &n);
    return n;
}

/* ---- Holes ---- */

/* Returns the length of a run of elements that the block has, from element `at` of a tensor of shape `whole` on. The
 * block may also have the element after the run. If it does not have element `at`, returns minus the number of elements
 * up to the next one that it may have. */
static int64_t reach(const tg_block *b, const tg_shape *whole, int64_t at) {
    int64_t index[TG_MAX_DIMS], own = 0, left = at, run = 1;
    for (int d = (int)whole->ndim - 1; d >= 0; d--, left /= whole->dim[d + 1]) index[d] = left % whole->dim[d];
    for (int d = 0; d < whole->ndim; d++) {
        int64_t before = 0, inner = 1;
        int k = 0;
        for (; k < b->n[d] && b->span[d][k].first + b->span[d][k].n <= index[d]; k++) before += b->span[d][k].n;
        for (int e = d + 1; e < whole->ndim; e++) inner *= whole->dim[e];
        int64_t within = at % inner; /* elements between the first one with this index and `at` */
        if (k == b->n[d]) return -((whole->dim[d] - index[d]) * inner - within);
        if (b->span[d][k].first > index[d]) return -((b->span[d][k].first - index[d]) * inner - within);
        own = own * b->shape.dim[d] + before + index[d] - b->span[d][k].first;
        run = b->span[d][k].first + b->span[d][k].n - index[d];
    }
    if (own < b->begin || own >= b->end) return own < b->begin ? -least(run, b->begin - own) : -run;
    return least(run, b->end - own);
}

int64_t tg_block_hole(const tg_block *const *blocks, int n, const tg_shape *whole, int64_t *stop) {
    int64_t all = tg_shape_numel(whole), hole = -1;
    for (int64_t at = 0, step; at < all; at += step) {
        int64_t gap = all - at;
        step = 0;
        for (int i = 0; i < n && !step; i++) {
            int64_t r = reach(blocks[i], whole, at);
            if (r > 0)
                step = r;
            else
                gap = least(gap, -r);
        }
        if (step && hole >= 0) {
            *stop = at;
            return hole;
        }
        if (!step) {
            hole = hole < 0 ? at : hole;
            step = gap;
        }
    }
    *stop = all;
    return hole;
}
