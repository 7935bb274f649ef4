/* tg_module_replicate: places the parameters of a module, except those of experts, as R (TG_R of placement.h) on the
 * axes over which their gradients are summed. */
#include <tapegrad/parallel.h>

#include "nn/module.h"
#include "placement/grid.h"

/* Places x as R on the axis, unless it has a placement there or the axis has one rank. */
static tg_status place_where_not(const tg_parallel *p, tg_tensor *x, tg_axis axis) {
    if (tg_parallel_size(p, axis) == 1 || (x->ext && x->ext->placed >> axis & 1)) return TG_OK;
    return tg_place(p, x, axis, (tg_placement){.kind = TG_REPLICATED});
}

/* Returns whether x has a placement on the expert grid, so that it is the parameter of an expert. */
static bool of_experts(const tg_tensor *x) {
    return x->ext && x->ext->placed & TG_EXPERT_AXES;
}

tg_status tg_module_replicate(tg_module *m, const tg_parallel *p) {
    if (!m || !p) return TG_ERR_ARGUMENT;
    TG_TRY(m->ctx->run.status);
    if (tg_parallel_ctx(p) != m->ctx)
        return tg_fail(m->ctx, TG_ERR_HANDLE,
                       "tg_module_replicate: the tg_parallel belongs to another context than the module");
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) {
        tg_tensor *x = tg_module_param(m, i, NULL);
        if (of_experts(x)) continue;
        TG_TRY(place_where_not(p, x, TG_DP));
        TG_TRY(place_where_not(p, x, TG_CP));
        if (tg_is_sequence_parallel(p)) TG_TRY(place_where_not(p, x, TG_TP));
    }
    return TG_OK;
}
