/* Training with parameters of which each rank keeps its ranges (tg_flat with zero 3) against training with whole
 * parameters (zero 0): bits of losses and parameters, calls and bytes that are sent, memory, and what is refused. */
#include <tapegrad/average.h>
#include <tapegrad/backward.h>
#include <tapegrad/capture.h>
#include <tapegrad/flat.h>
#include <tapegrad/handles.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/recompute.h>

#include "on_ranks.h"

/* A layer has a weight and a bias, which fill a bucket: 16 x 16 elements, and 16 in a place of 64. */
enum { WIDE = 16, LAYERS = 5, PARAMS = 2 * LAYERS, BUCKET = 384, ROWS = 3, STEPS = 4, RANKS = 3 };
enum { ALL = LAYERS * (WIDE * WIDE + WIDE) };

typedef struct setting {
    int zero, micros;
    tg_dtype dtype;
    bool watched, recomputed, rounds;
    bool uneven; /* in its first micro-batch rank 1 does not use the bias of layer 0 */
} setting;

typedef struct model {
    setting s;
    tg_parallel *p;
    tg_module *layer[LAYERS];
    tg_tensor *x[PARAMS], *const *leaf;
    tg_flat *flat;
    tg_optim *o;
    tg_tape *t;
} model;

static tg_status model_open(model *m, tg_ctx *ctx, tg_comm *world, const setting *s) {
    *m = (model){.s = *s, .p = tg_parallel_new(world, NULL), .t = tg_tape_new(ctx)};
    for (int i = 0; i < LAYERS; i++) {
        m->layer[i] = tg_nn_linear(ctx, WIDE, WIDE, true, 0.3);
        tg_module_cast(m->layer[i], s->dtype);
        tg_module_replicate(m->layer[i], m->p);
        for (int k = 0; k < 2; k++) m->x[2 * i + k] = tg_module_param(m->layer[i], k, NULL);
    }
    m->flat = tg_flat_new(m->p, m->x, PARAMS, TG_FLAT(.bucket = 300, .zero = s->zero));
    tg_flat_leaves(m->flat, &m->leaf);
    m->o = tg_adamw_new(ctx, m->leaf, PARAMS, TG_ADAMW(.lr = 0.01, .weight_decay = 0.1));
    if (s->watched) tg_flat_watch(m->flat, m->layer, LAYERS);
    return tg_ctx_status(ctx);
}

static void model_close(model *m) {
    tg_optim_free(m->o);
    tg_flat_free(m->flat);
    for (int i = 0; i < LAYERS; i++) tg_module_free(m->layer[i]);
    tg_tape_free(m->t);
    tg_parallel_free(m->p);
}

static tg_status run_layer(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_tanh(t, tg_module_forward(state, t, in[0]));
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_tensor *forward(const model *m, int k) {
    tg_tensor *x = made(tg_tape_ctx(m->t), k, TG_SHAPE(ROWS, WIDE)), *y;
    tg_place(m->p, x, TG_DP, TG_V);
    y = tg_cast(m->t, x, m->s.dtype);
    tg_drop(x);
    bool lacks = m->s.uneven && tg_parallel_rank(m->p, TG_DP) == 1 && k / 10 % 10 == 0;
    for (int i = 0; i < LAYERS; i++)
        if (i == 0 && lacks)
            y = tg_tanh(m->t, tg_linear(m->t, y, m->x[0], NULL));
        else if (m->s.recomputed)
            tg_recompute(m->t, run_layer, m->layer[i], &y, 1, &y, 1, NULL);
        else
            run_layer(m->layer[i], m->t, &y, 1, &y, 1);
    return tg_sum(m->t, tg_square(m->t, y), TG_ALL_DIMS, false);
}

/* Adds this rank's losses of the step to *loss, unless it is NULL. */
static tg_status run_step(model *m, int step, double *loss) {
    int r = tg_parallel_rank(m->p, TG_DP);
    for (int i = 0; i < m->s.micros; i++) {
        bool last = i + 1 == m->s.micros;
        tg_flat_set_reduce(m->flat, last || m->s.rounds);
        tg_tensor *y = forward(m, 100 * step + 10 * i + r);
        RUN(tg_backward(m->t, y));
        if (loss) *loss += tg_item(y);
        tg_tape_reset(m->t);
        if (!last && m->s.rounds) RUN(tg_grads_reduce(m->p));
    }
    RUN(tg_grads_finalize(m->p, m->x, PARAMS, NULL));
    RUN(tg_optim_step(m->o));
    RUN(tg_flat_gather(m->flat));
    return tg_optim_zero_grad(m->o);
}

static tg_status read_all(const model *m, double *out) {
    for (int i = 0; i < PARAMS; out += tg_numel(m->x[i++])) RUN(tg_read_f64(m->x[i], out, tg_numel(m->x[i])));
    return TG_OK;
}

/* ---- Bits ---- */

typedef struct outcome {
    setting s;
    bool averages;
    double loss[RANKS][STEPS], x[RANKS][ALL];
} outcome;

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    outcome *o = arg;
    int r = tg_comm_rank(world);
    model m;
    RUN(model_open(&m, ctx, world, &o->s));
    for (int step = 0; step < STEPS; step++) RUN(run_step(&m, step, &o->loss[r][step]));
    RUN(read_all(&m, o->x[r]));
    model_close(&m);
    return tg_ctx_status(ctx);
}

