/* The groups of a rank: tg_rank_groups, after the RankGenerator of Megatron-Core, and tg_parallel.
 *
 * A grid numbers the ranks in mixed radix, with one digit for each axis. A text, the order, lists the axes; the
 * leftmost one varies fastest. There are two grids over the same ranks: the dense one (tp, cp, dp, pp) and the expert
 * one (etp, ep, edp, pp). Both must give every rank the same pipeline. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "core/random/rng.h"
#include "parallel/parallel.h"
#include "placement/rule.h"

enum { GRID = 5 }; /* the number of axes that an order can name: tp, cp, ep, dp, pp */

/* ---- Orders ---- */

/* Splits a text such as "tp-cp-dp" into names of at most 7 bytes, and returns their number; 0 if the text is NULL or
 * empty. Returns -1 if the text is not a list of up to GRID names. */
static int parse_order(const char *text, char names[][8]) {
    int n = 0;
    for (const char *at = text; at && *at; n++) {
        size_t length = strcspn(at, "-");
        if (n == GRID || !length || length > 7) return -1;
        memcpy(names[n], at, length);
        names[n][length] = 0;
        at += length + (at[length] == '-');
        if (!*at && at[-1] == '-') return -1;
    }
    return n;
}

/* Returns the index of the name; -1 if it is not among the names. */
static int find(char names[][8], int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}

/* The number of a rank is a sum with one term for each axis: the rank's coordinate times the stride of the axis.
 * Returns the sum of the terms of the chosen axes if `inside`, else of all other axes. chosen: bit i stands for axis i.
 * index: the coordinates on the summed axes, as one mixed-radix number. */
static int rank_of(const int *sizes, int n, uint32_t chosen, bool inside, int index) {
    int rank = 0, stride = 1;
    for (int i = 0; i < n; i++) {
        if ((bool)(chosen >> i & 1) == inside) {
            rank += index % sizes[i] * stride;
            index /= sizes[i];
        }
        stride *= sizes[i];
    }
    return rank;
}

/* Writes the members of all groups over the chosen axes to out, group after group. Sets *group_size to the number of
 * members of each group. Both pointers may be NULL. Returns the number of groups. */
static int groups_of(const int *sizes, int n, uint32_t chosen, int *out, int *group_size) {
    int members = 1, groups = 1;
    for (int i = 0; i < n; i++) *(chosen >> i & 1 ? &members : &groups) *= sizes[i];
    for (int g = 0; g < groups && out; g++)
        for (int r = 0; r < members; r++)
            out[g * members + r] = rank_of(sizes, n, chosen, false, g) + rank_of(sizes, n, chosen, true, r);
    if (group_size) *group_size = members;
    return groups;
}

int tg_rank_groups(const char *order, const int *sizes, const char *axes, int *out, int *group_size) {
    char names[GRID][8], wanted[GRID][8];
    int n = parse_order(order, names), k = parse_order(axes, wanted);
    uint32_t chosen = 0;
    if (n <= 0 || k <= 0 || !sizes) return -1;
    for (int i = 0; i < k; i++) {
        int at = find(names, n, wanted[i]);
        if (at < 0) return -1;
        chosen |= 1u << at;
    }
    for (int i = 0, world = 1; i < n; i++)
        if (sizes[i] < 1 || find(names, i, names[i]) >= 0 || __builtin_mul_overflow(world, sizes[i], &world)) return -1;
    return groups_of(sizes, n, chosen, out, group_size);
}

/* ---- One grid ---- */

typedef struct grid {
    char names[GRID][8];
    int sizes[GRID], n;
} grid;

/* Makes the grid of an order. Axis name[j] has size[j] ranks; messages call it axis[j]. Axes of size 1 that the order
 * does not name go last. */
static tg_status grid_make(tg_ctx *ctx, grid *g, const char *order, const char *const name[GRID],
                           const char *const axis[GRID], const int size[GRID]) {
    g->n = parse_order(order, g->names);
    for (int i = 0; i < g->n; i++) {
        bool known = false;
        for (int j = 0; j < GRID; j++) known |= !strcmp(g->names[i], name[j]);
        if (!known || find(g->names, i, g->names[i]) >= 0) g->n = -1;
    }
    if (g->n < 0)
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_parallel_new: order is \"%s\", expected a list of tp, cp, ep, dp and pp, each once, with '-' between",
            order);
    for (int j = 0; j < GRID; j++) {
        int at = find(g->names, g->n, name[j]);
        if (at < 0 && size[j] != 1)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_new: %s is %d, but order \"%s\" does not name %s",
                           axis[j], size[j], order, name[j]);
        if (at < 0) strcpy(g->names[at = g->n++], name[j]);
        g->sizes[at] = size[j];
    }
    return TG_OK;
}

