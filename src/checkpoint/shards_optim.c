/* Adds the state of optimizers, and averages, to the list of sharded state. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "checkpoint/shards.h"
#include "core/tensor/rehome.h"
#include "optim/average.h"
#include "optim/optim.h"

/* Returns the key that the list has for a parameter or, if `param` is a range of a parameter, for that parameter. If
 * the list does not have the parameter, returns its name. */
static const char *name_of(const tg_shards *s, const tg_tensor *param) {
    param = tg_range_whole(param);
    for (int i = 0; i < s->n; i++)
        if (s->item[i].x == param || s->item[i].x == tg_range_kept(param)) return s->item[i].key;
    return tg_name(param);
}

/* Adds the state tensors and the master weights of one parameter of an optimizer. */
static tg_status add_item(tg_shards *s, const char *prefix, const tg_optim_item *it) {
    char key[TG_SHARDS_KEY], suffix[64];
    if (tg_ref_get(s->ctx, it->ref) != it->param)
        return tg_fail(s->ctx, TG_ERR_HANDLE, "tg_shards_add_optim: a parameter of the optimizer was dropped");
    for (int k = 0; k <= TG_OPTIM_STATES; k++) {
        bool master = k == TG_OPTIM_STATES;
        tg_tensor *x = master ? it->master : it->state[k];
        if (!x) continue;
        snprintf(suffix, sizeof suffix, ".%s", master ? "master" : it->method->state_name[k]);
        TG_TRY(tg_shards_join(s, key, prefix, name_of(s, it->param), suffix));
        TG_TRY(tg_shards_add_item(s, key, x, it->param, "tg_shards_add_optim"));
    }
    return TG_OK;
}

static tg_status add_scale(tg_shards *s, const char *prefix, const tg_optim *o) {
    char key[TG_SHARDS_KEY];
    TG_TRY(tg_shards_join(s, key, prefix, TG_OPTIM_SCALE_NAME, ""));
    return tg_shards_add_item(s, key, o->scale_state, o->scale_state, "tg_shards_add_optim");
}

tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o) {
    char key[TG_SHARDS_KEY];
    if (!s) return TG_ERR_ARGUMENT;
    TG_TRY(s->ctx->run.status);
    if (!o || o->ctx != s->ctx)
        return tg_fail(s->ctx, o ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_shards_add_optim: %s",
                       o ? "the optimizer is of another context" : "the optimizer is NULL");
    if (s->n_steps == TG_LEN(s->steps))
        return tg_fail(s->ctx, TG_ERR_STATE, "tg_shards_add_optim: a list can have at most %d optimizers",
                       TG_LEN(s->steps));
    TG_TRY(tg_shards_join(s, key, prefix, "steps", ""));
    TG_TRY(tg_shards_check_key(s, key, "tg_shards_add_optim"));
    for (int i = 0; i < s->n_steps; i++)
        if (strcmp(s->steps[i].key, key) == 0)
            return tg_fail(s->ctx, TG_ERR_STATE, "tg_shards_add_optim: the key '%.128s' exists already", key);
    char *copy = tg_host_strdup(s->ctx, key);
    int n = s->n;
    tg_status status = copy ? TG_OK : s->ctx->run.status;
    for (int i = 0; i < o->n && status == TG_OK; i++) status = add_item(s, prefix, &o->item[i]);
    if (status == TG_OK && tg_optim_is_scale_dynamic(o)) status = add_scale(s, prefix, o);
    if (status == TG_OK)
        s->steps[s->n_steps++] = (tg_shard_steps){copy, o};
    else
        tg_host_strfree(s->ctx, copy);
    return tg_shards_undo_if_failed(s, n, status);
}

static tg_status add_average(tg_shards *s, const char *prefix, const tg_average *a) {
    const char *who = "tg_shards_add_average";
    char key[TG_SHARDS_KEY];
    for (int i = 0; i < a->n; i++) {
        const tg_average_item *it = &a->item[i];
        if (tg_ref_get(s->ctx, it->ref) != it->param)
            return tg_fail(s->ctx, TG_ERR_HANDLE, "%s: a parameter of the averages was dropped", who);
        TG_TRY(tg_shards_join(s, key, prefix, name_of(s, it->param), ".average"));
        TG_TRY(tg_shards_add_item(s, key, it->average, it->param, who));
    }
    TG_TRY(tg_shards_join(s, key, prefix, TG_AVERAGE_UPDATES_NAME, ""));
    return tg_shards_add_item(s, key, a->updates, a->updates, who);
}

tg_status tg_shards_add_average(tg_shards *s, const char *prefix, tg_average *a) {
    if (!s) return TG_ERR_ARGUMENT;
    TG_TRY(s->ctx->run.status);
    if (!a || a->ctx != s->ctx)
        return tg_fail(s->ctx, a ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_shards_add_average: the averages are %s",
                       a ? "of another context" : "NULL");
    int n = s->n;
    return tg_shards_undo_if_failed(s, n, add_average(s, prefix, a));
}
