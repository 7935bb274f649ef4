/* Sharded state of pipeline stages, from which any number of stages loads. A parameter that stages share is saved once,
 * under the key of its first owner. */
#define _GNU_SOURCE
#include <tapegrad/io.h>
#include <tapegrad/ranks.h>

#include "checkpoint/state/state_index.h"
#include "state.h"

/* ---- What stages have: w0 the first, w1 the second, w2 both, and the state of AdamW ---- */

enum { TENSORS = 3 };

typedef struct job {
    int tp, pp;
    const char *from, *to; /* loads from `from` unless it is NULL, then saves to `to` */
    bool shared;           /* w2 is declared to be one parameter */
    bool head;             /* the second stage calls it "head" */
} job;

typedef struct state {
    int n, number[TENSORS]; /* the tensors of this stage, and their numbers */
    tg_tensor *x[TENSORS];
    tg_optim *optim;
    tg_shards *s;
} state;

static void add(state *s, const job *j, const tg_parallel *p, int k) {
    char key[16];
    tg_tensor *x = filled(p, "w", k, TG_F64, TG_SHAPE(8, 4), TG_PLACES({TG_TP, TG_SHARD(0)}), j->from ? -3 : 1);
    bool both = k == 2 && j->pp > 1;
    if (both && j->shared) tg_share(p, x, tg_parallel_embedding(p));
    snprintf(key, sizeof key, both && j->head && tg_parallel_rank(p, TG_PP) ? "head" : "w%d", k);
    tg_shards_add_tensor(s->s, key, x);
    s->number[s->n] = k;
    s->x[s->n++] = x;
}

/* Calls fn with every tensor of the state and its number: that of a parameter, or 10 or 20 more. */
static tg_status each(state *s, tg_status (*fn)(tg_tensor *x, int k, int64_t first), int tp_rank) {
    for (int i = 0; i < s->n; i++)
        for (int which = 0; which < 3; which++) {
            tg_tensor *x = which ? tg_optim_state(s->optim, 2 * i + which - 1, NULL) : s->x[i];
            RUN(fn(x, 10 * which + s->number[i], tg_numel(x) * tp_rank));
        }
    return TG_OK;
}

static tg_status fill(tg_tensor *x, int k, int64_t first) {
    double v[32];
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = at(k, first + i);
    return tg_write_f64(x, v, tg_numel(x));
}

static tg_status compare(tg_tensor *x, int k, int64_t first) {
    double v[32];
    RUN(tg_read_f64(x, v, tg_numel(x)));
    for (int64_t i = 0; i < tg_numel(x); i++) EXPECT(tg_ctx_of(x), v[i] == at(k, first + i));
    return TG_OK;
}

/* The copy of the second stage is no replica that is saved. */
static tg_status check_replica(const state *s, const job *j, const tg_parallel *p) {
    tg_shard_info info = TG_SHARD_INFO();
    RUN(tg_shards_at(s->s, s->n - 1, &info));
    EXPECT(tg_parallel_ctx(p), info.replica == (j->shared && j->pp > 1 && tg_parallel_rank(p, TG_PP)));
    return TG_OK;
}

static tg_status move(const job *j, const tg_parallel *p, state *s) {
    int r = tg_parallel_rank(p, TG_TP);
    for (int k = 0; k < TENSORS; k++)
        if (k == 2 || j->pp == 1 || k == tg_parallel_rank(p, TG_PP)) add(s, j, p, k);
    s->optim = tg_adamw_new(tg_parallel_ctx(p), s->x, s->n, NULL);
    RUN(tg_shards_add_optim(s->s, NULL, s->optim));
    RUN(check_replica(s, j, p));
    if (j->from) RUN(tg_shards_load(s->s, j->from));
    RUN(each(s, j->from ? compare : fill, r));
    return j->to ? tg_shards_save(s->s, j->to) : TG_OK;
}

static tg_status run(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp, .pp = j->pp));
    state s = {.s = tg_shards_new(p)};
    tg_status status = move(j, p, &s);
    tg_shards_free(s.s);
    tg_optim_free(s.optim);
    for (int i = 0; i < s.n; i++) tg_drop(s.x[i]);
    tg_parallel_free(p);
    return status == TG_OK ? tg_ctx_status(ctx) : status;
}