void tg_parallel_make_comm(tg_parallel *p, const int *ranks, int n, const char *name, tg_axis axis, bool all,
                           tg_comm **out) {
    if (*out)
        tg_comm_rejoin(*out, ranks, n, name, all);
    else
        *out = tg_comm_split_known(p->world, ranks, n, name, axis, all);
}

/* Makes the communicator of this rank's group over some axes of a grid. axes: their names, such as "tp-pp". */
static tg_status group_make(tg_parallel *p, const grid *g, const char *axes, const char *name, tg_axis axis,
                            tg_comm **out) {
    tg_ctx *ctx = p->ctx;
    char order[8 * GRID] = "";
    size_t at = 0;
    for (int i = 0; i < g->n; i++) tg_text(order, sizeof order, &at, "%s%s", i ? "-" : "", g->names[i]);
    int members = 0, world = tg_comm_size(p->world), me = tg_comm_rank(p->world);
    int *ranks = tg_host_alloc(ctx, (size_t)world * sizeof *ranks);
    if (!ranks) return ctx->run.status;
    int groups = tg_rank_groups(order, g->sizes, axes, ranks, &members), mine = 0;
    for (int i = 0; i < groups * members; i++)
        if (ranks[i] == me) mine = i / members;
    tg_parallel_make_comm(p, ranks + mine * members, members, name, axis, true, out);
    tg_host_free(ctx, ranks, (size_t)world * sizeof *ranks);
    return ctx->run.status;
}

/* ---- Creation ---- */

/* The names of the axes in an order. In the expert grid tp and dp stand for etp and edp. */
static const char *const grid_names[GRID] = {"tp", "cp", "ep", "dp", "pp"};
static const char *const expert_names[GRID] = {"etp", "cp", "ep", "edp", "pp"};

/* Returns whether a * b * c, which may be too large for 64 bits, divides n. */
static bool divides(int n, int a, int b, int c) { return n % a == 0 && n / a % b == 0 && n / a / b % c == 0; }

/* Checks the options, and fills in their defaults. */
static tg_status check_sizes(tg_ctx *ctx, tg_parallel_opts *o, int world) {
    int *const size[] = {&o->tp, &o->cp, &o->pp, &o->etp, &o->ep};
    static const char *const name[] = {"tp", "cp", "pp", "etp", "ep"};
    if (o->etp == TG_AUTO) o->etp = o->tp;
    for (int i = 0; i < TG_LEN(size); i++)
        if (*size[i] < 1 || *size[i] > world)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_new: %s is %d, expected 1 to %d, the ranks of the world",
                           name[i], *size[i], world);
    if (!o->order) o->order = "tp-cp-ep-dp-pp";
    if (o->vp < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_new: vp is %d, expected 1 or more", o->vp);
    if (o->vp > 1 && o->pp == 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_parallel_new: vp is %d and pp is 1, expected vp 1: only the stages of a pipeline have "
                       "several chunks",
                       o->vp);
    if (!divides(world, o->tp, o->cp, o->pp))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_parallel_new: the world of %s is not divisible by tp x cp x pp = %d x %d x %d",
                       tg_count(world, "rank").text, o->tp, o->cp, o->pp);
    if (!divides(world, o->etp, o->ep, o->pp))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_parallel_new: the world of %s is not divisible by etp x ep x pp = %d x %d x %d",
                       tg_count(world, "rank").text, o->etp, o->ep, o->pp);
    if ((unsigned)o->rng > TG_RNG_MEGATRON)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_new: rng is %d, expected TG_RNG_GLOBAL or TG_RNG_MEGATRON",
                       (int)o->rng);
    return TG_OK;
}

/* Sets *same to whether both grids have the same groups along the axis of this name, which must have the same size in
 * both. */
