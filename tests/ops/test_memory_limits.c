/* Every op of the table on each of its samples, forward and backward, with less memory than it needs: limits from
 * nothing to what a whole run takes at its peak, so that tensors, temporaries and workspaces are refused in turn. A run
 * must end with TG_ERR_MEMORY or succeed, because some kernels take less memory if there is less, and leave nothing
 * allocated. The same holds for runs of some samples in which one allocation is refused, each in turn, and for a
 * backward in which each handle of a temporary or of a view is refused. */
#include "ops/registry.h"

#include "core/context.h"
#include "unit/counted_allocator.h"

enum { LIMITS = 12, FIRST = 4 }; /* FIRST: number of an op's samples in which single allocations are refused */

/* What a run under a limit of memory has led to. */
typedef struct attempt {
    tg_status status;
    char message[256];
    int64_t peak, leaked; /* bytes of tensors and workspaces; blocks that the context has not freed */
} attempt;

static attempt run_within(int64_t limit, const tg_op *op, int i) {
    counted memory = {0};
    attempt a = {0};
    outcome o;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.memory = limit, .threads = 1,
                                       .allocator = {counted_alloc, counted_free, &memory}));
    a.status = run_sample(ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 5}, &o);
    snprintf(a.message, sizeof a.message, "%s", tg_ctx_message(ctx));
    outcome_free(&o);
    tg_memory_info info = TG_MEMORY_INFO();
    tg_memory_query(ctx, &info);
    a.peak = info.peak + info.workspace;
    tg_ctx_free(ctx);
    a.leaked = memory.held;
    return a;
}

/* Runs a sample within a limit. Returns false if the run did not end as it must. */
static bool check_limit(tally *y, const tg_op *op, int i, int64_t limit, int *refused) {
    attempt a = run_within(limit, op, i);
    const tg_sample *s = tg_sample_at(op, i);
    *refused += a.status == TG_ERR_MEMORY;
    return verdict(y, a.status == TG_OK || a.status == TG_ERR_MEMORY, op, s, "%lld bytes: status %d: %s",
                   (long long)limit, (int)a.status, a.message) &&
           verdict(y, a.leaked == 0, op, s, "%lld bytes: %lld blocks leak", (long long)limit, (long long)a.leaked);
}

static void check_sample(tally *y, const tg_op *op, int i, int *refused) {
    const attempt whole = run_within(TG_NONE, op, i);
    if (!verdict(y, whole.status == TG_OK, op, tg_sample_at(op, i), "%s", whole.message)) return;
    for (int64_t limit = 1; limit < whole.peak; limit += whole.peak / LIMITS + 1)
        if (!check_limit(y, op, i, limit, refused)) return;
}

/* Opens a sample while each allocation that this makes is refused in turn. The status is that of the context, also if
 * the values of the last input have had no memory. */
static void check_open(tally *y, const tg_op *op, int i) {
    bool refused = true;
    for (int64_t at = 1; refused; at++) {
        counted memory = {0};
        tg_case c;
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
        memory.calls = 0;
        memory.fail_at = at;
        tg_status s = tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F64, .seed = 5});
        refused = memory.calls >= at;
        verdict(y, s == tg_ctx_status(ctx), op, tg_sample_at(op, i), "allocation %lld is refused: %s but %s",
                (long long)at, tg_status_name(s), tg_status_name(tg_ctx_status(ctx)));
        tg_case_close(&c);
        tg_ctx_free(ctx);
        verdict(y, !memory.held, op, tg_sample_at(op, i), "allocation %lld is refused: memory leaks", (long long)at);
    }
}

/* Runs a sample with 16-bit floats, which many composed ops convert first. Allocation number `at` after the context was
 * made is refused; 0: none is. Returns the number of allocations. */
