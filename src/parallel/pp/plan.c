/* Pipeline plans: their options and their creation. */
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/runtime.h"
#include "parallel/pp/plan.h"

/* ---- Options ---- */

static tg_status check_counts(tg_ctx *ctx, const tg_pipe_plan_opts *o) {
    if ((unsigned)o->kind > TG_PIPE_CUSTOM)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: kind is %d, expected a tg_pipe_kind", (int)o->kind);
    if (o->stages < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: stages is %d, expected 1 or more", o->stages);
    if (o->chunks < 1 || o->chunks > UINT8_MAX + 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: chunks is %d, expected 1 to %d", o->chunks,
                       UINT8_MAX + 1);
    if (o->chunks > 1 && (o->kind == TG_PIPE_1F1B || o->kind == TG_PIPE_ZB_H1))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_new: chunks is %d, but schedule %s has 1 chunk per stage; use "
                       "TG_PIPE_INTERLEAVED, or lists of your own",
                       o->chunks, tg_pipe_kind_name(o->kind));
    if (o->micros < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: micros is %d, expected 1 or more", o->micros);
    if ((int64_t)o->stages * o->chunks > INT_MAX / 3 / o->micros)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_new: stages x chunks x micros is %d x %d x %d, expected a product of at most %d",
                       o->stages, o->chunks, o->micros, INT_MAX / 3);
    return TG_OK;
}

static tg_status check_group(tg_ctx *ctx, const tg_pipe_plan_opts *o) {
    bool turns = o->kind == TG_PIPE_GPIPE || o->kind == TG_PIPE_INTERLEAVED || o->kind == TG_PIPE_FORWARD;
    if (o->group == TG_AUTO) return TG_OK;
    if (!turns)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_new: group is %d, but schedule %s has no turns; leave group TG_AUTO", o->group,
                       tg_pipe_kind_name(o->kind));
    if (o->group < o->stages)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_pipe_plan_new: group is %d, expected %d or more, the number of stages, or TG_AUTO for that "
                       "number",
                       o->group, o->stages);
    return TG_OK;
}

/* Checks that lists are given if the kind is TG_PIPE_CUSTOM, and only then. Sets *n to the number of all items. */
static tg_status check_lists(tg_ctx *ctx, const tg_pipe_plan_opts *o, int *n) {
    int64_t sum = 0;
    bool custom = o->kind == TG_PIPE_CUSTOM;
    if (custom ? !o->items || !o->n_items : o->items || o->n_items)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: items and n_items must be %s",
                       custom ? "given for TG_PIPE_CUSTOM" : "NULL, because only TG_PIPE_CUSTOM takes lists");
    for (int s = 0; custom && s < o->stages; s++) {
        if (o->n_items[s] < 0 || (o->n_items[s] && !o->items[s]))
            return tg_fail(ctx, TG_ERR_ARGUMENT,
                           "tg_pipe_plan_new: items[%d] is %s, and n_items[%d] is %d, expected a list of 0 or more "
                           "items",
                           s, o->items[s] ? "a list" : "NULL", s, o->n_items[s]);
        sum += o->n_items[s];
    }
    if (custom && (sum < 1 || sum > INT_MAX))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: the lists have %s, expected 1 to %d",
                       tg_count(sum, "item").text, INT_MAX);
    *n = (int)sum;
    return TG_OK;
}

static tg_status check_time(tg_ctx *ctx, const char *name, int i, double time) {
    char place[16] = "";
    if (isfinite(time) && time >= 0) return TG_OK;
    if (i >= 0) snprintf(place, sizeof place, "[%d]", i);
    return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: %s%s is %g, expected a finite number >= 0", name, place,
                   time);
}

/* ---- Creation ---- */

tg_status tg_pipe_take_items(tg_pipe_plan *p, int n) {
    p->n = n;
    p->item = tg_host_alloc(p->ctx, (size_t)n * sizeof *p->item);
    p->begin = tg_host_alloc(p->ctx, (size_t)n * sizeof *p->begin);
    return tg_ctx_status(p->ctx);
}

/* Copies the caller's lists, which have n items. */
static tg_status copy_lists(tg_pipe_plan *p, const tg_pipe_plan_opts *o, int n) {
    TG_TRY(tg_pipe_take_items(p, n));
    for (int s = 0; s < p->stages; s++) {
        if (o->n_items[s]) memcpy(p->item + p->first[s], o->items[s], (size_t)o->n_items[s] * sizeof *p->item);
        p->first[s + 1] = p->first[s] + o->n_items[s];
    }
    return TG_OK;
}

