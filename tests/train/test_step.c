/* A whole GPT training step: every allocation failed in turn, no allocation in the steady state, the same bits twice
 * and for every thread count, and the same accounting on device meta (invariants 6, 12 and 13). */
#include "check_main.h"

#include <stdlib.h>
#include <string.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

enum { BATCH = 2, SEQ = 8, VOCAB = 19, STEPS = 3 };

/* An allocator that fails its nth call, and knows what is outstanding. */
typedef struct faulty {
    int64_t calls, fail_at;
    int64_t blocks;
} faulty;

static void *faulty_alloc(void *user, size_t bytes, size_t align) {
    faulty *f = user;
    if (++f->calls == f->fail_at) return NULL;
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1)) return NULL;
    f->blocks++;
    return p;
}

static void faulty_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((faulty *)user)->blocks--;
    free(p);
}

typedef struct run {
    tg_ctx *ctx;
    tg_module *gpt;
    tg_optim *opt;
    tg_tape *t;
    tg_tensor *ids, *target;
    double loss[STEPS];
    uint64_t bits; /* of the parameters at the end */
    tg_memory memory;
} run;

typedef struct options {
    tg_gpt_arch arch;
    tg_dtype dtype;
    int threads;
    bool recompute;
    const char *device;
    faulty *f;
} options;

