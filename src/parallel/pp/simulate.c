/* Simulates a pipeline plan. Each stage computes its list, item by item; an item begins when the item before it has
 * ended and the message that it receives has arrived. This gives the time of every item, or shows that items wait for
 * each other. */
#include <math.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"
#include "base/text.h"
#include "parallel/pp/plan.h"

/* How far one stage has come. */
typedef struct progress {
    int next;   /* index of its next item */
    double end; /* the time at which the item before that ends; 0 if there is none */
} progress;

static double end_of(const tg_pipe_plan *p, int i, int part) { return p->begin[i] + p->cost[p->item[i].act][part]; }

/* Returns the index of the item whose result item i needs, or -1 for none. Sets *part to the part of that item. */
static int needed(const tg_pipe_plan *p, int stage, int i, int *part) {
    *part = tg_pipe_part_before(p, p->item[i].act, tg_pipe_part(p, stage, p->item[i].chunk));
    return *part < 0 ? -1 : *tg_pipe_place(p, p->item[i].act, *part, p->item[i].micro);
}

/* Returns whether item i, which is of `part`, has run: its stage is beyond it. */
static bool has_run(const tg_pipe_plan *p, const progress *at, int i, int part) {
    return i < at[part % p->stages].next;
}

/* Runs items of a stage until the stage must wait or has no items left. Returns whether any item has run. */
static bool advance(tg_pipe_plan *p, progress *at, int stage) {
    int before = at[stage].next;
    for (int i = before, part; i < p->first[stage + 1]; i++) {
        int need = needed(p, stage, i, &part);
        double begin = at[stage].end;
        if (need >= 0) {
            if (!has_run(p, at, need, part)) break;
            double arrives = end_of(p, need, part) + (part % p->stages != stage ? p->hop : 0);
            if (arrives > begin) begin = arrives;
        }
        p->begin[i] = begin;
        at[stage].end = end_of(p, i, tg_pipe_part(p, stage, p->item[i].chunk));
        at[stage].next = i + 1;
    }
    return at[stage].next > before;
}

/* ---- Items that wait for each other ---- */

/* Returns the stage of the item for which a stage waits; it may be the stage itself. The item is in the list of that
 * stage (verify.c has checked this), but the stage has not reached it. */
static int waits_for(const tg_pipe_plan *p, const progress *at, int stage) {
    int part;
    needed(p, stage, at[stage].next, &part);
    return part % p->stages;
}

/* Reports the circle of waiting stages that begins at `first`. */
static tg_status fail_circle(const tg_pipe_plan *p, const progress *at, int first) {
    enum { SHOWN = 8 };
    char text[1536] = "";
    size_t used = 0;
    int s = first, n = 0;
    do {
        int i = at[s].next, part, need = needed(p, s, i, &part), other = part % p->stages;
        if (n++ < SHOWN)
            tg_text(text, sizeof text, &used, "%s%s (item %d of stage %d) waits for %s (item %d of stage %d)",
                    n > 1 ? ", " : "", tg_pipe_item_name(p, p->item[i]).text, i - p->first[s], s,
                    tg_pipe_item_name(p, p->item[need]).text, need - p->first[other], other);
        s = other;
    } while (s != first);
    if (n > SHOWN) tg_text(text, sizeof text, &used, ", and %d more", n - SHOWN);
    return tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: items wait for each other: %s", text);
}

/* Finds the circle: going again and again from a stage to the stage for which it waits leads into the circle. */
static tg_status fail_waiting(const tg_pipe_plan *p, const progress *at) {
    int s = 0;
    while (at[s].next == p->first[s + 1]) s++;
    for (int i = 0; i < p->stages; i++) s = waits_for(p, at, s);
    int first = s;
    for (int k = waits_for(p, at, s); k != s; k = waits_for(p, at, k))
        if (k < first) first = k;
    return fail_circle(p, at, first);
}

/* ---- The run ---- */

static tg_status run(tg_pipe_plan *p, progress *at) {
    bool moved = true;
    for (int s = 0; s < p->stages; s++) at[s].next = p->first[s];
    while (moved) {
        moved = false;
        for (int s = 0; s < p->stages; s++) moved |= advance(p, at, s);
    }
    for (int s = 0; s < p->stages; s++) {
        if (at[s].next < p->first[s + 1]) return fail_waiting(p, at);
        if (at[s].end > p->makespan) p->makespan = at[s].end;
    }
    if (!isfinite(p->makespan))
        return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_new: the times are so large that their sum overflows; use a larger unit of time");
    return TG_OK;
}

tg_status tg_pipe_simulate(tg_pipe_plan *p) {
    size_t bytes = (size_t)p->stages * sizeof(progress);
    progress *at = tg_host_alloc(p->ctx, bytes);
    if (!at) return tg_ctx_status(p->ctx);
    tg_status s = run(p, at);
    tg_host_free(p->ctx, at, bytes);
    return s;
}
