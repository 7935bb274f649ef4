/* Optimisers: parameters in groups, their state, and the step that all methods share. */
#include <math.h>
#include <stdio.h>

#include "autograd/backward.h"
#include "kernels/scalar.h"
#include "optim/optim.h"
#include "parallel/grads.h"

/* What a failed creation returns: every call on it does nothing. */
static const tg_optim inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

tg_status tg_optim_check(const tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    return o->ctx->status;
}

/* ---- Making ---- */

static tg_status check_params(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who) {
    if (n <= 0 || !params)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %d parameters at %p, expected one or more", who, n,
                       (const void *)params);
    for (int i = 0; i < n; i++) {
        TG_TRY(tg_check(ctx, params[i], who));
        char what[160];
        tg_describe(params[i], what, sizeof what);
        if (params[i]->tape || !(params[i]->flags & TG_F_REQUIRES_GRAD))
            return tg_fail(ctx, TG_ERR_STATE,
                           "%s: parameter %d, %s, is not a leaf of the context that needs a gradient", who, i, what);
        if (!(params[i]->flags & TG_F_CONTIGUOUS))
            return tg_fail(ctx, TG_ERR_STATE, "%s: parameter %d, %s, is not contiguous", who, i, what);
        for (int j = 0; j < i; j++)
            if (params[j] == params[i])
                return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: parameter %d, %s, is given twice", who, i, what);
    }
    return TG_OK;
}

static tg_tensor *state_tensor(tg_tensor *p, tg_dtype dtype) {
    tg_ctx *ctx = p->ctx;
    tg_tensor *s = tg_owned_empty(ctx, dtype, p->ndim, p->shape, TG_MEM_OPTIMISER);
    if (!s) return NULL;
    s->ext->owners = 1;
    ctx->ops->fill(ctx, tg_array_of(s), 0);
    return s;
}

static void note_versions(tg_optim_item *it) {
    it->version = it->param->storage->version;
    it->master_version = it->master ? it->master->storage->version : 0;
}

/* Somebody may have written one of the two since the last step. A master that was loaded is the truth, with or without
 * the parameter that was rounded from it; else the parameter is. */
static tg_status agree_with_master(tg_optim_item *it) {
    if (!it->master) return TG_OK;
    if (it->master_version != it->master->storage->version) {
        TG_TRY(tg_gradient_put(it->param, it->master, false));
        tg_storage_wrote(it->param->storage, "tg_optim_step", TG_SITE);
    } else if (it->version != it->param->storage->version) {
        TG_TRY(tg_gradient_put(it->master, it->param, false));
    }
    note_versions(it);
    return TG_OK;
}

static tg_status begin_item(tg_optim *o, tg_optim_item *it, tg_tensor *p) {
    tg_dtype wide = tg_accumulate_dtype(p->dtype);
    *it = (tg_optim_item){.param = p, .ref = tg_ref_of(p)};
    for (int i = 0; i < o->method->n_states; i++)
        if (!(it->state[i] = state_tensor(p, wide))) return o->ctx->status;
    if (wide != p->dtype) {
        it->master = state_tensor(p, wide);
        if (!it->master) return o->ctx->status;
        TG_TRY(tg_gradient_put(it->master, p, false));
    }
    note_versions(it);
    return TG_OK;
}

static tg_tensor *group_word(tg_ctx *ctx) {
    return tg_owned_empty(ctx, TG_F64, 1, (const int64_t[]){5}, TG_MEM_OPTIMISER);
}