static int64_t run_without(int64_t at, const tg_op *op, int i, attempt *a) {
    counted memory = {0};
    outcome o;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
    int64_t before = memory.calls;
    memory.fail_at = at ? before + at : 0;
    a->status = run_sample(ctx, op, i, &(tg_case_opts){.dtype = TG_BF16, .seed = 5}, &o);
    snprintf(a->message, sizeof a->message, "%s", tg_ctx_message(ctx));
    outcome_free(&o);
    int64_t calls = memory.calls - before;
    tg_ctx_free(ctx);
    a->leaked = memory.held;
    return calls;
}

static void check_allocations(tally *y, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    attempt a = {0};
    int64_t calls = run_without(0, op, i, &a);
    if (!verdict(y, a.status == TG_OK, op, s, "%s", a.message)) return;
    for (int64_t at = 1; at <= calls; at++) {
        run_without(at, op, i, &a);
        if (!verdict(y, a.status == TG_OK || a.status == TG_ERR_MEMORY, op, s, "allocation %lld: status %d: %s",
                     (long long)at, (int)a.status, a.message) ||
            !verdict(y, a.leaked == 0, op, s, "allocation %lld: %lld blocks leak", (long long)at, (long long)a.leaked))
            return;
    }
}

/* Leaves at most n of the context's free handles of temporaries. Returns how many there are then. The memory of the
 * others belongs to the context until it ends. */
static int leave_handles(tg_ctx *ctx, int n) {
    tg_temp **at = &ctx->free_temps;
    int left = 0;
    for (; *at && left < n; left++) at = &(*at)->next;
    *at = NULL;
    return left;
}

/* Runs a sample twice. In the second backward only `left` handles of temporaries are free, and the allocator gives no
 * memory. Returns whether so many were free. */
static bool run_with_handles(const tg_op *op, int i, int left, attempt *a) {
    counted memory = {0};
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS], *roots[TG_CASE_OUTPUTS], *seeds[TG_CASE_OUTPUTS];
    bool enough = false;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
    tg_tape *t = tg_tape_new(ctx);
    tg_case_open(&c, ctx, op, i, &(tg_case_opts){.dtype = TG_F32, .seed = 5});
    for (int k = 0; k < 2 && tg_ctx_status(ctx) == TG_OK; k++) {
        tg_tape_reset(t);
        tg_case_run(&c, t, c.input, c.n_in, out, c.n_out);
        int n = tg_ctx_status(ctx) == TG_OK ? seed_all(&c, out, count_out(&c, out), roots, seeds) : 0;
        if (k) enough = n && leave_handles(ctx, left) == left;
        memory.lasting = true;
        memory.fail_at = k ? memory.calls + 1 : 0;
        if (n) tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds));
        memory.fail_at = 0;
    }
    a->status = tg_ctx_status(ctx);
    snprintf(a->message, sizeof a->message, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_case_close(&c);
    tg_ctx_free(ctx);
    a->leaked = memory.held;
    return enough;
}

static void check_handles(tally *y, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    attempt a = {0};
    for (int left = 0; run_with_handles(op, i, left, &a); left++) {
        if (!verdict(y, a.status == TG_OK || a.status == TG_ERR_MEMORY, op, s, "%d handles: status %d: %s", left,
                     (int)a.status, a.message) ||
            !verdict(y, a.leaked == 0, op, s, "%d handles: %lld blocks leak", left, (long long)a.leaked) ||
            a.status == TG_OK)
            return;
    }
}

int main(int argc, char **argv) {
    tally y = {0};
    int samples = 0, refused = 0;
    for (int k = 0; k < tg_op_count(); k++) {
        const tg_op *op = tg_op_at(k);
        for (int i = 0; chosen(op, argc, argv) && tg_sample_at(op, i); i++) {
            const tg_sample *s = tg_sample_at(op, i);
            if (!small(s) || s->refused) continue;
            check_sample(&y, op, i, &refused);
            if (i < FIRST) check_allocations(&y, op, i);
            check_handles(&y, op, i);
            samples++;
        }
    }
    check_open(&y, tg_op_find("gather"), 0);
    verdict(&y, refused > 4 * samples, tg_op_at(0), NULL, "only %d runs of %d samples had too little memory", refused,
            samples);
    return conclude(&y);
}
