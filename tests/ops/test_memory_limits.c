/* Every op of the table on each of its samples, forward and backward, with less memory than it needs: limits from
 * nothing to what a whole run takes at its peak, so that tensors, temporaries and workspaces are refused in turn. A run
 * must end with TG_ERR_MEMORY or succeed, because some kernels take less memory if there is less, and leave nothing
 * allocated. */
#include "ops/registry.h"

#include "unit/counted_allocator.h"

enum { LIMITS = 12 };

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

int main(int argc, char **argv) {
    tally y = {0};
    int samples = 0, refused = 0;
    for (int k = 0; k < tg_op_count(); k++) {
        const tg_op *op = tg_op_at(k);
        for (int i = 0; chosen(op, argc, argv) && tg_sample_at(op, i); i++) {
            const tg_sample *s = tg_sample_at(op, i);
            if (!small(s) || s->refused) continue;
            check_sample(&y, op, i, &refused);
            samples++;
        }
    }
    check_open(&y, tg_op_find("gather"), 0);
    verdict(&y, refused > 4 * samples, tg_op_at(0), NULL, "only %d runs of %d samples had too little memory", refused,
            samples);
    return conclude(&y);
}