tg_optim *tg_optim_make(tg_ctx *ctx, const tg_optim_method *method, tg_tensor *const *params, int n, const char *who) {
    if (!tg_ok(ctx) || check_params(ctx, params, n, who) != TG_OK) return NULL;
    size_t bytes = sizeof(tg_optim) + (size_t)n * sizeof(tg_optim_item);
    tg_optim *o = tg_host_alloc(ctx, bytes);
    if (!o) return NULL;
    *o = (tg_optim){.ctx = ctx, .method = method, .clip = 1, .n = n, .n_groups = 1, .bytes = bytes};
    o->group[0] = (tg_optim_group_t){.lr_scale = 1, .word = group_word(ctx)};
    o->norms = tg_owned_empty(ctx, TG_F64, 1, (const int64_t[]){n}, TG_MEM_OPTIMISER);
    tg_status s = ctx->status;
    for (int i = 0; i < n && s == TG_OK; i++) s = begin_item(o, &o->item[i], params[i]);
    if (s == TG_OK) return o;
    tg_optim_free(o);
    return NULL;
}

static tg_optim *made(tg_optim *o) { return o ? o : (tg_optim *)&inert; }

static bool rate(tg_ctx *ctx, double lr, const char *who) {
    if (lr >= 0 && !isinf(lr)) return true;
    if (tg_ok(ctx)) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: learning rate %g, expected a finite number, 0 or more", who, lr);
    return false;
}

tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *given) {
    tg_sgd_opts opts;
    tg_options(ctx, &opts, sizeof opts, given, "tg_sgd_new: the options");
    if (tg_ok(ctx) && !given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_sgd_new: the options are NULL; lr must be given");
    if (!tg_ok(ctx) || !rate(ctx, opts.lr, "tg_sgd_new")) return made(NULL);
    if (tg_ok(ctx) &&
        !(opts.momentum >= 0 && opts.momentum < 1 && opts.weight_decay >= 0 && isfinite(opts.weight_decay) &&
          opts.dampening >= 0 && opts.dampening <= 1 && (!opts.nesterov || (opts.momentum > 0 && opts.dampening == 0))))
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_sgd_new: momentum %g, dampening %g, weight_decay %g%s; expected momentum in [0, 1), dampening in "
                "[0, 1], "
                "decay 0 or more, and for Nesterov momentum without dampening",
                opts.momentum, opts.dampening, opts.weight_decay, opts.nesterov ? ", nesterov" : "");
    tg_optim *o = tg_optim_make(ctx, &tg_sgd_method, params, n, "tg_sgd_new");
    if (!o) return made(NULL);
    o->sgd = opts;
    o->lr = opts.lr;
    o->group[0].weight_decay = opts.weight_decay;
    return o;
}

static tg_optim *adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *given, bool decoupled,
                          const char *who) {
    tg_adamw_opts opts;
    tg_options(ctx, &opts, sizeof opts, given, who);
    opts.lr = opts.lr == 0 ? 1e-3 : opts.lr == TG_NONE ? 0 : opts.lr;
    opts.beta1 = opts.beta1 == 0 ? 0.9 : opts.beta1 == TG_NONE ? 0 : opts.beta1;
    opts.beta2 = opts.beta2 == 0 ? 0.999 : opts.beta2 == TG_NONE ? 0 : opts.beta2;
    opts.eps = opts.eps == 0 ? 1e-8 : opts.eps == TG_NONE ? 0 : opts.eps;
    opts.weight_decay = opts.weight_decay == TG_NONE          ? 0
                        : opts.weight_decay == 0 && decoupled ? 0.01
                                                              : opts.weight_decay;
    if (!tg_ok(ctx) || !rate(ctx, opts.lr, who)) return made(NULL);
    if (tg_ok(ctx) && !(opts.beta1 >= 0 && opts.beta1 < 1 && opts.beta2 >= 0 && opts.beta2 < 1 && opts.eps >= 0 &&
                        opts.weight_decay >= 0 && isfinite(opts.eps + opts.weight_decay)))
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "%s: betas %g and %g, eps %g, weight_decay %g; expected betas in [0, 1), the others finite, 0 or more",
                who, opts.beta1, opts.beta2, opts.eps, opts.weight_decay);
    tg_optim *o = tg_optim_make(ctx, &tg_adam_method, params, n, who);
    if (!o) return made(NULL);
    o->adam = opts;
    o->decoupled = decoupled;
    o->lr = opts.lr;
    o->group[0].weight_decay = opts.weight_decay;
    return o;
}

tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return adam_new(ctx, params, n, opts, true, "tg_adamw_new");
}

tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return adam_new(ctx, params, n, opts, false, "tg_adam_new");
}

static void drop_state(tg_tensor *s) {
    if (!s) return;
    s->ext->owners = 0;
    tg_drop(s);
}

void tg_optim_free(tg_optim *o) {
    if (!o || o == &inert) return;
    for (int i = 0; i < o->n; i++) {
        for (int j = 0; j < TG_OPTIM_STATES; j++) drop_state(o->item[i].state[j]);
        drop_state(o->item[i].master);
    }
    for (int i = 0; i < o->n_groups; i++) tg_drop(o->group[i].word);
    tg_drop(o->norms);
    tg_host_free(o->ctx, o, o->bytes);
}

/* ---- Groups ---- */

static tg_status check_items(tg_optim *o, const char *who) {
    for (int i = 0; i < o->n; i++)
        if (tg_ref_get(o->ctx, o->item[i].ref) != o->item[i].param)
            return tg_fail(o->ctx, TG_ERR_HANDLE, "%s: parameter %d was dropped; it must outlive its optimiser", who,
                           i);
    return TG_OK;
}

int tg_optim_group(tg_optim *o, double lr_scale, double weight_decay) {
    if (tg_optim_check(o) != TG_OK) return -1;
    if (!(lr_scale >= 0) || !(weight_decay >= 0 || weight_decay == TG_NONE) || isinf(lr_scale + weight_decay) ||
        o->n_groups == TG_LEN(o->group)) {
        tg_fail(o->ctx, TG_ERR_ARGUMENT,
                "tg_optim_group: lr_scale %g, weight_decay %g in group %d; expected finite numbers, 0 or more, and at "
                "most %d groups",
                lr_scale, weight_decay, o->n_groups, TG_LEN(o->group));
        return -1;
    }
    tg_tensor *word = group_word(o->ctx);
    if (!word) return -1;
    o->group[o->n_groups] = (tg_optim_group_t){lr_scale, weight_decay == TG_NONE ? 0 : weight_decay, word};
    return o->n_groups++;
}

tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n) {
    TG_TRY(tg_optim_check(o));
    if (group < 0 || group >= o->n_groups || n < 0 || (n && !params))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_assign: group %d of %d, %d parameters", group, o->n_groups,
                       n);
    for (int pass = 0; pass < 2; pass++) /* look for all, then move them */
        for (int i = 0; i < n; i++) {
            int j = 0;
            TG_TRY(tg_check(o->ctx, params[i], "tg_optim_assign"));
            while (j < o->n && o->item[j].param != params[i]) j++;
            if (j == o->n)
                return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_assign: parameter %d is not this optimiser's", i);
            if (pass) o->item[j].group = group;
        }
    return TG_OK;
}

static bool holds_vectors(const tg_optim *o, int group) {
    for (int i = 0; i < o->n; i++)
        if (o->item[i].group == group && o->item[i].param->ndim < 2) return true;
    return false;
}

tg_status tg_optim_no_decay_1d(tg_optim *o) {
    TG_TRY(tg_optim_check(o));
    TG_TRY(check_items(o, "tg_optim_no_decay_1d"));
    for (int g = 0, groups = o->n_groups; g < groups; g++) {
        if (o->group[g].weight_decay == 0 || !holds_vectors(o, g)) continue;
        int twin = tg_optim_group(o, o->group[g].lr_scale, TG_NONE);
        if (twin < 0) return tg_optim_check(o);
        for (int i = 0; i < o->n; i++)
            if (o->item[i].group == g && o->item[i].param->ndim < 2) o->item[i].group = twin;
    }
    return TG_OK;
}