/* Notes which acts the lists have. */
static void find_acts(tg_pipe_plan *p) {
    for (int i = 0; i < p->n; i++) {
        p->backward |= p->item[i].act != TG_PIPE_F;
        p->split |= p->item[i].act == TG_PIPE_W;
    }
}

static size_t costs_size(const tg_pipe_plan *p) { return 3 * (size_t)tg_pipe_parts(p) * sizeof(double); }

/* Fills in p->cost and p->hop. If the lists have no W, its cost is added to that of B. */
static tg_status take_costs(tg_pipe_plan *p, const tg_pipe_plan_opts *o) {
    static const char *const name[] = {"f", "b", "w"};
    const double *const given[] = {o->f, o->b, o->w};
    int parts = tg_pipe_parts(p);
    if (!(p->cost[0] = tg_host_alloc(p->ctx, costs_size(p)))) return tg_ctx_status(p->ctx);
    for (int a = 0; a < TG_LEN(given); a++) {
        p->cost[a] = p->cost[0] + (size_t)a * parts;
        for (int k = 0; k < parts; k++) {
            p->cost[a][k] = given[a] ? given[a][k] : 1.0 / p->chunks;
            TG_TRY(check_time(p->ctx, name[a], k, p->cost[a][k]));
        }
    }
    for (int k = 0; !p->split && k < parts; k++) p->cost[TG_PIPE_B][k] += p->cost[TG_PIPE_W][k];
    p->hop = o->hop;
    return check_time(p->ctx, "hop", -1, o->hop);
}

static size_t places_size(const tg_pipe_plan *p) { return 3 * (size_t)tg_pipe_parts(p) * p->micros * sizeof(int); }

static tg_status check_plan(tg_pipe_plan *p) {
    if (!(p->place = tg_host_alloc(p->ctx, places_size(p)))) return tg_ctx_status(p->ctx);
    tg_status s = tg_pipe_verify(p);
    if (s == TG_OK) s = tg_pipe_simulate(p);
    tg_host_free(p->ctx, p->place, places_size(p));
    p->place = NULL;
    return s;
}

static tg_status make(tg_pipe_plan *p, const tg_pipe_plan_opts *o, int n) {
    p->first = tg_host_alloc(p->ctx, ((size_t)p->stages + 1) * sizeof *p->first);
    if (!p->first) return tg_ctx_status(p->ctx);
    int group = o->group == TG_AUTO ? p->stages : o->group;
    TG_TRY(p->kind == TG_PIPE_CUSTOM ? copy_lists(p, o, n) : tg_pipe_schedule(p, group));
    find_acts(p);
    TG_TRY(take_costs(p, o));
    return check_plan(p);
}

tg_pipe_plan *tg_pipe_plan_new(tg_ctx *ctx, const tg_pipe_plan_opts *opts) {
    tg_pipe_plan_opts o;
    int n = 0;
    if (!tg_ok(ctx)) return NULL;
    if (tg_options(ctx, &o, &tg_pipe_plan_opts_struct, opts, "tg_pipe_plan_new: the options") != TG_OK) return NULL;
    if (check_counts(ctx, &o) != TG_OK || check_group(ctx, &o) != TG_OK || check_lists(ctx, &o, &n) != TG_OK)
        return NULL;
    tg_pipe_plan *p = tg_host_alloc(ctx, sizeof *p);
    if (!p) return NULL;
    *p = (tg_pipe_plan){.ctx = ctx, .kind = o.kind, .stages = o.stages, .chunks = o.chunks, .micros = o.micros};
    if (make(p, &o, n) == TG_OK) return p;
    tg_pipe_plan_free(p);
    return NULL;
}

void tg_pipe_plan_free(tg_pipe_plan *p) {
    if (!p) return;
    tg_host_free(p->ctx, p->first, ((size_t)p->stages + 1) * sizeof *p->first);
    tg_host_free(p->ctx, p->item, (size_t)p->n * sizeof *p->item);
    tg_host_free(p->ctx, p->begin, (size_t)p->n * sizeof *p->begin);
    tg_host_free(p->ctx, p->cost[0], costs_size(p));
    tg_host_free(p->ctx, p, sizeof *p);
}
