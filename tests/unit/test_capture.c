/* Captured steps: a replay gives the bits of a called step, and calls that cannot be replayed are refused. On the CPU,
 * which records nothing, the same calls give the same numbers. */
#include "unit/captured.h"

#include <tapegrad/backward.h>
#include <tapegrad/capture.h>
#include <tapegrad/gpt.h>
#include <tapegrad/handles.h>
#include <tapegrad/optim.h>

/* ---- The same bits ---- */

START_TEST(replays_are_steps) {
    world *a = world_new(), *b = world_new();
    eager(a, 32);
    eager(b, 2);
    tg_graph *g = captured(b);
    replay(b, g, 29);
    ck_same_run(a, b);
    eager(a, 3);
    eager(b, 3); /* called steps continue after replayed ones, */
    ck_same_run(a, b);
    eager(a, 2);
    replay(b, g, 2); /* and replayed ones after called ones */
    ck_same_run(a, b);
    tg_graph_free(g);
    eager(a, 1);
    eager(b, 1);
    ck_same_run(a, b);
    world_free(a);
    world_free(b);
}
END_TEST

/* The step number, the learning rate, the clip factor and the loss scale continue in replays. */
START_TEST(the_optimizer_goes_on) {
    for (int scaled = 0; scaled < 2; scaled++) {
        world *a = world_new(), *b = world_new();
        with_adamw(a, scaled), with_adamw(b, scaled);
        eager(a, 14);
        eager(b, 1);
        tg_graph *g = captured(b);
        replay(b, g, 10);
        eager(b, 1);
        replay(b, g, 1);
        ck_same_run(a, b);
        ck_assert_int_eq(tg_optim_steps(b->adamw), 14);
        ck_assert(tg_optim_norm(a->adamw) == tg_optim_norm(b->adamw) && tg_optim_norm(a->adamw) > 0);
        ck_assert(tg_optim_scale(b->adamw) == (scaled ? 64 << 4 : 1));
        if (scaled) tg_optim_set_scale(a->adamw, TG_LOSS_SCALE(.initial = 8, .interval = 3));
        if (scaled) tg_optim_set_scale(b->adamw, TG_LOSS_SCALE(.initial = 8, .interval = 3));
        tg_optim_set_clip(a->adamw, 0.5);
        tg_optim_set_clip(b->adamw, 0.5);
        eager(a, 2);
        replay(b, g, 2); /* with the values set since */
        ck_same_run(a, b);
        world_free(a);
        world_free(b);
    }
}
END_TEST

static tg_optim *method(const world *w, int k) {
    switch (k) {
    case 0: return tg_sgd_new(w->ctx, w->p, w->n, TG_SGD(.lr = 1e-2, .momentum = 0.9, .dampening = 0.5));
    case 1: return tg_rmsprop_new(w->ctx, w->p, w->n, TG_RMSPROP(.lr = 1e-2, .centered = true, .momentum = 0.5));
    case 2: return tg_adagrad_new(w->ctx, w->p, w->n, NULL);
    case 3: return tg_lion_new(w->ctx, w->p, w->n, TG_LION(.lr = 1e-2));
    default: return tg_muon_new(w->ctx, w->p, w->n, TG_MUON(.lr = 1e-2, .others = w->p, .n_others = 1));
    }
}

/* The steps of the other methods can be captured too, and so can updates of averages. */
START_TEST(each_method_goes_on) {
    for (int k = 0; k < 5; k++) {
        world *a = world_new(), *b = world_new();
        a->adamw = method(a, k), b->adamw = method(b, k);
        a->average = k % 2 ? tg_swa_new(a->ctx, a->p, a->n) : tg_ema_new(a->ctx, a->p, a->n, 0.75);
        b->average = k % 2 ? tg_swa_new(b->ctx, b->p, b->n) : tg_ema_new(b->ctx, b->p, b->n, 0.75);
        eager(a, 7);
        eager(b, 1);
        tg_graph *g = captured(b);
        replay(b, g, 4);
        eager(b, 1);
        ck_same_run(a, b);
        ck_assert_int_eq(tg_average_updates(b->average), 7);
        tg_average_apply(a->average);
        tg_average_apply(b->average);
        ck_same_run(a, b);
        world_free(a);
        world_free(b);
    }
}
END_TEST