/* ---- The step ---- */

static tg_status write_words(tg_optim *o) {
    for (int i = 0; i < o->n_groups; i++) {
        double b1 = o->method == &tg_adam_method ? 1 - pow(o->adam.beta1, (double)(o->steps + 1)) : 1;
        double b2 = o->method == &tg_adam_method ? 1 - pow(o->adam.beta2, (double)(o->steps + 1)) : 1;
        double word[5] = {o->lr * o->group[i].lr_scale, o->clip, b1, b2, o->skip};
        TG_TRY(o->ctx->ops->copy(o->ctx, tg_data(o->group[i].word), word, sizeof word, TG_COPY_FROM_HOST));
    }
    return TG_OK;
}

/* Their bytes are there: nobody has discarded a gradient. */
static tg_status check_gradients(tg_optim *o, const char *who) {
    TG_TRY(check_items(o, who));
    for (int i = 0; i < o->n; i++) {
        tg_tensor *g = tg_gradient_of(o->item[i].param);
        TG_TRY(tg_gradient_need_drained(o->item[i].param, who));
        if (!g) continue;
        TG_TRY(tg_gradient_need_whole(o->item[i].param, who));
        TG_TRY(tg_storage_need(g->storage, g));
    }
    return TG_OK;
}

tg_status tg_optim_step(tg_optim *o) {
    TG_TRY(tg_optim_check(o));
    TG_TRY(check_gradients(o, "tg_optim_step"));
    for (int i = 0; i < o->n; i++) TG_TRY(agree_with_master(&o->item[i]));
    TG_TRY(write_words(o));
    bool skip = o->skip;
    for (int i = 0; i < o->n && !skip; i++) {
        tg_optim_item *it = &o->item[i];
        tg_tensor *g = tg_gradient_of(it->param);
        if (!g || !it->param->numel) continue;
        TG_TRY(tg_storage_await_readers(it->param->storage));
        TG_TRY(o->method->step(o, it, g));
        tg_storage_wrote(it->param->storage, "tg_optim_step", TG_SITE);
        note_versions(it);
    }
    o->clip = 1;
    o->skip = false;
    if (!skip) o->steps++;
    return TG_OK;
}

tg_status tg_optim_zero_grad(tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    for (int i = 0; i < o->n; i++)
        if (o->item[i].param->serial == o->item[i].ref.serial && o->item[i].param->ext)
            tg_gradient_forget(o->item[i].param->ext);
    if (o != &inert) o->clip = 1, o->skip = false; /* which were of those gradients */
    return o->ctx->status;
}

/* Sums of squares, one for each set of axes over which gradients are sharded. */
typedef struct square_sums {
    uint32_t mask[16];
    double sum[16];
    int n;
} square_sums;

static double *sum_of(square_sums *s, uint32_t mask) {
    int i = 0;
    while (i < s->n && s->mask[i] != mask) i++;
    if (i == s->n && i < TG_LEN(s->mask)) s->mask[s->n++] = mask;
    return &s->sum[i < TG_LEN(s->mask) ? i : 0];
}

/* Each gradient's sum of squares into its word of o->norms. */
static tg_status square_each(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    TG_TRY(ctx->ops->fill(ctx, tg_array_of(o->norms), 0));
    for (int i = 0; i < o->n; i++) {
        tg_tensor *g = tg_gradient_of(o->item[i].param);
        if (!g || !g->numel) continue;
        int64_t one[TG_MAX_DIMS], stride[TG_MAX_DIMS];
        for (int d = 0; d < g->ndim; d++) one[d] = stride[d] = 1;
        tg_array sum = tg_array_of(o->norms);
        sum.data = sum.data ? (double *)sum.data + i : NULL;
        sum.shape = one, sum.stride = stride, sum.ndim = g->ndim, sum.numel = 1;
        TG_TRY(ctx->ops->reduce(ctx, TG_SUMSQ, sum, tg_array_of(g), 1, false));
    }
    return TG_OK;
}