static outcome whole, divided;

static void compare(const setting *s, int ranks) {
    whole = divided = (outcome){.s = *s};
    whole.s.zero = 0;
    divided.s.zero = 3;
    on_ranks(ranks, train, &whole);
    on_ranks(ranks, train, &divided);
    bool same = !memcmp(whole.loss, divided.loss, sizeof whole.loss) && !memcmp(whole.x, divided.x, sizeof whole.x);
    ck_assert_msg(same || ranks_on_gpus(), "%d ranks, %s, %d micro-batches%s%s: bits differ", ranks,
                  tg_dtype_name(s->dtype), s->micros, s->watched ? ", watched" : "",
                  s->recomputed ? ", recomputed" : "");
    ck_assert(whole.loss[0][0] != whole.loss[0][STEPS - 1]);
}

START_TEST(divided_parameters_give_the_same_bits) {
    static const tg_dtype dtypes[] = {TG_F32, TG_BF16, TG_F64};
    for (int i = 0; i < 12; i++)
        compare(&(setting){.micros = 1 + i % 2, .dtype = dtypes[i % 3], .watched = i & 4, .recomputed = i & 8},
                1 + i % RANKS);
}
END_TEST

/* A rank that uses only some parameters of a bucket gathers the same buckets as the others in the next micro-batch. */
START_TEST(a_rank_may_use_a_part_of_a_bucket) {
    for (int i = 0; i < 4; i++)
        compare(&(setting){.micros = 3, .dtype = TG_F32, .watched = i & 1, .recomputed = i & 2, .uneven = true}, RANKS);
}
END_TEST

/* ---- What is sent, and memory ---- */

/* A hook before a module or behind a gradient: notes the most bytes that parameters take. */
static void note(tg_ctx *ctx, int64_t *most) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    if (m.by_category[TG_MEM_PARAMETER] > *most) *most = m.by_category[TG_MEM_PARAMETER];
}
static tg_status at_module(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    (void)t, (void)x, (void)n;
    return note(tg_module_ctx(m), user), TG_OK;
}
static tg_status at_gradient(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)t, (void)grad;
    return note(tg_ctx_of(x), user), TG_OK;
}

/* A steady step gathers each bucket for forward and for backward, but for the two that forward leaves, and the one that
 * backward leaves to the next micro-batch; recomputed layers are in one bucket each, which is gathered once for both.
 * At most two buckets are present. */
