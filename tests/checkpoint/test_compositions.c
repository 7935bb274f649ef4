/* The state of a model with layers, experts, a shared table and divided optimizer state, over 12 compositions of ranks:
 * what one saves another loads, and what that saves the first one loads, with the same bytes. All pairs, or with
 * TG_TEST_QUICK in the environment each composition with three others. */
#define _GNU_SOURCE
#include <tapegrad/ranks.h>

#include "state.h"

enum { LAYERS = 4, VOCAB = 22, PADDED = 32, WIDTH = 8, EXPERTS = 4 };

typedef struct composition {
    int ranks, tp, cp, pp, vp, ep, etp;
    bool divided; /* the optimizer's state is divided over data-parallel ranks (ZeRO) */
    bool sp;
} composition;

static const composition all[] = {
    {1, 1, 1, 1, 1, 1, 1, false, false}, {2, 1, 1, 1, 1, 1, 1, true, false},  {2, 2, 1, 1, 1, 1, 2, false, true},
    {4, 2, 1, 1, 1, 1, 2, true, true},   {2, 1, 1, 2, 1, 1, 1, false, false}, {4, 1, 1, 2, 2, 1, 1, true, false},
    {4, 2, 1, 2, 2, 1, 2, false, true},  {4, 1, 2, 1, 1, 1, 1, true, false},  {4, 1, 1, 1, 1, 2, 1, false, false},
    {4, 2, 1, 1, 1, 2, 1, true, false},  {4, 1, 1, 1, 1, 4, 1, true, false},  {8, 2, 1, 2, 1, 2, 1, true, true},
};
enum { N = sizeof all / sizeof *all };

/* ---- The state of a rank ---- */

typedef struct entry {
    tg_tensor *x;
    tg_shape whole;
    tg_place_at places[3];
    int k, n_places;
    int64_t begin; /* of a range: its first element in the part; -1: x has the whole part */
} entry;

typedef struct state {
    const composition *c;
    tg_ctx *ctx;
    tg_parallel *p;
    tg_shards *s;
    entry e[64];
    int n;
} state;

/* Adds a tensor and, as the state of an optimizer has it, another one of its elements or of a range of them. */
static void add(state *s, const char *name, int k, tg_shape whole, const tg_place_at *places, int n, tg_axis replicas) {
    char key[40];
    entry e = {.whole = whole, .k = k, .n_places = n, .begin = -1};
    memcpy(e.places, places, (size_t)n * sizeof *places);
    tg_tensor *param = e.x = filled(s->p, name, k, TG_F32, whole, places, n, 1);
    tg_shards_add_tensor(s->s, name, e.x);
    s->e[s->n++] = e;
    e.k += 30;
    snprintf(key, sizeof key, "%s.m", name);
    int ranks = tg_parallel_size(s->p, replicas), r = tg_parallel_rank(s->p, replicas);
    if (replicas == TG_DP) { /* dp and cp together */
        ranks *= tg_parallel_size(s->p, TG_CP);
        r = r * tg_parallel_size(s->p, TG_CP) + tg_parallel_rank(s->p, TG_CP);
    }
    e.x = filled(s->p, key, e.k, TG_F32, whole, places, n, 1);
    if (s->c->divided) {
        float v[PADDED * WIDTH];
        int64_t count = tg_numel(e.x), end = count * (r + 1) / ranks;
        e.begin = count * r / ranks;
        tg_read(e.x, v, (size_t)count * sizeof *v);
        tg_drop(e.x);
        e.x = tg_from_host(s->ctx, TG_F32, TG_SHAPE(end - e.begin), v + e.begin);
        tg_shards_add_range(s->s, key, e.x, param, e.begin, end);
    } else
        tg_shards_add_tensor(s->s, key, e.x);
    s->e[s->n++] = e;
}

/* Layers are dealt to the stages in vp rounds. */
static bool is_mine(const state *s, int layer) {
    int per = LAYERS / (s->c->pp * s->c->vp);
    return layer / per % s->c->pp == tg_parallel_rank(s->p, TG_PP);
}

static void add_layer(state *s, int i) {
    const tg_place_at column[] = {{TG_TP, TG_SHARD_STRIDED(0, 2)}, {TG_DP, TG_R}, {TG_CP, TG_R}},
                      row[] = {{TG_TP, TG_SHARD(1)}, {TG_DP, TG_R}, {TG_CP, TG_R}},
                      norm[] = {{TG_TP, s->c->sp ? TG_R : TG_I}, {TG_DP, TG_R}, {TG_CP, TG_R}},
                      expert[] = {{TG_EP, TG_SHARD(0)}, {TG_ETP, TG_SHARD(1)}, {TG_EDP, TG_R}};
    tg_shards_push(s->s, "layers", LAYERS, i);
    add(s, "column", 4 * i, TG_SHAPE(2 * WIDTH, WIDTH), column, 3, TG_DP);
    add(s, "row", 4 * i + 1, TG_SHAPE(WIDTH, 2 * WIDTH), row, 3, TG_DP);
    add(s, "norm", 4 * i + 2, TG_SHAPE(WIDTH), norm, 3, TG_DP);
    add(s, "experts", 4 * i + 3, TG_SHAPE(EXPERTS, 2 * WIDTH), expert, 3, TG_EDP);
    tg_shards_pop(s->s);
}