/* Over all parameters, each counted once: shards are summed over the axes that they lie on, and what is the same on
 * every rank of an axis counts as one. */
static tg_status sum_squares(tg_optim *o, double *total) {
    tg_ctx *ctx = o->ctx;
    square_sums s = {0};
    double part[64];
    TG_TRY(square_each(o));
    for (int i = 0; i < o->n; i += TG_LEN(part)) {
        int k = o->n - i < TG_LEN(part) ? o->n - i : TG_LEN(part);
        memset(part, 0, sizeof part);
        if (!ctx->meta)
            TG_TRY(ctx->ops->copy(ctx, part, (double *)tg_data(o->norms) + i, (size_t)k * sizeof *part,
                                  TG_COPY_TO_HOST));
        for (int j = 0; j < k; j++) {
            const tg_placing *place = o->item[i + j].param->place;
            *sum_of(&s, place ? place->varying : 0) += part[j];
        }
    }
    if (ctx->grid.axes) TG_TRY(tg_grid_sum(ctx, s.mask, s.sum, s.n));
    *total = 0;
    for (int i = 0; i < s.n; i++) *total += s.sum[i];
    return TG_OK;
}

static tg_status clip(tg_optim *o, double max_norm, double *norm) {
    double total;
    TG_TRY(tg_optim_check(o));
    TG_TRY(check_gradients(o, "tg_optim_clip"));
    if (!(max_norm >= 0))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_clip: max_norm %g, expected 0 (none) or more", max_norm);
    TG_TRY(sum_squares(o, &total));
    *norm = sqrt(total);
    o->skip = !isfinite(*norm);
    o->clip = max_norm > 0 && isfinite(*norm) ? fmin(1, max_norm / (*norm + 1e-6)) : 1;
    return TG_OK;
}

double tg_optim_clip(tg_optim *o, double max_norm) {
    double norm = NAN;
    if (clip(o, max_norm, &norm) != TG_OK && o && o->ctx->grid.axes) tg_ctx_skip(o->ctx);
    return norm;
}

/* ---- What an optimiser is ---- */

tg_status tg_optim_set_lr(tg_optim *o, double lr) {
    TG_TRY(tg_optim_check(o));
    if (!rate(o->ctx, lr, "tg_optim_set_lr")) return o->ctx->status;
    o->lr = lr;
    return TG_OK;
}

double tg_optim_lr(const tg_optim *o) { return o ? o->lr : NAN; }
int64_t tg_optim_steps(const tg_optim *o) { return o ? o->steps : 0; }

tg_status tg_optim_set_steps(tg_optim *o, int64_t steps) {
    TG_TRY(tg_optim_check(o));
    if (steps < 0)
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_steps: %lld steps, expected 0 or more", (long long)steps);
    o->steps = steps;
    return TG_OK;
}

/* Each parameter's states in order, its master last. */
static int states_of(const tg_optim *o, const tg_optim_item *it) { return o->method->n_states + (it->master ? 1 : 0); }

int tg_optim_state_count(const tg_optim *o) {
    int n = 0;
    for (int i = 0; o && i < o->n; i++) n += states_of(o, &o->item[i]);
    return n;
}

tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name) {
    if (!o) return tg_inert(&tg_dead_ctx);
    for (int j = 0, left = i; j < o->n && i >= 0; j++) {
        const tg_optim_item *it = &o->item[j];
        int k = states_of(o, it);
        if (left >= k) {
            left -= k;
            continue;
        }
        bool master = left == o->method->n_states;
        snprintf(o->name, sizeof o->name, "%s.%s", tg_name(it->param), master ? "master" : o->method->state_name[left]);
        if (name) *name = o->name;
        return master ? it->master : it->state[left];
    }
    tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_state: state %d of %d", i, tg_optim_state_count(o));
    return tg_inert(o->ctx);
}