static tg_status same_groups(tg_ctx *ctx, const grid *dense, const grid *expert, const char *axis, int world,
                             bool *same) {
    int *ranks = tg_host_alloc(ctx, 2 * (size_t)world * sizeof *ranks);
    if (!ranks) return ctx->run.status;
    uint32_t d = 1u << find((char(*)[8])dense->names, dense->n, axis),
             e = 1u << find((char(*)[8])expert->names, expert->n, axis);
    groups_of(dense->sizes, dense->n, d, ranks, NULL);
    groups_of(expert->sizes, expert->n, e, ranks + world, NULL);
    *same = !memcmp(ranks, ranks + world, (size_t)world * sizeof *ranks);
    tg_host_free(ctx, ranks, 2 * (size_t)world * sizeof *ranks);
    return TG_OK;
}

/* Fails unless both grids have the same pipelines, because a pipeline has layers of both grids. */
static tg_status check_pipelines(tg_ctx *ctx, const tg_parallel_opts *o, const grid *dense, const grid *expert,
                                 int world) {
    bool same;
    TG_TRY(same_groups(ctx, dense, expert, "pp", world, &same));
    if (same) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "tg_parallel_new: with order \"%s\" the pipelines of the dense and of the expert grid differ; put "
                   "pp first or last, or give the axes before it the same product of sizes in both grids",
                   o->order);
}

/* Makes the groups that consist of two stages of this rank's pipeline (stage_groups.c). */
static tg_status make_stage_groups(tg_parallel *p, const grid *dense) {
    int members = 0, mine = 0, world = tg_comm_size(p->world);
    int *ranks = tg_host_alloc(p->ctx, (size_t)world * sizeof *ranks);
    if (!ranks) return p->ctx->run.status;
    int at = find((char(*)[8])dense->names, dense->n, "pp");
    int groups = groups_of(dense->sizes, dense->n, 1u << at, ranks, &members);
    for (int i = 0; i < groups * members; i++)
        if (ranks[i] == tg_comm_rank(p->world)) mine = i / members;
    tg_status s = tg_parallel_make_stage_groups(p, ranks + mine * members);
    tg_host_free(p->ctx, ranks, (size_t)world * sizeof *ranks);
    return s;
}

/* Sets p->one_grid: whether ep is 1 and the groups of etp are those of tp. If so, edp consists of dp and cp. Groups of
 * the same size may still differ, for example if cp comes before tp in the order. */
static tg_status compare_grids(tg_parallel *p, const grid *dense, const grid *expert) {
    if (p->o.ep > 1 || p->o.etp != p->o.tp) {
        p->one_grid = false;
        return TG_OK;
    }
    return same_groups(p->ctx, dense, expert, "tp", tg_comm_size(p->world), &p->one_grid);
}

/* Fills in the grid of the context (placement/grid.h). Its `axes` include those of the expert grid only if the expert
 * grid differs from the dense one. */
static void fill_grid(tg_parallel *p) {
    tg_grid *g = tg_grid_own(p->ctx);
    g->axes = 0;
    g->draws_local = p->ctx->streams.by_order = p->o.rng == TG_RNG_MEGATRON;
    g->world = p->world;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        bool of_experts = a == TG_ETP || a == TG_EP || a == TG_EDP;
        g->size[a] = tg_parallel_size(p, (tg_axis)a);
        g->rank[a] = tg_parallel_rank(p, (tg_axis)a);
        g->comm[a] = p->comm[a];
        if (g->size[a] > 1 && a != TG_PP && !(p->one_grid && of_experts)) g->axes |= 1u << a;
    }
    p->ctx->run.has_peers = g->axes || g->size[TG_PP] > 1; /* pp has no placements, but its ranks communicate */
}

/* Makes all groups or, in a recovery, rebuilds them in place, and fills in the grid of the context. If that fails, the
 * grid has no axes, and nothing is placed. */
