/* Queries of a pipeline plan: the parts and messages of items, names, and the costs of stages. */
#include <math.h>
#include <stdio.h>

#include "base/runtime.h"
#include "base/text.h"
#include "parallel/pp/plan.h"

/* ---- Parts and messages ---- */

int tg_pipe_part_before(const tg_pipe_plan *p, int act, int part) {
    if (act == TG_PIPE_F) return part - 1;
    return act == TG_PIPE_B && part + 1 < tg_pipe_parts(p) ? part + 1 : -1;
}

int tg_pipe_part_after(const tg_pipe_plan *p, int act, int part) {
    if (act == TG_PIPE_B) return part - 1;
    return act == TG_PIPE_F && part + 1 < tg_pipe_parts(p) ? part + 1 : -1;
}

/* Returns the stage of a part; -1 if the part is -1 or lies on stage `same`. */
static int other_stage(const tg_pipe_plan *p, int part, int same) {
    return part < 0 || part % p->stages == same ? -1 : part % p->stages;
}

int tg_pipe_source(const tg_pipe_plan *p, int stage, tg_pipe_item item) {
    return other_stage(p, tg_pipe_part_before(p, item.act, tg_pipe_part(p, stage, item.chunk)), stage);
}

int tg_pipe_target(const tg_pipe_plan *p, int stage, tg_pipe_item item) {
    return other_stage(p, tg_pipe_part_after(p, item.act, tg_pipe_part(p, stage, item.chunk)), stage);
}

/* ---- Names ---- */

const char *tg_pipe_kind_name(tg_pipe_kind kind) {
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "forward", "custom"};
    return names[kind];
}

tg_pipe_name tg_pipe_title(const tg_pipe_plan *p) {
    tg_pipe_name title;
    char chunks[24] = "";
    if (p->chunks > 1) snprintf(chunks, sizeof chunks, " of %d chunks", p->chunks);
    size_t at = 0;
    tg_text(title.text, sizeof title.text, &at, "%s: %s%s, %s", tg_pipe_kind_name(p->kind),
            tg_count(p->stages, "stage").text, chunks, tg_count(p->micros, "micro-batch").text);
    return title;
}

tg_pipe_name tg_pipe_item_name(const tg_pipe_plan *p, tg_pipe_item item) {
    tg_pipe_name name;
    if (p->chunks > 1)
        snprintf(name.text, sizeof name.text, "%c%d.%d", "FBW"[item.act], item.micro, item.chunk);
    else
        snprintf(name.text, sizeof name.text, "%c%d", "FBW"[item.act], item.micro);
    return name;
}

/* ---- Queries ---- */

/* Counts the micro-batches of each part of a stage that have begun act `from` and not ended act `to`, and returns the
 * largest sum of these counts at one time. */
static int most_between(const tg_pipe_plan *p, int stage, tg_pipe_act from, tg_pipe_act to) {
    int now = 0, most = 0;
    for (int i = p->first[stage]; i < p->first[stage + 1]; i++) {
        if (p->item[i].act == from && ++now > most) most = now;
        if (p->item[i].act == to) now--;
    }
    return most;
}

/* Returns the act at whose end a tape is reset. */
static tg_pipe_act last_on_tape(const tg_pipe_plan *p) { return p->backward ? TG_PIPE_B : TG_PIPE_F; }

int tg_pipe_tapes(const tg_pipe_plan *p, int stage) { return most_between(p, stage, TG_PIPE_F, last_on_tape(p)); }

static tg_pipe_report report_of(const tg_pipe_plan *p, int stage) {
    tg_pipe_report r = TG_PIPE_REPORT();
    for (int i = p->first[stage]; i < p->first[stage + 1]; i++) {
        r.ideal += p->cost[p->item[i].act][tg_pipe_part(p, stage, p->item[i].chunk)];
        r.sends += tg_pipe_target(p, stage, p->item[i]) >= 0;
        r.receives += tg_pipe_source(p, stage, p->item[i]) >= 0;
    }
    r.peak = most_between(p, stage, TG_PIPE_F, p->split ? TG_PIPE_W : last_on_tape(p));
    if (p->split) r.waiting = most_between(p, stage, TG_PIPE_B, TG_PIPE_W);
    r.makespan = p->makespan;
    r.bubble = p->makespan > 0 ? 1 - r.ideal / p->makespan : 0;
    return r;
}

static tg_pipe_report report_of_all(const tg_pipe_plan *p) {
    tg_pipe_report all = TG_PIPE_REPORT();
    for (int s = 0; s < p->stages; s++) {
        tg_pipe_report r = report_of(p, s);
        all.makespan = r.makespan;
        all.ideal = fmax(all.ideal, r.ideal);
        all.bubble += r.bubble / p->stages;
        if (r.peak > all.peak) all.peak = r.peak;
        if (r.waiting > all.waiting) all.waiting = r.waiting;
        all.sends += r.sends;
        all.receives += r.receives;
    }
    return all;
}

tg_status tg_pipe_plan_query(const tg_pipe_plan *p, int stage, tg_pipe_report *out) {
    if (!p) return TG_ERR_ARGUMENT;
    if (!tg_ok(p->ctx)) return tg_ctx_status(p->ctx);
    if (!out || out->size < sizeof(size_t))
        return tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_query: out is NULL or has no size; use TG_PIPE_REPORT()");
    if (stage < TG_NONE || stage >= p->stages)
        return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_query: stage is %d, expected 0 to %d, or TG_NONE for the whole plan", stage,
                       p->stages - 1);
    tg_pipe_report r = stage == TG_NONE ? report_of_all(p) : report_of(p, stage);
    size_t size = out->size < sizeof r ? out->size : sizeof r;
    memcpy((char *)out + sizeof(size_t), (const char *)&r + sizeof(size_t), size - sizeof(size_t));
    return TG_OK;
}