/* No step has run before, so gradients are created within the recording. */
START_TEST(the_first_step_may_be_captured) {
    world *a = world_new(), *b = world_new();
    eager(a, 5);
    tg_graph *g = captured(b);
    replay(b, g, 4);
    ck_same_run(a, b);
    tg_graph_free(g);
    eager(a, 1);
    eager(b, 1);
    ck_same_run(a, b);
    world_free(a);
    world_free(b);
}
END_TEST

START_TEST(two_graphs_take_turns) {
    world *a = world_new(), *b = world_new();
    eager(a, 12);
    eager(b, 1);
    tg_graph *g = captured(b), *h = captured(b);
    for (int i = 0; i < 3; i++) {
        replay(b, g, 1);
        eager(b, 1);
        replay(b, h, 1);
    }
    ck_same_run(a, b);
    tg_graph_free(g);
    eager(a, 2);
    replay(b, h, 1);
    eager(b, 1);
    ck_same_run(a, b);
    world_free(a);
    world_free(b); /* frees h too */
}
END_TEST

/* ---- Memory ---- */

/* Tensors that were dropped or created since do not get memory that the graph uses. */
START_TEST(memory_of_a_graph_is_its_own) {
    world *a = world_new(), *b = world_new();
    eager(a, 6);
    enum { MOST = 100 << 7 };
    tg_tensor *others[64];
    double five[MOST];
    for (int i = 0; i < MOST; i++) five[i] = 5 + i;
    eager(b, 2);
    tg_graph *g = captured(b);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 64; i++) others[i] = tg_from_host(b->ctx, TG_F64, TG_SHAPE(100 << i % 8), five);
        replay(b, g, 1);
        for (int i = 0; i < 64; i++) {
            double v[MOST] = {0};
            tg_read_f64(others[i], v, tg_numel(others[i]));
            ck_assert_mem_eq(v, five, (size_t)tg_numel(others[i]) * sizeof *v);
            tg_drop(others[i]);
        }
    }
    for (int i = 0; i < b->steps * MICRO; i++) ck_assert(a->losses[i] == b->losses[i]);
    world_free(a);
    world_free(b);
}
END_TEST

typedef struct twice {
    tg_tape *t;
    tg_tensor *x, *y;
} twice;

static tg_status twice_step(void *state, tg_ctx *ctx) {
    twice *s = state;
    tg_drop(s->y);
    s->y = tg_keep(tg_scale(s->t, s->x, 2));
    tg_tape_reset(s->t);
    return tg_ctx_status(ctx);
}

START_TEST(an_input_that_was_dropped_stays_the_graphs) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    const float three[1000] = {3, 4};
    twice s = {.t = tg_tape_new(ctx), .x = tg_from_host(ctx, TG_F32, TG_SHAPE(1000), three)};
    tg_graph *g = tg_graph_new(ctx, twice_step, &s);
    float got[1000];
    if (on_device()) {
        tg_drop(s.x);
        tg_tensor *other = tg_from_host(ctx, TG_F32, TG_SHAPE(1000), (float[1000]){9, 9, 9});
        tg_graph_replay(g);
        tg_drop(other);
    }
    tg_read(s.y, got, sizeof got);
    ck_assert(got[0] == 6 && got[1] == 8);
    tg_tensor *y = s.y;
    tg_graph_free(g); /* tensors that the caller keeps outlive it */
    tg_tensor *more = tg_from_host(ctx, TG_F32, TG_SHAPE(1000), (float[1000]){9, 9, 9});
    tg_read(y, got, sizeof got);
    ck_assert(got[0] == 6 && got[1] == 8);
    tg_drop(more);
    ck_fine(ctx);
    tg_tape_free(s.t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_graph_gives_its_memory_back) {
    world *w = world_new();
    eager(w, 2);
    int64_t live = memory_of(w->ctx).live, reserved = 0;
    for (int i = 0; i < 5; i++) {
        tg_graph *g = captured(w);
        tg_graph_info info = TG_GRAPH_INFO();
        replay(w, g, 1);
        tg_graph_query(g, &info);
        ck_assert_int_eq(info.steps, 2);
        ck_assert_int_eq(info.collectives, 0);
        ck_assert(on_device() ? info.nodes > 100 && info.bytes >= 1 << 20 : !info.nodes && !info.bytes);
        ck_assert_int_eq(memory_of(w->ctx).by_category[TG_MEM_GRAPH], info.bytes);
        tg_graph_free(g);
        ck_assert_int_eq(memory_of(w->ctx).by_category[TG_MEM_GRAPH], 0);
        if (i == 1) reserved = memory_of(w->ctx).reserved;
    }
    ck_assert_int_eq(memory_of(w->ctx).reserved, reserved);
    eager(w, 1);
    ck_assert_int_eq(memory_of(w->ctx).live, live);
    world_free(w);
}
END_TEST