static void run_open(run *r, const options *o) {
    *r = (run){.memory = TG_MEMORY()};
    tg_config c = {.size = sizeof c, .seed = 11, .threads = o->threads, .dtype = o->dtype, .device = o->device};
    if (o->f) c.allocator = (tg_allocator){faulty_alloc, faulty_free, o->f};
    r->ctx = tg_ctx_new(&c);
    r->gpt = tg_gpt_new(r->ctx, TG_GPT(.arch = o->arch, .vocab = VOCAB, .layers = 2, .heads = 2, .hidden = 16,
                                       .positions = SEQ, .kv_heads = o->arch == TG_LLAMA ? 1 : 2,
                                       .dropout = o->arch == TG_GPT2 ? 0.1 : 0, .recompute = o->recompute));
    tg_tensor *p[64];
    int n = tg_module_params(r->gpt, p, 64);
    r->opt = tg_adamw_new(r->ctx, p, n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(r->opt, 1);
    if (o->dtype == TG_F16) tg_optim_set_scale(r->opt, TG_LOSS_SCALE(.initial = 4096, .interval = 2));
    int64_t ids[BATCH * SEQ], target[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = i * 5 % VOCAB, target[i] = (i * 5 + 5) % VOCAB;
    r->ids = tg_from_host(r->ctx, TG_I64, TG_SHAPE(BATCH, SEQ), ids);
    r->target = tg_from_host(r->ctx, TG_I64, TG_SHAPE(BATCH, SEQ), target);
    r->t = tg_tape_new(r->ctx);
}

static void run_step(run *r, int i) {
    tg_tensor *loss = tg_gpt_loss(r->gpt, r->t, r->ids, r->target, TG_LOSS_MEAN);
    tg_backward(r->t, tg_scale_loss(r->t, loss, r->opt));
    tg_optim_set_lr(r->opt, 1e-2 / (1 + 0.1 * i));
    if (strcmp(tg_ctx_device(r->ctx), "meta") != 0) r->loss[i] = tg_item(loss);
    tg_optim_step(r->opt);
    tg_optim_zero_grad(r->opt);
    tg_tape_reset(r->t);
}

static uint64_t parameter_bits(const run *r) {
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < tg_module_param_count(r->gpt); i++) {
        tg_tensor *p = tg_module_param(r->gpt, i, NULL);
        const unsigned char *bytes = tg_host_data(p);
        for (int64_t k = 0, n = tg_numel(p) * tg_dtype_bits(tg_dtype_of(p)) / 8; bytes && k < n; k++)
            h = (h ^ bytes[k]) * 1099511628211u;
    }
    return h;
}

static void run_close(run *r) {
    tg_memory_stats(r->ctx, &r->memory);
    tg_optim_free(r->opt);
    tg_module_free(r->gpt);
    tg_tape_free(r->t);
    tg_ctx_free(r->ctx);
}

static run whole(const options *o) {
    run r;
    run_open(&r, o);
    for (int i = 0; i < STEPS; i++) run_step(&r, i);
    if (o->device == NULL) r.bits = parameter_bits(&r);
    ck_assert_msg(tg_ctx_status(r.ctx) == TG_OK, "%s", tg_ctx_message(r.ctx));
    run_close(&r);
    return r;
}

static const options variants[] = {
    {.arch = TG_GPT2, .threads = 1},
    {.arch = TG_LLAMA, .threads = 1},
    {.arch = TG_GPT2, .threads = 1, .recompute = true},
    {.arch = TG_GPT2, .threads = 1, .dtype = TG_BF16},
    {.arch = TG_LLAMA, .threads = 1, .dtype = TG_F64, .recompute = true},
    {.arch = TG_GPT2, .threads = 1, .dtype = TG_F16},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

START_TEST(the_same_bits_every_time_and_for_any_threads) {
    for (int v = 0; v < VARIANTS; v++) {
        run a = whole(&variants[v]), b = whole(&variants[v]);
        ck_assert(a.bits == b.bits);
        for (int threads = 2; threads <= 3; threads++) {
            options o = variants[v];
            o.threads = threads;
            run c = whole(&o);
            ck_assert_msg(a.bits == c.bits, "variant %d differs with %d threads", v, threads);
        }
    }
    ck_assert(whole(&variants[0]).bits == whole(&variants[2]).bits); /* recomputed or not */
}
END_TEST

START_TEST(losses_fall) {
    for (int v = 0; v < VARIANTS; v++) {
        run r = whole(&variants[v]);
        ck_assert_msg(r.loss[2] < r.loss[0], "variant %d: %g to %g", v, r.loss[0], r.loss[2]);
    }
}
END_TEST

START_TEST(a_steady_step_allocates_nothing) {
    for (int v = 0; v < VARIANTS; v++) {
        faulty f = {0};
        options o = variants[v];
        o.f = &f;
        o.threads = 2;
        run r;
        run_open(&r, &o);
        for (int i = 0; i < 2; i++) run_step(&r, i);
        int64_t before = f.calls;
        for (int i = 0; i < 5; i++) run_step(&r, 2);
        ck_assert_msg(f.calls == before, "variant %d: %lld allocations in 5 steps", v, (long long)(f.calls - before));
        run_close(&r);
        ck_assert_int_eq(f.blocks, 0);
    }
}
END_TEST

/* After a failure: clear, reset, zero the gradients, restore the streams, and the repeated step gives the same bits. */
static void step_again(run *r, int i, const tg_rng *rng, int *failures) {
    for (int tries = 0; tries < 3; tries++) {
        run_step(r, i);
        if (tg_ctx_status(r->ctx) == TG_OK) return;
        ck_assert_msg(tg_ctx_status(r->ctx) == TG_ERR_MEMORY, "%s", tg_ctx_message(r->ctx));
        ++*failures;
        tg_ctx_clear(r->ctx);
        tg_tape_reset(r->t);
        tg_optim_zero_grad(r->opt);
        tg_rng_set(r->ctx, NULL, rng);
    }
    ck_abort_msg("the step still fails");
}

static void fail_every_allocation(const options *variant) {
    uint64_t bits = whole(variant).bits;
    int failures = 0, broken = 0;
    for (int64_t n = 1;; n++) {
        faulty f = {.fail_at = n};
        options o = *variant;
        o.f = &f;
        run r;
        run_open(&r, &o);
        if (tg_ctx_status(r.ctx) != TG_OK) {
            broken++;
        } else {
            for (int i = 0; i < STEPS; i++) {
                tg_rng rng;
                tg_rng_get(r.ctx, NULL, &rng);
                step_again(&r, i, &rng, &failures);
            }
            ck_assert_msg(parameter_bits(&r) == bits, "other bits after failure %lld", (long long)n);
        }
        run_close(&r);
        ck_assert_msg(f.blocks == 0, "%lld blocks leak after failure %lld", (long long)f.blocks, (long long)n);
        if (f.calls < n) break;
    }
    ck_assert(broken > 10 && failures > 10);
}

START_TEST(every_allocation_may_fail) {
    for (int v = 0; v < 3; v++) fail_every_allocation(&variants[v]);
    fail_every_allocation(&variants[5]);
}
END_TEST

START_TEST(meta_accounts_as_a_real_run) {
    for (int v = 0; v < VARIANTS; v++) {
        options o = variants[v];
        run real = whole(&o);
        o.device = "meta";
        run meta = whole(&o);
        ck_assert_int_eq(real.memory.peak, meta.memory.peak);
        ck_assert_int_eq(real.memory.live, meta.memory.live);
        for (int c = 0; c < TG_MEM_CATEGORIES; c++)
            ck_assert_int_eq(real.memory.peak_by_category[c], meta.memory.peak_by_category[c]);
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {the_same_bits_every_time_and_for_any_threads, losses_fall, a_steady_step_allocates_nothing,
                            every_allocation_may_fail, meta_accounts_as_a_real_run};
    return tg_check_main("step", tests, sizeof tests / sizeof *tests);
}