static tg_status measure(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = *(const setting *)arg;
    int64_t most = 0, size = tg_dtype_bits(s.dtype) / 8, part = BUCKET / tg_comm_size(world) * LAYERS;
    tg_comm_info sent[2] = {TG_COMM_INFO(), TG_COMM_INFO()};
    tg_memory_info now[2] = {TG_MEMORY_INFO(), TG_MEMORY_INFO()};
    model m;
    RUN(model_open(&m, ctx, world, &s));
    for (int i = 0; i < LAYERS; i++) tg_module_hook(m.layer[i], TG_AFTER, at_module, &most);
    for (int i = 0; i < PARAMS; i++) tg_on_accumulated(m.x[i], at_gradient, &most);
    for (int step = 0; step < STEPS; step++) {
        tg_comm_query(world, &sent[0]);
        tg_memory_query(ctx, &now[0]);
        RUN(run_step(&m, step, NULL));
    }
    tg_comm_query(world, &sent[1]);
    tg_memory_query(ctx, &now[1]);
    int64_t calls = s.micros * (2 * LAYERS - 2) - (s.micros - 1);
    EXPECT(ctx, now[0].host_allocations == now[1].host_allocations);
    EXPECT(ctx, now[1].by_category[TG_MEM_PARAMETER] == part * size);
    EXPECT(ctx, most == (part + 2 * BUCKET) * size);
    EXPECT(ctx, tg_comm_size(world) == 1 || sent[1].calls[TG_ALL_GATHER] - sent[0].calls[TG_ALL_GATHER] == calls);
    EXPECT(ctx, tg_comm_size(world) == 1 ||
                    sent[1].bytes[TG_ALL_GATHER] - sent[0].bytes[TG_ALL_GATHER] == calls * BUCKET * size);
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(two_buckets_are_present_at_a_time) {
    for (int n = 1; n <= RANKS; n++)
        for (int i = 0; i < 4; i++) {
            setting s = {.zero = 3,
                         .micros = 1 + i / 2,
                         .dtype = i % 2 ? TG_BF16 : TG_F32,
                         .watched = true,
                         .recomputed = i == 3,
                         .rounds = i == 2};
            on_ranks(n, measure, &s);
        }
}
END_TEST

/* ---- Whole parameters ---- */

/* A program may write parameters while they are whole, and a rank may read them alone. */
static tg_status write_whole(void *arg, tg_ctx *ctx, tg_comm *world) {
    double x[WIDE], got[WIDE], all[ALL];
    model m;
    (void)arg;
    RUN(model_open(&m, ctx, world, &(setting){.zero = 3, .micros = 1, .dtype = TG_BF16, .watched = true}));
    RUN(run_step(&m, 0, NULL));
    for (int i = 0; i < WIDE; i++) x[i] = i - 4;
    REFUSED(ctx, TG_ERR_STATE, "a parameter that is divided (tg_flat with zero 3) may be written while",
            tg_write_f64(m.x[1], x, WIDE));
    RUN(tg_flat_set_whole(m.flat, true));
    RUN(tg_write_f64(m.x[1], x, WIDE));
    if (tg_comm_rank(world) == 0) RUN(read_all(&m, all));
    REFUSED(ctx, TG_ERR_STATE, "while tg_flat_set_whole is on, and its ranges while it is off",
            tg_write_f64(m.leaf[0], all, tg_numel(m.leaf[0])));
    RUN(tg_flat_set_whole(m.flat, false));
    EXPECT(ctx, tg_storage_state_of(m.x[1]) == TG_DISCARDED);
    RUN(tg_read_f64(m.x[1], got, WIDE));
    EXPECT(ctx, !memcmp(x, got, sizeof x));
    RUN(tg_flat_gather(m.flat));
    for (int step = 1; step < 3; step++) RUN(run_step(&m, step, NULL)); /* the masters follow */
    RUN(tg_read_f64(m.x[1], got, WIDE));
    for (int i = 0; i < WIDE; i++) EXPECT(ctx, fabs(got[i] - x[i]) < 0.1);
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(whole_parameters_may_be_written) {
    for (int n = 1; n <= RANKS; n++) on_ranks(n, write_whole, NULL);
}
END_TEST

/* Averages that replace whole parameters and are undone change no bit. */
static tg_status average(void *arg, tg_ctx *ctx, tg_comm *world) {
    outcome *o = arg;
    int r = tg_comm_rank(world);
    model m;
    RUN(model_open(&m, ctx, world, &o->s));
    tg_average *a = o->averages ? tg_ema_new(ctx, m.leaf, PARAMS, 0.5) : NULL;
    for (int step = 0; step < STEPS; step++) {
        RUN(run_step(&m, step, &o->loss[r][step]));
        if (!a) continue;
        RUN(tg_average_update(a));
        RUN(tg_average_apply(a));
        RUN(tg_flat_gather(m.flat));
        RUN(tg_is_alive(forward(&m, step)) ? TG_OK : TG_ERR_INTERNAL);
        tg_tape_reset(m.t);
        RUN(tg_average_restore(a));
        RUN(tg_flat_gather(m.flat));
    }
    RUN(read_all(&m, o->x[r]));
    tg_average_free(a);
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(averages_of_ranges_change_nothing) {
    for (int i = 0; i < 6; i++) {
        int zero = 1 + i / 2, n = 1 + i % 2;
        setting s = {.zero = zero, .micros = 1, .dtype = TG_BF16, .watched = zero == 3};
        whole = divided = (outcome){.s = s};
        divided.averages = true;
        on_ranks(n, average, &whole);
        on_ranks(n, average, &divided);
        ck_assert(!memcmp(whole.loss, divided.loss, sizeof whole.loss) && !memcmp(whole.x, divided.x, sizeof whole.x));
    }
}
END_TEST

/* Whole parameters are not read after the averages have replaced ranges of them, until a gather: without that each
 * rank would have other values. */
static tg_status average_ungathered(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = *(const setting *)arg;
    double got[WIDE];
    model m;
    RUN(model_open(&m, ctx, world, &s));
    tg_average *a = tg_ema_new(ctx, m.leaf, PARAMS, 0.5);
    RUN(tg_average_update(a));
    RUN(run_step(&m, 0, NULL));
    if (s.zero == 3) {
        RUN(tg_read_f64(m.x[1], got, WIDE));
        tg_storage *pinned = tg_pin(m.x[1]);
        REFUSED(ctx, TG_ERR_STATE, "tg_average_apply: ", tg_average_apply(a));
        tg_unpin(pinned);
    }
    for (int restore = 0; restore < 2; restore++) {
        RUN(restore ? tg_average_restore(a) : tg_average_apply(a));
        if (s.zero < 3)
            REFUSED(ctx, TG_ERR_STATE, "has values of different steps", tg_read_f64(m.x[1], got, WIDE));
        else
            EXPECT(ctx, tg_storage_state_of(m.x[1]) == TG_DISCARDED);
        RUN(tg_flat_gather(m.flat));
        RUN(tg_read_f64(m.x[1], got, WIDE));
    }
    tg_average_free(a);
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(averages_of_ranges_wait_for_a_gather) {
    for (int zero = 1; zero <= 3; zero++)
        on_ranks(2, average_ungathered, &(setting){.zero = zero, .micros = 1, .dtype = TG_F32});
}
END_TEST

/* ---- Refusals ---- */

static tg_status refuse(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_module *other = tg_nn_linear(ctx, 2, 2, true, 0.1);
    model m;
    (void)arg;
    RUN(model_open(&m, ctx, world, &(setting){.zero = 3, .micros = 1, .dtype = TG_F32, .watched = true}));
    REFUSED(ctx, TG_ERR_ARGUMENT, "has no parameter of the tg_flat", tg_flat_watch(m.flat, &other, 1));
    tg_module_free(other);
    RUN(read_all(&m, (double[ALL]){0}));
    tg_storage *pinned = tg_pin(m.x[0]);
    REFUSED(ctx, TG_ERR_STATE, "is pinned or exported, so that its bucket cannot be discarded", tg_flat_gather(m.flat));
    tg_unpin(pinned);
    RUN(tg_flat_gather(m.flat));
    tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate the batch");
    tg_optim_free(m.o);
    tg_flat_free(m.flat); /* removes its hooks after an error too */
    tg_ctx_clear(ctx);
    REFUSED(ctx, TG_ERR_DISCARDED, "were discarded by tg_flat_free", tg_is_alive(forward(&m, 0)));
    m.flat = NULL, m.o = NULL;
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(what_divided_parameters_refuse) { on_ranks(1, refuse, NULL); }
END_TEST

/* A step discards whole parameters, whose values are old then. While one is pinned, a step fails and changes nothing;
 * without that the old values would replace those of the step later. */
static tg_status step_pinned(void *arg, tg_ctx *ctx, tg_comm *world) {
    double before[WIDE], after[WIDE];
    model m;
    (void)arg;
    RUN(model_open(&m, ctx, world, &(setting){.zero = 3, .micros = 1, .dtype = TG_F32}));
    RUN(tg_backward(m.t, forward(&m, 0)));
    tg_tape_reset(m.t);
    RUN(tg_grads_finalize(m.p, m.x, PARAMS, NULL));
    RUN(tg_read_f64(m.leaf[1], before, WIDE));
    tg_storage *pinned = tg_pin(m.x[1]);
    REFUSED(ctx, TG_ERR_STATE, "is pinned or exported, so that its old values cannot", tg_optim_step(m.o));
    RUN(tg_read_f64(m.leaf[1], after, WIDE));
    EXPECT(ctx, !memcmp(before, after, sizeof before));
    tg_unpin(pinned);
    RUN(tg_optim_step(m.o));
    RUN(tg_read_f64(m.leaf[1], after, WIDE));
    EXPECT(ctx, memcmp(before, after, sizeof before));
    RUN(tg_flat_gather(m.flat));
    RUN(tg_read_f64(m.x[1], before, WIDE));
    EXPECT(ctx, !memcmp(before, after, sizeof before));
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(a_step_fails_while_a_parameter_is_pinned) { on_ranks(1, step_pinned, NULL); }
END_TEST

/* Rank 0 has the range with all four elements. The parameter of the other rank is discarded by a step too. */
static tg_status step_pinned_empty(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(4), 1), *const *leaf;
    (void)arg;
    RUN(tg_place(p, x, TG_DP, TG_R));
    tg_flat *flat = tg_flat_new(p, &x, 1, TG_FLAT(.zero = 3));
    EXPECT(ctx, tg_flat_leaves(flat, &leaf) == 1 && tg_numel(leaf[0]) == (tg_comm_rank(world) ? 0 : 4));
    tg_optim *o = tg_adamw_new(ctx, leaf, 1, NULL);
    tg_tape *t = tg_tape_new(ctx);
    RUN(tg_backward(t, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false)));
    tg_tape_reset(t);
    RUN(tg_grads_finalize(p, &x, 1, NULL));
    RUN(tg_read_f64(x, (double[4]){0}, 4));
    tg_storage *pinned = tg_pin(x);
    REFUSED(ctx, TG_ERR_STATE, "is pinned or exported, so that its old values cannot", tg_optim_step(o));
    tg_unpin(pinned);
    RUN(tg_optim_step(o));
    RUN(tg_flat_gather(flat));
    tg_optim_free(o);
    tg_flat_free(flat);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_step_fails_while_a_parameter_with_an_empty_range_is_pinned) { on_ranks(2, step_pinned_empty, NULL); }
END_TEST

/* A call that is refused watches no module: a run of the first one does not discard the parameters of the last one. */
static tg_status watch_partly(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_module *other = tg_nn_linear(ctx, 2, 2, true, 0.1);
    model m;
    (void)arg;
    RUN(model_open(&m, ctx, world, &(setting){.zero = 3, .micros = 1, .dtype = TG_F64}));
    REFUSED(ctx, TG_ERR_ARGUMENT, "module 1, a \"linear\", has no parameter of the tg_flat",
            tg_flat_watch(m.flat, (tg_module *[]){m.layer[0], other}, 2));
    RUN(read_all(&m, (double[ALL]){0}));
    tg_module_forward(m.layer[0], m.t, made(ctx, 1, TG_SHAPE(ROWS, WIDE)));
    EXPECT(ctx, tg_storage_state_of(m.x[PARAMS - 1]) == TG_PRESENT);
    RUN(tg_flat_watch(m.flat, m.layer, 1));
    tg_module_forward(m.layer[0], m.t, made(ctx, 1, TG_SHAPE(ROWS, WIDE)));
    EXPECT(ctx, tg_storage_state_of(m.x[PARAMS - 1]) == TG_DISCARDED);
    model_close(&m);
    tg_module_free(other);
    return tg_ctx_status(ctx);
}

START_TEST(a_refused_watch_watches_nothing) { on_ranks(1, watch_partly, NULL); }
END_TEST

/* A rank that reads a parameter alone gets an error, and so do the others. */
static tg_status read_alone(void *arg, tg_ctx *ctx, tg_comm *world) {
    model m;
    (void)arg;
    RUN(model_open(&m, ctx, world, &(setting){.zero = 3, .micros = 1, .dtype = TG_F32, .watched = true}));
    if (tg_comm_rank(world) == 0) tg_read_f64(m.x[PARAMS - 2], (double[WIDE * WIDE]){0}, WIDE * WIDE);
    run_step(&m, 0, NULL);
    for (int i = 0; i < 3 && tg_ctx_status(ctx) == TG_OK; i++) tg_comm_barrier(world); /* NCCL reports late */
    if (tg_ctx_status(ctx) == TG_OK) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the lone reader was not reported");
    tg_ctx_clear(ctx);
    tg_tape_reset(m.t);
    RUN(tg_parallel_recover(m.p));
    RUN(run_step(&m, 0, NULL));
    model_close(&m);
    return tg_ctx_status(ctx);
}

START_TEST(a_lone_reader_is_reported) { on_ranks(2, read_alone, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {
        divided_parameters_give_the_same_bits,
        a_rank_may_use_a_part_of_a_bucket,
        two_buckets_are_present_at_a_time,
        whole_parameters_may_be_written,
        averages_of_ranges_change_nothing,
        averages_of_ranges_wait_for_a_gather,
        what_divided_parameters_refuse,
        a_step_fails_while_a_parameter_is_pinned,
        a_step_fails_while_a_parameter_with_an_empty_range_is_pinned,
        a_refused_watch_watches_nothing,
        a_lone_reader_is_reported,
    };
    return tg_check_main("divided params", tests, sizeof tests / sizeof *tests);
}