START_TEST(a_steady_replay_allocates_nothing) {
    world *w = world_new();
    eager(w, 1);
    tg_graph *g = captured(w);
    replay(w, g, 2);
    int64_t before = memory_of(w->ctx).host_allocations;
    replay(w, g, 5);
    ck_assert_int_eq(memory_of(w->ctx).host_allocations, before);
    world_free(w);
}
END_TEST

/* ---- Refused calls ---- */

typedef struct wrong {
    world *w;
    int what;
    tg_graph *other;
    tg_tensor *kept, *moved, *view; /* moved and view: of four elements, made outside of the step */
    tg_optim *optim;
} wrong;

static tg_status nothing(void *state, tg_ctx *ctx) {
    (void)state, (void)ctx;
    return TG_OK;
}

enum { READS, ITEM, WRITES, WRITES_F64, FROM_HOST, SETS, ADDS, REMOVES, NESTS, REPLAYS, CLIPS, CLIPPED, RATES, FORKS,
       CLEARS, FAILS, ENDS, STEPS_ON, OPENS, SWAPS, MOVES, WRONGS };
static const struct {
    const char *says;
    tg_status status;
} wrongs[WRONGS] = {
    [READS] = {"tg_read: the step that tg_graph_new records reads a value of the device", TG_ERR_UNSUPPORTED},
    [ITEM] = {"tg_item: the step that tg_graph_new records reads a value", TG_ERR_UNSUPPORTED},
    [WRITES] = {"tg_write: the step that tg_graph_new records writes values of the host", TG_ERR_UNSUPPORTED},
    [WRITES_F64] = {"tg_write_f64: the step that tg_graph_new records writes", TG_ERR_UNSUPPORTED},
    [FROM_HOST] = {"tg_from_host: the step that tg_graph_new records writes", TG_ERR_UNSUPPORTED},
    [SETS] = {"tg_rng_set: the step that tg_graph_new records changes a random stream", TG_ERR_UNSUPPORTED},
    [ADDS] = {"tg_rng_add: the step", TG_ERR_UNSUPPORTED},
    [REMOVES] = {"tg_rng_remove: the step", TG_ERR_UNSUPPORTED},
    [NESTS] = {"captures do not nest", TG_ERR_STATE},
    [REPLAYS] = {"captures do not nest", TG_ERR_STATE},
    [CLIPS] = {"tg_optim_clip: the step that tg_graph_new records reads a value of the device", TG_ERR_UNSUPPORTED},
    [CLIPPED] = {"tg_optim_step: the step that tg_graph_new records uses the norm that tg_optim_clip measured",
                 TG_ERR_UNSUPPORTED},
    [RATES] = {"tg_graph_new: the step", TG_ERR_UNSUPPORTED},
    [FORKS] = {"ends with 1 open forks of random streams, but began with 0", TG_ERR_STATE},
    [CLEARS] = {"cleared the error", TG_ERR_STATE},
    [FAILS] = {"the step failed with TG_ERR_IO", TG_ERR_CALLBACK},
    [ENDS] = {"tg_ctx_free: a step is being captured", TG_ERR_STATE},
    [STEPS_ON] = {"tg_draws_step: the step that tg_graph_new records changes a random stream", TG_ERR_UNSUPPORTED},
    [OPENS] = {"ends with 1 open keys, but began with 0", TG_ERR_STATE},
    [SWAPS] = {"has closed a key that was open before it", TG_ERR_STATE},
    [MOVES] = {"tg_rehome: the step that tg_graph_new records gives a tensor other memory", TG_ERR_UNSUPPORTED},
};

