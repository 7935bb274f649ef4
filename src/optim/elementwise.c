/* Runs an element-wise step for each parameter, on work memory that all parameters share. */
#include "optim/elementwise.h"

#include "autograd/gradients.h"

size_t tg_optim_work_bytes(tg_dtype dtype, int64_t n) { return ((size_t)n * tg_dtype_size(dtype) + 63) / 64 * 64; }

size_t tg_optim_each_work(const tg_tensor *p) {
    return 2 * tg_optim_work_bytes(tg_accumulate_dtype((tg_dtype)p->dtype), p->numel);
}

tg_status tg_optim_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n, double p, double q) {
    return ctx->run.ops->apply(ctx, f, out, in, n, (const double[2]){p, q}, false);
}

/* Copies the scalars to scalars32, for parameters that are stepped in float32. */
static tg_status narrow_scalars(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    const int64_t all = o->n_groups * TG_STEP_SCALARS;
    tg_array scalars = tg_array_of(o->scalars), narrow = tg_array_of(o->scalars32);
    scalars.shape = narrow.shape = &all;
    scalars.numel = narrow.numel = all;
    TG_OPTIM_MAP(id, narrow, 0, 0, scalars);
    return TG_OK;
}

/* Returns an array like `like`, in work memory from byte `at` on. */
static tg_array work_array(const tg_optim *o, const tg_array *like, size_t at) {
    tg_array a = *like;
    a.data = tg_data(o->work) ? (char *)tg_data(o->work) + at : NULL;
    return a;
}

/* Sets *skip to the TG_SCALAR_SKIP of an item if it may differ from that of its group: 1 is added if no rank has used
 * the parameter. */
static tg_status skip_of(const tg_optim *o, const tg_optim_item *it, const tg_tensor *scalars, tg_array *skip) {
    tg_ctx *ctx = o->ctx;
    static const int64_t one = 1;
    if (!tg_gradient_used(it->param)) return TG_OK;
    tg_array used = tg_array_of(tg_range_whole(it->param)->ext->used), like = used;
    like.shape = like.stride = &one;
    tg_array group = tg_array_spread(scalars, it->group * TG_STEP_SCALARS + TG_SCALAR_SKIP, &like);
    tg_array own = tg_array_spread(scalars, TG_STEP_GROUPS * TG_STEP_SCALARS, &like);
    TG_OPTIM_MAP(logical_not, own, 0, 0, used);
    TG_OPTIM_MAP(linear_sum, own, 1, 1, own, group);
    skip->data = own.data;
    return TG_OK;
}

static tg_status step_item(tg_optim *o, const tg_optim_item *it, const tg_tensor *grad, tg_optim_item_fn fn) {
    tg_ctx *ctx = o->ctx;
    tg_tensor *stepped = it->master ? it->master : it->param;
    const tg_tensor *scalars = stepped->dtype == TG_F64 ? o->scalars : o->scalars32;
    tg_optim_arrays a = {.ctx = ctx, .group = &o->group[it->group], .param = tg_array_of(stepped)};
    a.gradient = work_array(o, &a.param, 0);
    size_t bytes = tg_optim_work_bytes((tg_dtype)stepped->dtype, stepped->numel);
    a.other = work_array(o, &a.param, bytes);
    a.rest = work_array(o, &a.param, 2 * bytes);
    for (int i = 0; i < TG_OPTIM_STATES; i++) a.state[i] = tg_array_of(it->state[i]);
    for (int i = 0; i < TG_STEP_SCALARS; i++)
        a.scalar[i] = tg_array_spread(scalars, it->group * TG_STEP_SCALARS + i, &a.param);
    TG_TRY(skip_of(o, it, scalars, &a.scalar[TG_SCALAR_SKIP]));
    TG_OPTIM_MAP(mul, a.gradient, 0, 0, tg_array_of(grad), a.scalar[TG_SCALAR_COEFFICIENT]);
    TG_TRY(fn(o, &a));
    return it->master ? tg_gradient_put(it->param, it->master, false) : TG_OK;
}

tg_status tg_optim_each(tg_optim *o, const tg_optim_method *method, tg_optim_item_fn fn) {
    TG_TRY(narrow_scalars(o));
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = o->item[i].method == method ? tg_optim_gradient(&o->item[i]) : NULL;
        if (g) TG_TRY(step_item(o, &o->item[i], g, fn));
    }
    return TG_OK;
}

tg_status tg_optim_decay(const tg_optim_arrays *a) {
    tg_ctx *ctx = a->ctx;
    double decay = a->group->weight_decay;
    if (decay > 0) TG_OPTIM_MAP(linear_sum, a->gradient, 1, decay, a->gradient, a->param);
    return TG_OK;
}

tg_status tg_optim_move(const tg_optim_arrays *a, tg_array step) {
    tg_ctx *ctx = a->ctx;
    TG_OPTIM_MAP(mul, a->gradient, 0, 0, step, a->scalar[TG_SCALAR_LR]);
    TG_OPTIM_MAP(sum_unless, a->param, 1, -1, a->scalar[TG_SCALAR_SKIP], a->param, a->gradient);
    return TG_OK;
}
