/* Groups of parameters with learning rates of their own: embeddings and output, matrices of layers, and vectors. */
#include <math.h>
#include <stdio.h>

#include "base/options.h"
#include "models/lm/lm.h"
#include "optim/optim.h"

typedef enum param_kind { EMBEDDING, MATRIX, VECTOR, KINDS } param_kind;

/* ---- Kinds of parameters ---- */

/* Returns whether path ends with "<table>.weight". */
static bool is_of(const char *path, const char *table) {
    char tail[64];
    int k = snprintf(tail, sizeof tail, "%s.weight", table);
    size_t n = strlen(path);
    return n >= (size_t)k && strcmp(path + n - k, tail) == 0;
}

static param_kind kind_of(const tg_module *lm, const tg_tensor *p, const char *path) {
    const tg_lm_name_table *names = tg_lm_names_of(&tg_lm_of(lm)->c);
    if (p->ndim < 2) return VECTOR;
    return is_of(path, names->embedding) || is_of(path, names->positions) || is_of(path, "lm_head") ? EMBEDDING
                                                                                                    : MATRIX;
}

static bool is_in(const tg_optim *o, const tg_tensor *p) {
    for (int i = 0; i < o->n; i++)
        if (o->item[i].param == p) return true;
    return false;
}

/* ---- Groups ---- */

/* Returns the schedule of a kind of parameters. A constant rate is also given as a schedule, so that tg_optim_set_lr
 * does not change it. */
static tg_schedule schedule_of(const tg_lm_rates *r, param_kind kind, double width) {
    double lr = kind == EMBEDDING ? r->embed_lr : r->lr, min = kind == EMBEDDING ? r->embed_min_lr : r->min_lr;
    double by = kind == MATRIX ? width : 1;
    tg_schedule s = {TG_SCHEDULE_DEFAULTS};
    if (r->schedule) s = *r->schedule;
    s.start_lr = s.lr > 0 ? s.start_lr / s.lr * lr / by : 0;
    s.lr = lr / by;
    s.min_lr = min / by;
    return s;
}

/* Adds the group of a kind of parameters. Returns the group's number, or a negative number on an error. */
static int add_group(tg_optim *o, const tg_lm_rates *r, param_kind kind, double width) {
    const tg_schedule s = schedule_of(r, kind, width);
    double eps = kind == MATRIX && width != 1 ? o->group[0].eps / width : TG_AUTO;
    return tg_optim_add_group(
        o, TG_GROUP(.weight_decay = kind == VECTOR ? 0 : r->weight_decay, .eps = eps, .schedule = &s));
}

/* Moves those parameters of a part that o has into the groups of their kinds. Adds a group when it is first needed;
 * group[kind] is its number, or -1 before that. */
static tg_status assign(tg_optim *o, const tg_lm_rates *r, const tg_module *lm, int group[KINDS]) {
    double width = tg_mup_width(&tg_lm_of(lm)->c);
    for (int i = 0, n = tg_module_param_count(lm); i < n; i++) {
        const char *path;
        tg_tensor *p = tg_module_param(lm, i, &path);
        param_kind kind = kind_of(lm, p, path);
        if (!is_in(o, p)) continue;
        if (group[kind] < 0 && (group[kind] = add_group(o, r, kind, width)) < 0) return lm->ctx->run.status;
        TG_TRY(tg_optim_assign(o, group[kind], &p, 1));
    }
    return TG_OK;
}

/* ---- Checks ---- */

static tg_status check_rates(tg_ctx *ctx, const tg_lm_rates *r) {
    bool finite = isfinite(r->lr + r->min_lr + r->embed_lr + r->embed_min_lr);
    if (finite && r->lr > 0 && r->min_lr >= 0 && r->embed_lr >= 0 && r->embed_min_lr >= 0 &&
        (r->schedule || r->min_lr + r->embed_min_lr == 0))
        return TG_OK;
    return tg_fail(
        ctx, TG_ERR_ARGUMENT,
        "tg_lm_groups: lr is %g, min_lr %g, embed_lr %g and embed_min_lr %g, expected finite numbers, lr above "
        "0, the others 0 or more, and both minimums 0 unless a schedule is given",
        r->lr, r->min_lr, r->embed_lr, r->embed_min_lr);
}

static tg_status check_modules(tg_module *const *lm, int n, const tg_optim *o) {
    tg_ctx *ctx = lm[0]->ctx;
    for (int i = 0; i < n; i++)
        if (!tg_is_lm(lm[i]) || lm[i]->ctx != ctx)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_groups: module %d is not a language model of the context", i);
    if (!o || o->ctx != ctx)
        return tg_fail(ctx, o ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_lm_groups: the optimizer is %s",
                       o ? "of another context" : "NULL");
    if (tg_mup_width(&tg_lm_of(lm[0])->c) == 1 || o->method == &tg_adam_method) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "tg_lm_groups: the optimizer is %s, but the rates of mup_base are those of Adam; use tg_adamw_new",
                   o->method->name);
}

tg_status tg_lm_groups(tg_module *const *lm, int n, tg_optim *o, const tg_lm_rates *given) {
    tg_lm_rates r;
    tg_schedule schedule;
    int group[KINDS] = {-1, -1, -1};
    if (!lm || n < 1 || !lm[0]) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = lm[0]->ctx;
    TG_TRY(ctx->run.status);
    TG_TRY(check_modules(lm, n, o));
    if (!given) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_groups: the rates are NULL");
    TG_TRY(tg_options(ctx, &r, &tg_lm_rates_struct, given, "tg_lm_groups: the rates"));
    TG_TRY(tg_options(ctx, &schedule, &tg_schedule_struct, r.schedule, "tg_lm_groups: the schedule"));
    if (r.schedule) r.schedule = &schedule;
    if (r.embed_lr == TG_AUTO) r.embed_lr = r.lr;
    if (r.embed_min_lr == TG_AUTO) r.embed_min_lr = r.min_lr;
    TG_TRY(check_rates(ctx, &r));
    for (int i = 0; i < n; i++) TG_TRY(assign(o, &r, lm[i], group));
    return TG_OK;
}
