/* Captured modules: a steady use allocates nothing, and after any failed allocation or call of the device the next use
 * computes what the module computes. */
#include "captured_mixer.h"
#include "counted_allocator.h"

START_TEST(a_steady_use_allocates_nothing) {
    begin();
    tg_module *m = captured_of(mixer_new());
    tg_tensor *in[2], *out[3];
    inputs(in);
    int64_t before = 0;
    for (int i = 0; i < 8; i++) {
        tg_memory_info info = TG_MEMORY_INFO();
        tg_memory_query(ctx, &info);
        if (i == 4) before = info.host_allocations;
        if (i > 4) ck_assert_int_eq(info.host_allocations, before);
        tg_tape_key(t, (uint64_t)i);
        tg_module_call(m, t, in, 2, out, 3);
        tg_backward(t, out[2]);
        tg_tape_reset(t);
    }
    tg_module_free(m);
    end();
}
END_TEST

/* Each allocation of the first use fails in turn; then the use succeeds, as if nothing had been. */
START_TEST(a_failing_allocator_loses_nothing) {
    double g[2][C * OUT];
    for (int captured = 0; captured < 2; captured++) {
        counted memory = {0};
        ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 5, .threads = 1, .dtype = TG_F64,
                                   .allocator = {counted_alloc, counted_free, &memory}));
        t = tg_tape_new(ctx);
        tg_module *m = captured ? captured_of(mixer_new()) : mixer_new();
        tg_tensor *in[2], *out[3];
        inputs(in);
        for (int64_t n = 1;; n++) {
            memory.fail_at = memory.calls + n;
            tg_module_call(m, t, in, 2, out, 3);
            tg_backward(t, out[2]);
            if (memory.calls < memory.fail_at) break;
            ck_status(TG_ERR_MEMORY);
            memory.fail_at = 0;
            tg_ctx_clear(ctx);
            tg_tape_reset(t);
            tg_zero_grad(tg_module_find(m, "body.weight")), tg_zero_grad(tg_module_find(m, "body.bias"));
            tg_rng_set(ctx, NULL, &(tg_rng){.seed = 5});
            ck_assert_int_lt(n, 400);
        }
        memory.fail_at = 0;
        ck_status(TG_OK);
        tg_read_f64(tg_grad_of(tg_module_find(m, "body.weight")), g[captured], C * OUT);
        tg_tape_free(t);
        tg_module_free(m);
        tg_ctx_free(ctx);
        ck_assert_int_eq(memory.held, 0);
    }
    ck_assert_mem_eq(g[0], g[1], sizeof g[0]);
}
END_TEST

#ifdef TG_CUDA_EMULATOR
#include "cuda_emulator/control.h"

/* A call that fails gives an error, or the library goes on without it, as after a segment of memory that is too large.
 */
START_TEST(any_call_of_a_first_use_may_fail) {
    if (!records()) return;
    begin();
    tg_tensor *in[2], *out[3];
    long graphs = emulator_live("graph"), failures = 0;
    bool failed = true;
    inputs(in);
    for (long n = 1; failed; n++) {
        tg_module *m = captured_of(mixer_new());
        tg_draws_step(ctx, (uint64_t)n);
        emulator_fail_at(n);
        tg_module_call(m, t, in, 2, out, 3);
        failed = emulator_failed();
        emulator_fail_at(0);
        failures += tg_ctx_status(ctx) != TG_OK;
        if (tg_ctx_status(ctx) == TG_OK) tg_backward(t, out[2]);
        long live = emulator_live("graph") - graphs; /* both parts, or none */
        ck_assert(live == 2 || (live == 0 && tg_ctx_status(ctx) != TG_OK));
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_module_free(m);
        ck_assert_int_eq(emulator_live("graph"), graphs);
    }
    ck_assert_int_gt(failures, 20);
    end();
}
END_TEST
#endif

int main(void) {
    const TTest *tests[] = {
        a_steady_use_allocates_nothing,
        a_failing_allocator_loses_nothing,
#ifdef TG_CUDA_EMULATOR
        any_call_of_a_first_use_may_fail,
#endif
    };
    return tg_check_main("captured_failures", tests, sizeof tests / sizeof *tests);
}