/* The first and the last stage have the table of words, of which some rows are padding. */
static void add_table(state *s) {
    const tg_place_at words[] = {{TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}, {TG_CP, TG_R}};
    int stage = tg_parallel_rank(s->p, TG_PP);
    if (stage && stage < s->c->pp - 1) return;
    add(s, "words", 20, TG_SHAPE(PADDED, WIDTH), words, 3, TG_DP);
    tg_shards_set_rows(s->s, "words", VOCAB);
    tg_shards_set_rows(s->s, "words.m", VOCAB);
}

static void state_open(state *s, const composition *c, tg_ctx *ctx, tg_comm *world) {
    *s = (state){.c = c, .ctx = ctx};
    s->p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .cp = c->cp, .pp = c->pp, .vp = c->vp, .ep = c->ep,
                                              .etp = c->etp, .sequence_parallel = c->sp));
    s->s = tg_shards_new(s->p);
    add_table(s);
    for (int i = 0; i < LAYERS; i++)
        if (is_mine(s, i)) add_layer(s, i);
}

static void state_close(state *s) {
    tg_shards_free(s->s);
    for (int i = 0; i < s->n; i++) tg_drop(s->e[i].x);
    tg_parallel_free(s->p);
}

/* ---- Moving it ---- */

/* Changes every byte, so that only a load brings them back. */
static tg_status spoil(const state *s) {
    float v[PADDED * WIDTH];
    for (int i = 0; i < PADDED * WIDTH; i++) v[i] = -7;
    for (int i = 0; i < s->n; i++) RUN(tg_write(s->e[i].x, v, (size_t)tg_numel(s->e[i].x) * sizeof *v));
    return TG_OK;
}

/* Compares each tensor with what a new one would have; padding rows are 0. */
static tg_status compare(const state *s) {
    for (int i = 0; i < s->n; i++) {
        const entry *e = &s->e[i];
        float got[PADDED * WIDTH], want[PADDED * WIDTH];
        tg_tensor *part = filled(s->p, "want", e->k, TG_F32, e->whole, e->places, e->n_places, 1);
        int64_t n = tg_numel(e->x), first = e->begin < 0 ? 0 : e->begin, rows = tg_shape_of(part).dim[0];
        RUN(tg_read(part, want, (size_t)tg_numel(part) * sizeof *want));
        RUN(tg_read(e->x, got, (size_t)n * sizeof *got));
        for (int64_t k = 0; e->whole.dim[0] == PADDED && k < tg_numel(part); k++)
            if (tg_parallel_rank(s->p, TG_TP) * rows + k / WIDTH >= VOCAB) want[k] = 0;
        EXPECT(s->ctx, !memcmp(got, want + first, (size_t)n * sizeof *got));
        tg_drop(part);
    }
    return TG_OK;
}

typedef struct job {
    const composition *c;
    const char *from, *to;
} job;

static tg_status move(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    state s;
    state_open(&s, j->c, ctx, world);
    tg_status status = tg_ctx_status(ctx);
    if (status == TG_OK && j->from) status = spoil(&s);
    if (status == TG_OK && j->from) status = tg_shards_load(s.s, j->from);
    if (status == TG_OK && j->from) status = compare(&s);
    if (status == TG_OK && j->to) status = tg_shards_save(s.s, j->to);
    state_close(&s);
    return status;
}

START_TEST(any_composition_loads_what_any_other_saved) {
    char from[256], there[256];
    for (int a = 0; a < N; a++) on_ranks(all[a].ranks, move, &(job){&all[a], NULL, in_root(from, "of-%d", a)});
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++) {
            int step = (b - a + N) % N;
            if (getenv("TG_TEST_QUICK") && step != 1 && step != 5 && step != 9) continue;
            in_root(from, "of-%d", a);
            in_root(there, "there-%d-%d", a, b);
            on_ranks(all[b].ranks, move, &(job){&all[b], from, there});
            on_ranks(all[a].ranks, move, &(job){&all[a], there, NULL});
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {any_composition_loads_what_any_other_saved};
    return state_main("compositions", tests, sizeof tests / sizeof *tests);
}
