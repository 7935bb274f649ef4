/* The state of a training program over 12 compositions of ranks: a model in pipeline chunks with tensor-parallel layers
 * and a shared table of words, layers of experts, an optimizer whose state, gradients and parameters are divided over
 * the ranks or not, and random streams. What one composition saves another loads, and then saves the same bytes as if
 * the state had always been its own. Runs every pair of them if TG_LONG is in the environment, otherwise pairs that
 * cover every change. */
#define _GNU_SOURCE
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "state.h"

enum { LAYERS = 4, VOCAB = 200, WIDTH = 16, EXPERTS = 4 };

typedef struct composition {
    int ranks, tp, cp, pp, vp, ep, etp, zero;
    bool sp;
} composition;

static const composition all[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false}, {2, 1, 1, 1, 1, 1, 1, 1, false}, {2, 2, 1, 1, 1, 1, 2, 0, true},
    {4, 2, 1, 1, 1, 1, 2, 2, true},  {2, 1, 1, 2, 1, 1, 1, 0, false}, {4, 1, 1, 2, 2, 1, 1, 3, false},
    {4, 2, 1, 2, 2, 1, 2, 0, true},  {4, 1, 2, 1, 1, 1, 1, 3, false}, {2, 1, 2, 1, 1, 2, 1, 0, false},
    {4, 2, 2, 1, 1, 2, 1, 1, false}, {4, 1, 1, 1, 1, 4, 1, 2, false}, {8, 2, 2, 2, 1, 2, 1, 3, true},
};
enum { N = sizeof all / sizeof *all };

/* ---- The program of a rank ---- */

enum { CHUNKS = 2, PARAMS = 64 };

typedef struct program {
    tg_ctx *ctx;
    tg_parallel *p;
    const composition *c;
    tg_module *gpt[CHUNKS], *experts[LAYERS];
    tg_tensor *param[PARAMS];
    int n;
    tg_flat *flat;
    tg_optim *optim;
    tg_shards *s;
} program;

static void make_gpt(program *g, int chunk) {
    g->gpt[chunk] =
        tg_gpt_new(g->ctx, TG_GPT(.arch = TG_LLAMA, .vocab = VOCAB, .layers = LAYERS, .heads = 4, .hidden = WIDTH,
                                  .ffn = 24, .positions = 8, .tied = true, .parallel = g->p, .chunk = chunk, .key = 1));
    g->n += tg_module_params(g->gpt[chunk], g->param + g->n, PARAMS - g->n);
}

/* Makes the experts of a layer, if this stage has it. */
static void make_experts(program *g, int layer) {
    const tg_place_at places[] = {{TG_EP, TG_SHARD(0)}, {TG_ETP, TG_SHARD(1)}, {TG_EDP, TG_R}};
    if (layer * g->c->pp / LAYERS != tg_parallel_rank(g->p, TG_PP)) return;
    tg_tensor *x = filled(g->p, "experts", layer, TG_F64, TG_SHAPE(EXPERTS, 2 * WIDTH), places, 3, 0);
    g->param[g->n++] = x;
    g->experts[layer] = tg_module_new(g->ctx, &box, NULL);
    tg_module_add_param(g->experts[layer], "weight", x);
}

/* Lists the state. The experts of all layers are stacked. */
static void list(program *g) {
    g->s = tg_shards_new(g->p);
    for (int i = 0; i < g->c->vp; i++) tg_shards_add_module(g->s, "model", g->gpt[i]);
    for (int i = 0; i < LAYERS; i++) {
        if (!g->experts[i]) continue;
        tg_shards_push(g->s, "experts", LAYERS, i);
        tg_shards_add_module(g->s, NULL, g->experts[i]);
        tg_shards_pop(g->s);
    }
    tg_shards_add_optim(g->s, "optim", g->optim);
    tg_shards_add_rng(g->s);
}

/* Leaves out the rows that pad the vocabulary, whose number depends on tp. */
static void leave_out_padding(const program *g) {
    for (int i = 0; i < tg_shards_count(g->s); i++) {
        tg_shard_info info = TG_SHARD_INFO();
        tg_shards_at(g->s, i, &info);
        if (strstr(info.key, "embed_tokens")) tg_shards_set_rows(g->s, info.key, VOCAB);
    }
}

static program program_open(const composition *c, tg_ctx *ctx, tg_comm *world) {
    program g = {.ctx = ctx, .c = c};
    g.p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .cp = c->cp, .pp = c->pp, .vp = c->vp, .ep = c->ep,
                                             .etp = c->etp, .sequence_parallel = c->sp));
    for (int i = 0; i < c->vp; i++) make_gpt(&g, i);
    for (int i = 0; i < LAYERS; i++) make_experts(&g, i);
    tg_tensor *const *leaves;
    g.flat = tg_flat_new(g.p, g.param, g.n, TG_FLAT(.bucket = 500, .zero = c->zero));
    int n = tg_flat_leaves(g.flat, &leaves);
    g.optim = tg_adamw_new(ctx, leaves, n, NULL);
    list(&g);
    leave_out_padding(&g);
    return g;
}