static tg_status make_groups(tg_parallel *p) {
    tg_grid_own(p->ctx)->axes = 0;
    const tg_parallel_opts *o = &p->o;
    int world = tg_comm_size(p->world), dp = world / (o->tp * o->cp * o->pp), edp = world / (o->etp * o->ep * o->pp);
    grid dense, expert;
    const int sizes[GRID] = {o->tp, o->cp, 1, dp, o->pp}, expert_sizes[GRID] = {o->etp, 1, o->ep, edp, o->pp};
    TG_TRY(grid_make(p->ctx, &dense, o->order, grid_names, grid_names, sizes));
    TG_TRY(grid_make(p->ctx, &expert, o->order, grid_names, expert_names, expert_sizes));
    TG_TRY(check_pipelines(p->ctx, o, &dense, &expert, world));
    TG_TRY(compare_grids(p, &dense, &expert));
    tg_axis of_etp = p->one_grid ? TG_TP : TG_ETP, of_edp = TG_EDP;
    if (p->one_grid) of_edp = o->cp == 1 ? TG_DP : TG_MAX_AXES; /* dp and cp together are not one axis */
    const struct {
        const grid *g;
        const char *axes, *name;
        tg_axis axis;
        tg_comm **to;
    } all[] = {
        {&dense, "tp", "tp", TG_TP, &p->comm[TG_TP]},          {&dense, "cp", "cp", TG_CP, &p->comm[TG_CP]},
        {&dense, "dp", "dp", TG_DP, &p->comm[TG_DP]},          {&dense, "pp", "pp", TG_PP, &p->comm[TG_PP]},
        {&expert, "tp", "etp", of_etp, &p->comm[TG_ETP]},      {&expert, "ep", "ep", TG_EP, &p->comm[TG_EP]},
        {&expert, "dp", "edp", of_edp, &p->comm[TG_EDP]},      {&dense, "dp-cp", "dp_cp", TG_MAX_AXES, &p->dp_cp},
        {&dense, "tp-pp", "model", TG_MAX_AXES, &p->model},
    };
    for (int i = 0; i < TG_LEN(all); i++)
        TG_TRY(group_make(p, all[i].g, all[i].axes, all[i].name, all[i].axis, all[i].to));
    TG_TRY(make_stage_groups(p, &dense));
    fill_grid(p);
    return TG_OK;
}

/* In check mode (tg_config.check), fails unless the default random stream has the same seed on all ranks of tp, cp and
 * dp: that of tg_config or of an earlier tg_rng_seed_parallel. The library assumes that numbers from this stream are
 * the same on all ranks (placement I of placement.h). */
static tg_status compare_seeds(const tg_parallel *p) {
    static const tg_axis axes[] = {TG_TP, TG_CP, TG_DP};
    for (int i = 0; p->ctx->check && i < TG_LEN(axes); i++) {
        int rank;
        int64_t first, other;
        if (!(tg_grid_axes(p->ctx) >> axes[i] & 1)) continue;
        TG_TRY(tg_placement_compare_number(p->ctx, p->comm[axes[i]], (int64_t)p->ctx->streams.seed, &rank, &first,
                                           &other));
        if (rank >= 0)
            return tg_fail(p->ctx, TG_ERR_PLACEMENT,
                           "tg_parallel_new: the default random stream has seed %llu on rank 0 of axis %s and seed "
                           "%llu on rank %d, expected one seed, because the library assumes that all ranks draw equal "
                           "numbers; give every rank the same tg_config.seed, and draw numbers of this rank only from "
                           "a stream of its own (tg_rng_add)",
                           (unsigned long long)first, tg_axis_name(axes[i]), (unsigned long long)other, rank);
    }
    return TG_OK;
}

/* Frees all groups, and clears the grid of the context. */
static void drop_groups(tg_parallel *p) {
    tg_parallel_drop_stage_groups(p);
    tg_comm_free(p->dp_cp);
    tg_comm_free(p->model);
    for (int a = 0; a < TG_MAX_AXES; a++) tg_comm_free(p->comm[a]);
    memset(p->comm, 0, sizeof p->comm);
    p->dp_cp = p->model = NULL;
    tg_grid_clear(p->ctx);
}

static const tg_parallel inert = {.ctx = (tg_ctx *)&tg_dead_ctx, .o.vp = 1};

