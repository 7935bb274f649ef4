/* Groups of parameters, which are stepped with the same numbers. */
#include <math.h>

#include "base/options.h"
#include "optim/optim.h"

/* Returns an option of a group: `usual` if it is TG_AUTO. */
static double given_or(double given, double usual) { return given == TG_AUTO ? usual : given; }

/* Fails if the optimizer has no space for `more` groups. */
static tg_status check_space(const tg_optim *o, int more, const char *who) {
    if (o->n_groups + more <= TG_LEN(o->group)) return TG_OK;
    return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                   "%s: the optimizer has %d groups already, and would get %d more; expected at most %d groups", who,
                   o->n_groups, more, TG_LEN(o->group));
}

/* Adds a group, for which there is space, and sends its learning rate to the device. Returns the group's number, or -1
 * on an error. */
static int add_group(tg_optim *o, const tg_optim_group_t *g) {
    o->group[o->n_groups] = *g;
    return tg_optim_send_rate(o, o->n_groups) == TG_OK ? o->n_groups++ : -1;
}

static tg_status check_group(const tg_optim *o, const tg_group_opts *given, const tg_optim_group_t *g) {
    tg_ctx *ctx = o->ctx;
    if (!(g->lr_scale >= 0 && g->weight_decay >= 0) || isinf(g->lr_scale + g->weight_decay))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_add_group: lr_scale is %g and weight_decay %g, expected finite numbers, 0 or more",
                       g->lr_scale, g->weight_decay);
    bool betas = given->beta1 != TG_AUTO || given->beta2 != TG_AUTO, eps = given->eps != TG_AUTO;
    if ((betas && !o->method->betas) || (eps && !o->method->eps))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_add_group: beta1 is %g, beta2 %g and eps %g, but %s has %s; leave the others TG_AUTO",
                       given->beta1, given->beta2, given->eps, o->method->name,
                       o->method->betas ? "only betas"
                       : o->method->eps ? "only eps"
                                        : "none of them");
    if (!(g->beta1 >= 0 && g->beta1 < 1 && g->beta2 >= 0 && g->beta2 < 1 && g->eps >= 0 && isfinite(g->eps)))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_optim_add_group: beta1 is %g, beta2 %g and eps %g, expected betas in [0, 1), and eps finite, 0 or more",
            g->beta1, g->beta2, g->eps);
    if (g->schedule.size && !tg_schedule_ok(&g->schedule))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_add_group: the schedule (lr %g, min_lr %g, %lld steps) is invalid, so tg_schedule_lr "
                       "returns NaN; see schedule.h for the ranges",
                       g->schedule.lr, g->schedule.min_lr, (long long)g->schedule.steps);
    return TG_OK;
}

int tg_optim_add_group(tg_optim *o, const tg_group_opts *given) {
    tg_group_opts opts;
    if (tg_optim_check(o) != TG_OK) return -1;
    if (tg_options(o->ctx, &opts, &tg_group_opts_struct, given, "tg_optim_add_group: the options") != TG_OK) return -1;
    const tg_optim_group_t *first = &o->group[0];
    tg_optim_group_t g = {.lr_scale = opts.lr_scale,
                          .weight_decay = given_or(opts.weight_decay, first->weight_decay),
                          .beta1 = given_or(opts.beta1, first->beta1),
                          .beta2 = given_or(opts.beta2, first->beta2),
                          .eps = given_or(opts.eps, first->eps),
                          .lr = o->lr};
    if (opts.schedule &&
        tg_options(o->ctx, &g.schedule, &tg_schedule_struct, opts.schedule, "tg_optim_add_group: the schedule"))
        return -1;
    if (check_group(o, &opts, &g) != TG_OK || check_space(o, 1, "tg_optim_add_group") != TG_OK) return -1;
    return add_group(o, &g);
}

tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n) {
    TG_TRY(tg_optim_check(o));
    if (group < 0 || group >= o->n_groups || n < 0 || (n && !params))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                       "tg_optim_assign: group is %d of %d groups and n is %d, expected a group that exists and an "
                       "array of n parameters, 0 or more",
                       group, o->n_groups, n);
    for (int pass = 0; pass < 2; pass++) /* the first pass only checks that all are found, the second moves them */
        for (int i = 0; i < n; i++) {
            int j = 0;
            TG_TRY(tg_check(o->ctx, params[i], "tg_optim_assign"));
            while (j < o->n && o->item[j].param != params[i]) j++;
            if (j == o->n)
                return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                               "tg_optim_assign: parameter %d does not belong to this optimizer", i);
            if (pass) o->item[j].group = group;
        }
    return TG_OK;
}

/* Returns whether the parameter of the item, which may have only a range of it, has fewer than two dims. */
static bool is_vector(const tg_optim_item *it) { return tg_range_whole(it->param)->ndim < 2; }

/* Returns whether the group has weight decay and a parameter with fewer than two dims. */
static bool decays_vectors(const tg_optim *o, int group) {
    for (int i = 0; o->group[group].weight_decay != 0 && i < o->n; i++)
        if (o->item[i].group == group && is_vector(&o->item[i])) return true;
    return false;
}

tg_status tg_optim_no_decay_1d(tg_optim *o) {
    int more = 0;
    TG_TRY(tg_optim_check(o));
    TG_TRY(tg_optim_check_items(o, "tg_optim_no_decay_1d"));
    for (int g = 0; g < o->n_groups; g++) more += decays_vectors(o, g);
    TG_TRY(check_space(o, more, "tg_optim_no_decay_1d"));
    for (int g = 0, groups = o->n_groups; g < groups; g++) {
        if (!decays_vectors(o, g)) continue;
        tg_optim_group_t without = o->group[g];
        without.weight_decay = 0;
        int copy = add_group(o, &without);
        if (copy < 0) return tg_optim_check(o);
        for (int i = 0; i < o->n; i++)
            if (o->item[i].group == g && is_vector(&o->item[i])) o->item[i].group = copy;
    }
    return TG_OK;
}