static void program_close(program *g) {
    tg_shards_free(g->s);
    tg_optim_free(g->optim);
    tg_flat_free(g->flat);
    for (int i = 0; i < LAYERS; i++) tg_module_free(g->experts[i]);
    for (int i = 0; i < CHUNKS; i++) tg_module_free(g->gpt[i]);
    tg_parallel_free(g->p);
}

/* Gives every element of the state a value of its own, and the optimizer and the streams a past. One rank alone. */
static tg_status fill(const program *g) {
    double v[8192];
    for (int i = 0; i < tg_shards_count(g->s); i++) {
        tg_shard_info info = TG_SHARD_INFO();
        RUN(tg_shards_at(g->s, i, &info));
        int64_t n = tg_numel(info.tensor);
        for (int64_t k = 0; k < n; k++) v[k] = at(i, k);
        RUN(tg_write_f64(info.tensor, v, n));
    }
    tg_drop(tg_randn(g->ctx, TG_F64, TG_SHAPE(100), 1));
    RUN(tg_draws_step(g->ctx, 11));
    return tg_optim_set_steps(g->optim, 3);
}

typedef struct job {
    const composition *c;
    const char *from, *to; /* from NULL: the state is made */
} job;

static tg_status move(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    program g = program_open(j->c, ctx, world);
    tg_status s = tg_ctx_status(ctx);
    if (s == TG_OK) s = j->from ? tg_shards_load(g.s, j->from) : fill(&g);
    if (s == TG_OK) s = tg_shards_save(g.s, j->to);
    program_close(&g);
    return s;
}

/* ---- Pairs that cover every change ---- */

enum { AXES = 8, ZEROS = 4, LEVELS = 2 * AXES + ZEROS };

/* Returns a set with two levels for each axis or switch, of which the composition has one: 1 there, or more; and with
 * each way to divide the optimizer's state, of which it has one too. */
static unsigned levels(const composition *c) {
    const bool more[AXES] = {c->tp > 1,  c->cp > 1, c->ranks > c->tp * c->cp * c->pp, c->pp > 1, c->vp > 1, c->ep > 1,
                             c->etp > 1, c->sp};
    unsigned set = 1u << (2 * AXES + c->zero);
    for (int i = 0; i < AXES; i++) set |= 1u << (2 * i + more[i]);
    return set;
}

/* What a pair of compositions changes is a pair of levels: one that `from` has, and one that `to` has. left[l] is the
 * set of levels that no pair so far has changed l to. Returns how many of them this pair changes, and removes them if
 * `take` is true. */
static int changes(unsigned left[LEVELS], const composition *from, const composition *to, bool take) {
    int n = 0;
    for (int l = 0; l < LEVELS; l++) {
        unsigned news = levels(from) >> l & 1 ? left[l] & levels(to) : 0;
        n += __builtin_popcount(news);
        if (take) left[l] &= ~news;
    }
    return n;
}

/* Sets chosen[a][b] for pairs that together make every change that any pair makes: always next the pair that makes the
 * most of those that are left. */
static void cover(bool chosen[N][N]) {
    unsigned left[LEVELS];
    memset(left, 0xff, sizeof left);
    for (int most = 1; most;) {
        int best = most = 0;
        for (int i = 0; i < N * N; i++) {
            int n = changes(left, &all[i / N], &all[i % N], false);
            if (n > most) most = n, best = i;
        }
        changes(left, &all[best / N], &all[best % N], true);
        if (most) chosen[best / N][best % N] = true;
    }
}

/* ---- The test ---- */

static void check_same(const char *a, const char *b) {
    char command[700];
    snprintf(command, sizeof command, "diff -rq %s %s", a, b);
    ck_assert_msg(system(command) == 0, "%s", command);
}

START_TEST(any_composition_continues_what_any_other_saved) {
    bool chosen[N][N] = {{false}};
    char origin[256], of[N][256], there[256];
    cover(chosen);
    on_ranks(1, move, &(job){&all[0], NULL, in_root(origin, "origin")});
    for (int a = 0; a < N; a++) on_ranks(all[a].ranks, move, &(job){&all[a], origin, in_root(of[a], "of-%d", a)});
    check_same(origin, of[0]);
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++) {
            if (!chosen[a][b] && !getenv("TG_LONG")) continue;
            on_ranks(all[b].ranks, move, &(job){&all[b], of[a], in_root(there, "%d-of-%d", b, a)});
            check_same(of[b], there);
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {any_composition_continues_what_any_other_saved};
    return state_main("all compositions", tests, sizeof tests / sizeof *tests);
}
