/* On the emulator: every fallible call of CUDA and cuBLASLt fails in turn while a GPT trains, is saved, is loaded
 * again, and generates. Each failure is reported with the name of the call; nothing hangs or leaks; and after
 * tg_ctx_clear the repeated step gives the same bits (invariant 13). */
#include "check_main.h"

#include <unistd.h>

#include <tapegrad/io.h>
#include <tapegrad/gpt.h>
#include <tapegrad/optim.h>

#include "cuda_emulator/control.h"
#include "train/small_run.h"
#include "train/turns.h"

enum { TOKENS = 3, STATES = 128 };

static char directory[] = "/tmp/tapegrad-faults-XXXXXX";

static const char *file(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* A run in stages, each of which can be repeated after a failure. */
typedef struct snapshot {
    unsigned char bytes[1 << 17]; /* parameters and the optimizer's state */
    size_t n;
    int64_t steps;
} snapshot;

typedef struct faults {
    options o;
    run r;
    tg_rng rng;
    uint64_t bits;
    double logits[TOKENS][VOCAB];
    int reported;
    bool noting;             /* nothing fails: the state before each stage is stored */
    const snapshot *back_to; /* the state from which to repeat, if not the one that the failure has left */
} faults;

static tg_tensor *state_of(const run *r, int i) {
    int n = tg_module_param_count(r->gpt);
    return i < n ? tg_module_param(r->gpt, i, NULL) : tg_optim_state(r->opt, i - n, NULL);
}

static size_t bytes_of(const tg_tensor *x) { return (size_t)(tg_numel(x) * tg_dtype_bits(tg_dtype_of(x)) / 8); }

static void take(snapshot *s, const run *r) {
    *s = (snapshot){.steps = tg_optim_steps(r->opt)};
    for (int i = 0, n = tg_module_param_count(r->gpt) + tg_optim_state_count(r->opt); i < n; i++) {
        tg_tensor *x = state_of(r, i);
        ck_assert(s->n + bytes_of(x) <= sizeof s->bytes);
        tg_read(x, s->bytes + s->n, bytes_of(x));
        s->n += bytes_of(x);
    }
}

static void restore(const snapshot *s, run *r) {
    size_t at = 0;
    for (int i = 0, n = tg_module_param_count(r->gpt) + tg_optim_state_count(r->opt); i < n; i++) {
        tg_tensor *x = state_of(r, i);
        tg_write(x, s->bytes + at, bytes_of(x));
        at += bytes_of(x);
    }
    tg_optim_set_steps(r->opt, s->steps);
}

static void begin(faults *f, int i) {
    (void)i;
    run_open(&f->r, &f->o);
}

/* An optimizer step that fails in the middle has stepped some parameters, so the run continues from the stored
 * state. */
static void step(faults *f, int i) {
    static snapshot before[STEPS + 1]; /* states of the run without failures */
    run *r = &f->r;
    if (f->noting) take(&before[i], r);
    run_gradients(r, i % STEPS);
    bool ready = tg_ctx_status(r->ctx) == TG_OK;
    tg_optim_step(r->opt);
    tg_optim_zero_grad(r->opt);
    tg_tape_reset(r->t);
    f->back_to = ready ? &before[i] : NULL;
}

static void list_states(run *r, tg_named_tensor *states, char names[][64], int n) {
    for (int i = 0; i < n; i++) {
        const char *name = "";
        states[i].tensor = tg_optim_state(r->opt, i, &name);
        snprintf(names[i], 64, "%d.%s", i, name); /* parameters may share a name */
        states[i].name = names[i];
    }
}

static void save(faults *f, int i) {
    (void)i;
    tg_named_tensor states[STATES];
    char names[STATES][64];
    int n = tg_optim_state_count(f->r.opt);
    ck_assert_int_le(n, STATES);
    list_states(&f->r, states, names, n);
    tg_gpt_save(f->r.gpt, directory);
    tg_safetensors_save(f->r.ctx, file("optim.safetensors"), states, n, NULL, 0);
}

/* Another context continues at the first one's state. */
static void resume(faults *f, int i) {
    (void)i;
    tg_named_tensor states[STATES];
    char names[STATES][64];
    run_open(&f->r, &f->o);
    tg_gpt_load_weights(f->r.gpt, directory);
    tg_safetensors *s = tg_safetensors_open(f->r.ctx, file("optim.safetensors"));
    int n = tg_optim_state_count(f->r.opt);
    list_states(&f->r, states, names, n);
    for (int k = 0; k < n; k++) tg_safetensors_read(s, names[k], states[k].tensor, false);
    tg_safetensors_close(s);
    tg_optim_set_steps(f->r.opt, STEPS);
    tg_rng_set(f->r.ctx, NULL, &f->rng);
}

static void generate(faults *f, int i) {
    (void)i;
    int64_t id = 3;
    tg_gpt_cache *cache = tg_gpt_cache_new(f->r.gpt, 1, SEQ);
    for (int k = 0; k < TOKENS; k++) {
        tg_tensor *ids = tg_from_host(f->r.ctx, TG_I64, TG_SHAPE(1, 1), &id);
        tg_read_f64(tg_gpt_next(f->r.gpt, f->r.t, cache, ids), f->logits[k], VOCAB);
        tg_tape_reset(f->r.t);
        tg_drop(ids);
        for (int v = id = 0; v < VOCAB; v++)
            if (f->logits[k][v] > f->logits[k][id]) id = v;
    }
    tg_gpt_cache_free(cache);
}

static void bits(faults *f, int i) {
    (void)i;
    f->bits = parameter_bits(&f->r);
}

/* If a call has failed, the error names it. The heap reports failures of memory, and cuBLASLt's results have other
 * names. */
static void check_told(const faults *f) {
    const char *call = emulator_failed(), *message = tg_ctx_message(f->r.ctx);
    ck_assert_msg(call != NULL, "fails, though no call did: %s", message);
    bool named = strstr(message, call) || (!strcmp(call, "cudaMalloc") && tg_ctx_status(f->r.ctx) == TG_ERR_MEMORY) ||
                 (!strcmp(call, "a kernel's launch") && strstr(message, "cudaErrorLaunchOutOfResources"));
    ck_assert_msg(named, "%s failed, and the message is: %s", call, message);
}

/* Repeats a stage that fails, once. `fresh`: the stage makes the context. */
static void stage(faults *f, void (*run_it)(faults *, int), int i, bool fresh) {
    bool failed_before = emulator_failed() != NULL;
    f->back_to = NULL;
    tg_rng rng = {0};
    if (!fresh) tg_rng_get(f->r.ctx, NULL, &rng);
    run_it(f, i);
    if (tg_ctx_status(f->r.ctx) == TG_OK) return;
    check_told(f);
    ck_assert_msg(!failed_before, "fails again, after %s: %s", emulator_failed(), tg_ctx_message(f->r.ctx));
    f->reported++;
    if (fresh) {
        run_close(&f->r);
    } else {
        tg_ctx_clear(f->r.ctx);
        tg_tape_reset(f->r.t);
        tg_optim_zero_grad(f->r.opt);
        tg_rng_set(f->r.ctx, NULL, &rng);
        if (f->back_to) restore(f->back_to, &f->r);
    }
    run_it(f, i);
    ck_assert_msg(tg_ctx_status(f->r.ctx) == TG_OK, "repeated after %s: %s", emulator_failed(),
                  tg_ctx_message(f->r.ctx));
}

static faults all_stages(const options *o, long fail_at, bool noting) {
    faults f = {.o = *o, .noting = noting};
    faulty host = {0};
    f.o.f = &host;
    emulator_fail_at(fail_at);
    stage(&f, begin, 0, true);
    for (int i = 0; i < STEPS; i++) stage(&f, step, i, false);
    stage(&f, save, 0, false);
    tg_rng_get(f.r.ctx, NULL, &f.rng);
    run_close(&f.r);
    stage(&f, resume, 0, true);
    stage(&f, step, STEPS, false);
    stage(&f, generate, 0, false);
    stage(&f, bits, 0, false);
    run_close(&f.r);
    ck_assert_msg(host.blocks == 0, "%lld blocks of host memory leak", (long long)host.blocks);
    static const char *const kinds[] = {"stream", "event", "memory", "pinned", "cublas", "graph"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        ck_assert_msg(emulator_live(kinds[k]) == 0, "%ld of kind %s leak after %s", emulator_live(kinds[k]), kinds[k],
                      emulator_failed() ? emulator_failed() : "no failure");
    ck_assert_str_eq(emulator_message(), "");
    return f;
}

/* Calls that free something may fail silently: no error can be reported, and everything is freed nevertheless.
 * cudaSetDevice is called when the device is closed. */
static bool may_be_silent(const char *call) {
    static const char *const ends[] = {"cudaFree",          "cudaFreeHost",          "cudaEventDestroy",
                                       "cudaStreamDestroy", "cudaStreamSynchronize", "cublasLtDestroy",
                                       "cudaSetDevice"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strcmp(call, ends[i])) return true;
    return false;
}

static void fail_every_call(const options *o, long one_in) {
    faults noted = all_stages(o, 0, true), right = all_stages(o, 0, false);
    long calls = emulator_calls(), silent = 0, reported = 0, failed = 0;
    turns t = turns_of("failing calls", one_in);
    ck_assert(right.bits != 0 && right.bits == noted.bits && right.reported == 0 && calls > 500);
    for (long n = 1; n <= calls; n++) {
        if (!its_turn(&t, n)) continue;
        faults f = all_stages(o, n, false);
        const char *call = emulator_failed();
        ck_assert_msg(call != NULL, "call %ld of %ld never came", n, calls);
        ck_assert_msg(f.reported || may_be_silent(call), "call %ld, %s, fails in silence", n, call);
        ck_assert_msg(f.bits == right.bits, "other parameters after call %ld, %s", n, call);
        ck_assert_msg(!memcmp(f.logits, right.logits, sizeof f.logits), "other logits after call %ld, %s", n, call);
        failed++;
        reported += f.reported;
        silent += !f.reported;
    }
    printf("%ld of %ld calls failed: %ld reported, %ld frees\n", failed, calls, reported, silent);
    ck_assert(reported > 5 * silent);
}

START_TEST(every_call_may_fail_gpt2) {
    fail_every_call(&(options){.arch = TG_GPT2, .threads = 1, .device = "cuda"}, 61);
}
END_TEST

START_TEST(every_call_may_fail_llama) {
    const options o = {.arch = TG_LLAMA, .threads = 1, .device = "cuda", .dtype = TG_BF16, .recompute = true};
    fail_every_call(&o, 97);
}
END_TEST

int main(void) {
    if (!mkdtemp(directory)) return EXIT_FAILURE;
    const TTest *tests[] = {every_call_may_fail_gpt2, every_call_may_fail_llama};
    int result = tg_check_main("cuda_faults", tests, sizeof tests / sizeof *tests);
    static const char *const files[] = {"config.json", "model.safetensors", "optim.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(file(files[i]));
    rmdir(directory);
    return result;
}
