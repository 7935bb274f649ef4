/* A whole GPT training step: every allocation fails in turn, a steady step allocates nothing, the bits are equal on
 * every run and for every thread count, and device meta gives the same accounting (promises 6, 12 and 13 of
 * docs/design.md). */
#include "check_main.h"

#include <tapegrad/gpt.h>
#include <tapegrad/optim.h>

#include "train/small_run.h"

/* NULL: the CPU. */
static const char *test_device(void) { return getenv("TG_TEST_DEVICE"); }

static run whole(const options *o) {
    run r;
    run_open(&r, o);
    for (int i = 0; i < STEPS; i++) run_step(&r, i);
    if (!o->device || strcmp(o->device, "meta") != 0) r.bits = parameter_bits(&r);
    ck_assert_msg(tg_ctx_status(r.ctx) == TG_OK, "%s", tg_ctx_message(r.ctx));
    run_close(&r);
    return r;
}

static options variants[] = {
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
    ck_assert(whole(&variants[0]).bits == whole(&variants[2]).bits); /* with and without recomputation */
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

/* Kernels of a GPU take work memory, which device meta does not have: how much depends on the GPU. Without it at the
 * peak, the two agree in every category. */
START_TEST(meta_accounts_as_a_real_run) {
    for (int v = 0; v < VARIANTS; v++) {
        options o = variants[v];
        tg_memory_info real = whole(&o).memory;
        o.device = "meta";
        tg_memory_info meta = whole(&o).memory;
        int64_t kernels = real.peak_by_category[TG_MEM_WORKSPACE];
        ck_assert_msg(real.peak - kernels <= meta.peak && meta.peak <= real.peak,
                      "variant %d: the peak is %lld on meta, and %lld with %lld of kernels in a run", v,
                      (long long)meta.peak, (long long)real.peak, (long long)kernels);
        ck_assert_int_eq(real.live, meta.live);
        for (int c = 0; c < TG_MEM_CATEGORIES && !kernels; c++)
            ck_assert_msg(real.peak_by_category[c] == meta.peak_by_category[c],
                          "variant %d: category %d has %lld bytes on meta, %lld in a run", v, c,
                          (long long)meta.peak_by_category[c], (long long)real.peak_by_category[c]);
    }
}
END_TEST

int main(void) {
    for (int v = 0; v < VARIANTS; v++) variants[v].device = test_device();
    const TTest *tests[] = {the_same_bits_every_time_and_for_any_threads, losses_fall, a_steady_step_allocates_nothing,
                            every_allocation_may_fail, meta_accounts_as_a_real_run};
    return tg_check_main("step", tests, sizeof tests / sizeof *tests);
}
