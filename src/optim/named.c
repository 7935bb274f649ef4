/* Groups of parameters by their names. */
#include "base/pattern.h"
#include "optim/optim.h"

static const char who[] = "tg_optim_assign_named";

static const char *name_of(const tg_optim *o, int i) { return tg_name(tg_range_whole(o->item[i].param)); }

static tg_status check(const tg_optim *o, int group, const char *patterns) {
    TG_TRY(tg_optim_check(o));
    if (group < 0 || group >= o->n_groups)
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "%s: group is %d, expected 0 to %d", who, group, o->n_groups - 1);
    if (patterns && *patterns) return TG_OK;
    return tg_fail(o->ctx, TG_ERR_ARGUMENT, "%s: patterns is \"%s\", expected patterns that are separated by commas",
                   who, patterns ? patterns : "(NULL)");
}

/* Fails for a pattern that matches no name, which is probably misspelled. */
static tg_status check_used(const tg_optim *o, const char *pattern) {
    for (int i = 0; i < o->n; i++)
        if (tg_pattern_matches(pattern, name_of(o, i))) return TG_OK;
    return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                   "%s: the pattern \"%s\" matches no parameter of the optimizer; the first one has the name \"%s\"",
                   who, pattern, name_of(o, 0));
}

int tg_optim_assign_named(tg_optim *o, int group, const char *patterns) {
    char one[TG_PATTERN_BYTES];
    const char *rest = patterns;
    int count = 0;
    if (check(o, group, patterns) != TG_OK || tg_optim_check_items(o, who) != TG_OK) return -1;
    while (tg_pattern_take(&rest, one))
        if (check_used(o, one) != TG_OK) return -1;
    for (int i = 0; i < o->n; i++)
        if (tg_patterns_match(patterns, name_of(o, i))) {
            o->item[i].group = group;
            count++;
        }
    return count;
}