static tg_status wrong_step(void *state, tg_ctx *ctx) {
    wrong *s = state;
    world *w = s->w;
    float f = 0;
    double d[1] = {0};
    tg_rng rng;
    tg_tensor *loss = tg_gpt_loss(w->gpt, w->t, w->ids[0], w->target[0], TG_LOSS_MEAN);
    tg_backward(w->t, loss);
    s->kept = tg_keep(loss);
    switch (s->what) {
    case READS: tg_read(loss, &f, sizeof f); break;
    case CLEARS:
    case ITEM: tg_item(loss); break;
    case WRITES: tg_write(loss, &f, sizeof f); break;
    case WRITES_F64: tg_write_f64(loss, d, 1); break;
    case FROM_HOST: tg_from_host(ctx, TG_F32, TG_SHAPE(1), &f); break;
    case SETS: tg_rng_get(ctx, NULL, &rng), tg_rng_set(ctx, NULL, &rng); break;
    case ADDS: tg_rng_add(ctx, "new", 1); break;
    case REMOVES: tg_rng_remove(ctx, "there"); break;
    case NESTS:
        tg_graph_new(ctx, nothing, NULL);
        break;
    case REPLAYS: tg_graph_replay(s->other); break;
    case CLIPS: tg_optim_clip(s->optim, 1); break;
    case CLIPPED: tg_optim_step(s->optim); break;
    case RATES: tg_optim_set_lr(s->optim, 1); break;
    case FORKS: tg_rng_fork(ctx, "there"); break;
    case FAILS: return TG_ERR_IO;
    case ENDS: tg_ctx_free(ctx); break;
    case STEPS_ON: tg_draws_step(ctx, 1); break;
    case OPENS: tg_key_open(ctx, 1); break;
    case SWAPS: tg_key_close(ctx), tg_key_open(ctx, 2); break;
    case MOVES: tg_rehome(s->moved, s->view); break;
    default: break;
    }
    if (s->what == CLEARS) tg_ctx_clear(ctx);
    return tg_ctx_status(ctx);
}

START_TEST(calls_that_cannot_be_replayed_are_refused) {
    if (!on_device()) return; /* the CPU calls the step */
    world *a = world_new(), *b = world_new();
    tg_rng_add(b->ctx, "there", 4);
    eager(a, 1);
    eager(b, 1);
    wrong s = {.w = b, .other = captured(b), .optim = tg_sgd_new(b->ctx, b->p, b->n, TG_SGD(.lr = 1))};
    s.moved = tg_zeros(b->ctx, TG_F32, TG_SHAPE(4)), s.view = tg_zeros(b->ctx, TG_F32, TG_SHAPE(4));
    eager(a, 1);
    for (s.what = 0; s.what < WRONGS; s.what++) {
        int64_t live = memory_of(b->ctx).live;
        tg_draws_step(b->ctx, 1000);
        if (s.what == CLIPPED) tg_optim_clip(s.optim, 1);
        if (s.what == SWAPS) tg_key_open(b->ctx, 1);
        tg_graph *g = tg_graph_new(b->ctx, wrong_step, &s);
        ck_assert_msg(strstr(tg_ctx_message(b->ctx), wrongs[s.what].says), "%d: %s", s.what, tg_ctx_message(b->ctx));
        ck_assert_int_eq(tg_ctx_status(b->ctx), wrongs[s.what].status);
        ck_assert_int_eq(tg_graph_replay(g), TG_ERR_MEMORY); /* inert */
        if (wrongs[s.what].status == TG_ERR_UNSUPPORTED)
            ck_assert_msg(strstr(tg_ctx_message(b->ctx), "test_capture"), "%s", tg_ctx_message(b->ctx));
        tg_ctx_clear(b->ctx);
        if (s.what == SWAPS) tg_key_close(b->ctx);
        tg_tape_reset(b->t);
        tg_item(s.kept); /* of the step that has not run */
        ck_assert_int_eq(tg_ctx_status(b->ctx), TG_ERR_DISCARDED);
        ck_assert(strstr(tg_ctx_message(b->ctx), "a tg_graph_new that failed"));
        tg_ctx_clear(b->ctx);
        tg_drop(s.kept);
        ck_assert_int_eq(memory_of(b->ctx).live, live);
        eager(a, 1);
        if (s.what % 2)
            eager(b, 1);
        else
            replay(b, s.other, 1);
        ck_same_run(a, b);
    }
    tg_optim_free(s.optim);
    world_free(a);
    world_free(b);
}
END_TEST

static tg_status accumulate(void *state, tg_ctx *ctx) {
    world *w = state;
    tg_backward(w->t, tg_gpt_loss(w->gpt, w->t, w->ids[0], w->target[0], TG_LOSS_MEAN));
    tg_tape_reset(w->t);
    return tg_ctx_status(ctx);
}

static void accumulate_in(world *w, uint64_t step) {
    tg_draws_step(w->ctx, step);
    accumulate(w, w->ctx);
}

static void replay_in(world *w, tg_graph *g, uint64_t step) {
    tg_draws_step(w->ctx, step);
    ck_assert_msg(tg_graph_replay(g) == TG_OK, "%s", tg_ctx_message(w->ctx));
}