/* Makes the tg_parallel. Returns NULL on an error. */
static tg_parallel *make(tg_comm *world, const tg_parallel_opts *given) {
    tg_ctx *ctx = tg_comm_ctx(world);
    tg_parallel_opts o;
    if (!tg_ok(ctx)) return NULL;
    tg_options(ctx, &o, &tg_parallel_opts_struct, given, "tg_parallel_new: the options");
    if (tg_grid_of(ctx)->owner)
        tg_fail(ctx, TG_ERR_STATE,
                "tg_parallel_new: the context already has a tg_parallel; call tg_parallel_free on it first");
    if (ctx->run.status != TG_OK || check_sizes(ctx, &o, tg_comm_size(world)) != TG_OK) return NULL;
    if (!tg_grid_open(ctx)) return NULL;
    tg_parallel *p = tg_host_alloc(ctx, sizeof *p);
    if (!p) return NULL;
    *p = (tg_parallel){.ctx = ctx, .world = world, .o = o};
    if (strlen(o.order) >= sizeof p->order)
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_new: order \"%s\" is too long; expected at most %zu bytes",
                o.order, sizeof p->order - 1);
    else
        p->o.order = strcpy(p->order, o.order);
    if (ctx->run.status == TG_OK && make_groups(p) == TG_OK) compare_seeds(p);
    if (ctx->run.status != TG_OK) {
        drop_groups(p);
        tg_host_free(ctx, p, sizeof *p);
        return NULL;
    }
    tg_grid_own(ctx)->owner = p;
    return p;
}

tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *given) {
    tg_parallel *p = make(world, given);
    tg_comm_note_missed(world, p ? TG_OK : TG_ERR_ABORTED);
    return p ? p : (tg_parallel *)&inert;
}

void tg_parallel_free(tg_parallel *p) {
    if (!p || p == &inert) return;
    tg_ctx *ctx = p->ctx;
    for (tg_parallel_listener *l = p->listeners; l; l = l->next) l->ended(l);
    drop_groups(p);
    tg_host_free(ctx, p, sizeof *p);
}

tg_status tg_parallel_recover(tg_parallel *p) {
    if (!p || p == &inert) return TG_ERR_ARGUMENT;
    TG_TRY(p->ctx->run.status);
    TG_TRY(tg_comm_recover(p->world));
    int world = tg_comm_size(p->world), model = p->o.tp * p->o.cp * p->o.pp, experts = p->o.etp * p->o.ep * p->o.pp;
    if (world % model || world % experts)
        return tg_fail(p->ctx, TG_ERR_STATE,
                       "tg_parallel_recover: the world has %s left, expected a multiple of tp x cp x pp = %d and of "
                       "etp x ep x pp = %d; free the tg_parallel, and create another over the world",
                       tg_count(world, "rank").text, model, experts);
    TG_TRY(make_groups(p));
    for (tg_parallel_listener *l = p->listeners; l; l = l->next) TG_TRY(l->recovered(l));
    return TG_OK;
}

/* ---- Queries ---- */

tg_ctx *tg_parallel_ctx(const tg_parallel *p) { return p ? p->ctx : (tg_ctx *)&tg_dead_ctx; }
tg_comm *tg_parallel_world(const tg_parallel *p) { return p ? p->world : NULL; }

tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis) {
    return p && (unsigned)axis < TG_MAX_AXES ? p->comm[axis] : NULL;
}

int tg_parallel_rank(const tg_parallel *p, tg_axis axis) {
    const tg_comm *c = tg_parallel_comm(p, axis);
    return c ? tg_comm_rank(c) : 0;
}

int tg_parallel_size(const tg_parallel *p, tg_axis axis) {
    const tg_comm *c = tg_parallel_comm(p, axis);
    return c ? tg_comm_size(c) : 1;
}

bool tg_is_sequence_parallel(const tg_parallel *p) { return p && p->o.sequence_parallel && p->o.tp > 1; }
int tg_parallel_vp(const tg_parallel *p) { return p ? p->o.vp : 1; }
tg_rng_mode tg_parallel_rng(const tg_parallel *p) { return p ? p->o.rng : TG_RNG_GLOBAL; }

tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed) {
    if (!p) return TG_ERR_ARGUMENT;
    if (!tg_ok(p->ctx)) return tg_ctx_status(p->ctx);
    bool own = p->o.rng == TG_RNG_MEGATRON;
    return tg_rng_seed_ranks(p->ctx, seed, own, own ? tg_parallel_rank(p, TG_TP) : 0,
                             own ? tg_parallel_rank(p, TG_EP) : 0, own ? tg_parallel_rank(p, TG_ETP) : 0);
}

tg_comm *tg_parallel_dp_cp(const tg_parallel *p) { return p ? p->dp_cp : NULL; }
tg_comm *tg_parallel_model(const tg_parallel *p) { return p ? p->model : NULL; }