/* Returns the number of tensors in the state. *has says whether it has the key. */
static int tensors_in(const char *dir, const char *key, bool *has) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_state d;
    ck_assert_msg(tg_state_open(&d, ctx, dir, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    int n = d.n_keys;
    *has = tg_state_find(&d, key) != NULL;
    tg_state_close(&d);
    tg_ctx_free(ctx);
    return n;
}

/* Loads the files in other compositions. */
static void load_everywhere(const char *dir, bool head) {
    static const struct { int tp, pp; } all[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};
    for (int i = 0; i < 4; i++)
        on_ranks(all[i].tp * all[i].pp, run,
                 &(job){.tp = all[i].tp, .pp = all[i].pp, .from = dir, .shared = true, .head = head});
}

/* ---- The tests ---- */

START_TEST(stages_save_one_state) {
    char two[256], one[256], again[256];
    bool has[2];
    in_root(two, "two");
    in_root(one, "one");
    in_root(again, "again");
    on_ranks(4, run, &(job){.tp = 2, .pp = 2, .to = two});
    on_ranks(2, run, &(job){.tp = 1, .pp = 2, .from = two});
    on_ranks(2, run, &(job){.tp = 2, .pp = 1, .from = two, .to = one});
    on_ranks(4, run, &(job){.tp = 2, .pp = 2, .from = one, .to = again});
    on_ranks(1, run, &(job){.tp = 1, .pp = 1, .from = again});
    ck_assert_int_eq(tensors_in(two, "w0", &has[0]), 9); /* three parameters, and two states of each */
    ck_assert_int_eq(tensors_in(two, "w1.v", &has[1]), 9);
    ck_assert(has[0] && has[1]);
}
END_TEST

/* A file of another save among them is detected. */
START_TEST(files_of_one_save_belong_together) {
    char one[256], two[256], from[320], to[320], message[1024];
    in_root(one, "one");
    in_root(two, "two");
    snprintf(from, sizeof from, "%s/rank-00001.safetensors", one);
    snprintf(to, sizeof to, "%s/rank-00001.safetensors", two);
    ck_assert(rename(from, to) == 0);
    tg_status s = tg_ranks_run(1, run, &(job){.tp = 1, .pp = 1, .from = two},
                               TG_RANKS(.message = message, .message_size = sizeof message));
    bool refused = s == TG_ERR_FORMAT && strstr(message, "is not the file that the index was saved with");
    ck_assert_msg(refused, "%s: %s", tg_status_name(s), message);
}
END_TEST

START_TEST(a_shared_parameter_is_saved_once) {
    char dir[256], one[256];
    bool own, head;
    in_root(one, "shared-one");
    for (int other = 0; other < 2; other++) {
        in_root(dir, "shared-%d", other);
        on_ranks(4, run, &(job){.tp = 2, .pp = 2, .to = dir, .shared = true, .head = other});
        ck_assert_int_eq(tensors_in(dir, "w2", &own), 9);
        tensors_in(dir, "head", &head);
        ck_assert(own && !head);
        load_everywhere(dir, other);
        on_ranks(1, run,
                 &(job){.tp = 1, .pp = 1, .from = dir, .to = one}); /* without stages it is one parameter anyway */
        ck_assert_int_eq(tensors_in(one, "w2.m", &own), 9);
        load_everywhere(one, other);
    }
}
END_TEST

/* A state in which each owner has saved its copy under a key of its own, or all under the same. */
START_TEST(states_with_every_copy_are_loaded) {
    char dir[256];
    bool has;
    for (int other = 0; other < 2; other++) {
        in_root(dir, "copies-%d", other);
        on_ranks(4, run, &(job){.tp = 2, .pp = 2, .to = dir, .head = other});
        ck_assert_int_eq(tensors_in(dir, other ? "head.v" : "w2.v", &has), other ? 12 : 9);
        ck_assert(has);
        on_ranks(4, run, &(job){.tp = 2, .pp = 2, .from = dir, .shared = true, .head = other});
        on_ranks(2, run, &(job){.tp = 1, .pp = 2, .from = dir, .shared = true, .head = other});
        if (!other) load_everywhere(dir, false);
    }
}
END_TEST

/* ---- An owner that does not add it ---- */

static tg_status without_owner(void *arg, tg_ctx *ctx, tg_comm *world) {
    const char *dir = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    bool first = tg_parallel_rank(p, TG_PP) == 0;
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(4), 0);
    RUN(tg_share(p, w, tg_parallel_embedding(p)));
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_tensor(s, "w", w));
    if (!first) RUN(tg_shards_add_tensor(s, "again", w)); /* the first stage has only one of both */
    REFUSED(ctx, TG_ERR_MISMATCH, "of the tensors shared over \"embedding\"; add them on all of its ranks",
            tg_shards_save(s, dir));
    RUN(tg_parallel_recover(p));
    tg_shards_free(s);
    tg_drop(w);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(every_owner_adds_a_shared_parameter) {
    char dir[256];
    on_ranks(2, without_owner, (void *)in_root(dir, "missing"));
    ck_assert(access(dir, F_OK) != 0); /* nothing was begun */
}
END_TEST

int main(void) {
    const TTest *const tests[] = {stages_save_one_state, files_of_one_save_belong_together,
                                  a_shared_parameter_is_saved_once, states_with_every_copy_are_loaded,
                                  every_owner_adds_a_shared_parameter};
    return state_main("stages", tests, sizeof tests / sizeof *tests);
}