/* A step that leaves gradients: the one that creates them and those that add to them are two recordings. */
START_TEST(gradients_are_as_they_were_recorded) {
    if (!on_device()) return;
    world *a = world_new(), *b = world_new();
    feed(a), feed(b);
    tg_graph *first = tg_graph_new(b->ctx, accumulate, b);
    ck_fine(b->ctx);
    tg_draws_step(b->ctx, 2);
    cannot_replay(first, b->ctx, "has a gradient, but the step was recorded without, so it would overwrite");
    tg_graph *more = tg_graph_new(b->ctx, accumulate, b);
    replay_in(b, more, 3);
    for (uint64_t i = 1; i < 4; i++) accumulate_in(a, i);
    descend(a, 0.1), descend(b, 0.1);
    tg_tape_reset(a->t), tg_tape_reset(b->t);
    ck_assert(bits_of(a) == bits_of(b));
    tg_draws_step(b->ctx, 4);
    cannot_replay(more, b->ctx, "has no gradient, but the step was recorded with one");
    replay_in(b, first, 4);
    replay_in(b, more, 5);
    for (uint64_t i = 4; i < 6; i++) accumulate_in(a, i);
    descend(a, 0.1), descend(b, 0.1);
    ck_assert(bits_of(a) == bits_of(b));
    world_free(a);
    world_free(b);
}
END_TEST

START_TEST(tensors_that_backward_needs_are_not_overwritten) {
    if (!on_device()) return;
    world *w = world_new();
    eager(w, 1);
    tg_graph *g = captured(w);
    tg_tape *t = tg_tape_new(w->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, w->p[0]), TG_ALL_DIMS, false);
    tg_draws_step(w->ctx, 10);
    cannot_replay(g, w->ctx, tg_name(w->p[0]));
    cannot_replay(g, w->ctx, "which a node has saved for backward");
    tg_backward(t, y);
    tg_zero_grad(w->p[0]);
    replay_in(w, g, 10);
    tg_rng_add(w->ctx, "other", 9);
    tg_rng_fork(w->ctx, "other");
    cannot_replay(g, w->ctx, "the current random stream is not");
    tg_rng_join(w->ctx);
    replay_in(w, g, 11);
    tg_tape_free(t);
    world_free(w);
}
END_TEST

/* Errors in a replay's data are reported with the op and the call site of the recording. */
START_TEST(errors_in_data_are_named) {
    if (!on_device()) return;
    world *w = world_new();
    eager(w, 1);
    tg_graph *g = captured(w);
    for (uint64_t i = 0; i < 600; i++) accumulate_in(w, 100 + i); /* more calls than the device remembers */
    for (int i = 0; i < w->n; i++) tg_zero_grad(w->p[i]);
    replay(w, g, 1);
    int64_t bad[BATCH * SEQ] = {1, 2, 3, VOCAB + 7};
    tg_write(w->ids[0], bad, sizeof bad);
    for (uint64_t i = 0; i < 3 && tg_draws_step(w->ctx, i) == TG_OK && tg_graph_replay(g) == TG_OK;) i++;
    ck_assert_int_eq(tg_ctx_status(w->ctx), TG_ERR_DATA);
    /* ids [b, s] are transposed to [s, b] before: row 3 begins at 3 * BATCH. */
    ck_assert_msg(strstr(tg_ctx_message(w->ctx), "embedding: an index is out of range, at position 6 "), "%s",
                  tg_ctx_message(w->ctx));
    tg_ctx_clear(w->ctx);
    world_free(w);
}
END_TEST

/* ---- Failures, which the CUDA emulator makes ---- */

#ifdef TG_CUDA_EMULATOR
#include "cuda_emulator/control.h"
#include "kernels/cuda/cuda.h"

/* Lets the n-th call fail, for each n; quick runs take some of them. */
static long stride(void) { return getenv("TG_TEST_QUICK") ? 9 : 1; }

START_TEST(any_call_of_a_capture_may_fail) {
    if (!on_device()) return;
    long graphs = emulator_live("graph"); /* left by tests that have failed */
    world *a = world_new(), *b = world_new();
    eager(a, 6);
    eager(b, 1);
    tg_graph *g = captured(b);
    tg_graph_free(g); /* releases memory that another graph needs */
    feed(b);
    int64_t live = memory_of(b->ctx).live;
    int failures = 0;
    for (long n = 1;; n += stride(), failures++) {
        emulator_fail_at(n);
        g = tg_graph_new(b->ctx, step_of, b);
        if (!emulator_failed()) break;
        ck_assert_msg(tg_ctx_status(b->ctx) != TG_OK, "%s failed without an error", emulator_failed());
        emulator_fail_at(0);
        tg_ctx_clear(b->ctx);
        tg_tape_reset(b->t);
        ck_assert_msg(memory_of(b->ctx).live == live, "%lld bytes leak after the failure of call %ld",
                      (long long)(memory_of(b->ctx).live - live), n);
        ck_assert_int_eq(emulator_live("graph"), graphs);
    }
    emulator_fail_at(0);
    ck_assert_int_gt(failures * stride(), 300);
    ck_fine(b->ctx);
    note_losses(b);
    replay(b, g, 2);
    eager(b, 1);
    ck_same_run(a, b);
    world_free(a);
    world_free(b);
    ck_assert_int_eq(emulator_live("graph"), graphs);
    ck_assert_str_eq(emulator_message(), "");
}
END_TEST

START_TEST(any_call_of_a_replay_may_fail) {
    if (!on_device()) return;
    world *a = world_new(), *b = world_new();
    eager(b, 1);
    tg_graph *g = captured(b);
    for (int i = 0; i < 10; i++) {
        feed(b);
        emulator_fail_at(i + 1);
        if (tg_graph_replay(g) != TG_OK) {
            ck_assert(emulator_failed());
            tg_ctx_clear(b->ctx);
            tg_graph_replay(g); /* the same step */
        }
        emulator_fail_at(0);
        note_losses(b);
    }
    eager(a, b->steps);
    ck_same_run(a, b);
    world_free(a);
    world_free(b);
}
END_TEST

/* The numbers under which calls report errors in data wrap around. Then the calls of a graph keep theirs. */
START_TEST(calls_take_no_number_of_a_graph) {
    if (!on_device()) return;
    world *w = world_new();
    eager(w, 1);
    captured(w);
    tg_cuda *c = tg_cuda_of(w->ctx);
    tg_tensor *x = tg_zeros(w->ctx, TG_F32, TG_SHAPE(4));
    tg_tensor *at = tg_from_host(w->ctx, TG_I64, TG_SHAPE(1), &(int64_t){7});
    unsigned long long numbers = c->calls;
    float v;
    for (unsigned long long i = 0; i < numbers; i++) {
        c->calls = (1ull << 23) + i;
        tg_read(tg_index_select(w->t, x, 0, at), &v, sizeof v);
        for (int k = 0; k < 3; k++) tg_tape_reset(w->t);
        ck_assert_int_eq(tg_ctx_status(w->ctx), TG_ERR_DATA);
        ck_assert_msg(strstr(tg_ctx_message(w->ctx), "index_select: an index"), "%s", tg_ctx_message(w->ctx));
        tg_ctx_clear(w->ctx);
    }
    world_free(w);
}
END_TEST

/* The device's memory does not grow with steps, nor with graphs that are created and freed. */
START_TEST(device_memory_is_steady) {
    if (!on_device()) return;
    long graphs = emulator_live("graph");
    world *w = world_new();
    eager(w, 2);
    size_t used = 0;
    for (int i = 0; i < 4; i++) {
        tg_graph *g = captured(w);
        replay(w, g, 3);
        if (i == 1) used = emulator_memory_used(0);
        tg_graph_free(g);
    }
    ck_assert(emulator_memory_used(0) == used);
    world_free(w);
    ck_assert_int_eq(emulator_live("graph"), graphs);
}
END_TEST
#endif

int main(void) {
    const TTest *tests[] = {replays_are_steps,
                            the_optimizer_goes_on,
                            each_method_goes_on,
                            the_first_step_may_be_captured,
                            two_graphs_take_turns,
                            memory_of_a_graph_is_its_own,
                            an_input_that_was_dropped_stays_the_graphs,
                            a_graph_gives_its_memory_back,
                            a_steady_replay_allocates_nothing,
                            calls_that_cannot_be_replayed_are_refused,
                            gradients_are_as_they_were_recorded,
                            tensors_that_backward_needs_are_not_overwritten,
                            errors_in_data_are_named,
#ifdef TG_CUDA_EMULATOR
                            any_call_of_a_capture_may_fail,
                            any_call_of_a_replay_may_fail,
                            calls_take_no_number_of_a_graph,
                            device_memory_is_steady
#endif
    };
    return tg_check_main("capture", tests, sizeof tests / sizeof *tests);
}
