/* The memory of a generator: a token allocates nothing, samples that wait have no memory of their own, and samples that
 * were released have none any more. */
#include <tapegrad/tokenizer.h>

#include "generate_world.h"

/* An allocator that counts its calls, and the bytes that are in use. */
typedef struct counted {
    int64_t calls, bytes, peak;
} counted;

static void *count_alloc(void *user, size_t bytes, size_t align) {
    counted *c = user;
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1)) return NULL;
    c->calls++;
    c->bytes += (int64_t)bytes;
    if (c->bytes > c->peak) c->peak = c->bytes;
    return p;
}

static void count_free(void *user, void *p, size_t bytes) {
    ((counted *)user)->bytes -= (int64_t)bytes;
    free(p);
}

static void begin_counted(counted *c, tg_dtype dtype) {
    *c = (counted){0};
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = dtype, .seed = 5, .allocator = {count_alloc, count_free, c}));
}

/* ---- A token allocates nothing ---- */

enum { FIRST = 8, LAST = 30 }; /* the tokens during which calls are counted */

typedef struct watch {
    counted *c;
    int64_t at_first, at_last;
} watch;

static tg_generate_next look(void *state, const tg_token *t) {
    watch *w = state;
    if (t->index == FIRST) w->at_first = w->c->calls;
    if (t->index == LAST) w->at_last = w->c->calls;
    return TG_GENERATE_CONTINUE;
}

static void steady(tg_dtype dtype, tg_gpt_arch arch, int64_t rows, bool drafted) {
    counted c;
    begin_counted(&c, dtype);
    make_prompts();
    watch w = {.c = &c};
    tg_module *lm = model(arch, 2, 1), *draft = drafted ? model(arch, 1, 2) : NULL;
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = rows, .draft = draft));
    tg_tokenizer *bytes = tg_tokenizer_new_bytes(ctx);
    tg_generate_opts *o = TG_GENERATE(.tokens = LAST + 2, .samples = rows, .tokenizer = bytes, .logprobs = true,
                                      .top_logprobs = 5, .on_token = look, .state = &w,
                                      .sampling = TG_SAMPLING(.top_k = 20, .top_p = 0.9, .min_p = 0.01));
    for (int i = 0; i < 2; i++) tg_generator_run(g, prompts, 1, o); /* longer sequences need blocks of other sizes */
    ck_assert_int_gt(w.at_first, 0);
    ck_assert_msg(w.at_first == w.at_last, "%lld allocations in %d tokens", (long long)(w.at_last - w.at_first),
                  LAST - FIRST);
    tg_generator_free(g);
    tg_tokenizer_free(bytes);
    tg_module_free(draft);
    tg_module_free(lm);
    end();
    ck_assert_int_eq(c.bytes, 0);
}

START_TEST(a_token_allocates_nothing) {
    static const tg_dtype dtypes[] = {TG_F32, TG_BF16};
    for (int k = 0; k < 2; k++)
        for (int rows = 1; rows <= 3; rows += 2) {
            steady(dtypes[k], TG_LLAMA, rows, false);
            steady(dtypes[k], TG_GPT2, rows, false);
            steady(dtypes[k], TG_LLAMA, rows, true);
        }
}
END_TEST

/* ---- Many samples ---- */

typedef struct many {
    tg_generator *g;
    int64_t released;
} many;

/* Releases each sample as it ends, and another one, which does nothing. */
static tg_generate_next release(void *state, const tg_token *t) {
    many *m = state;
    tg_generator_release(m->g, t->prompt, t->sample + 1000);
    tg_generator_release(m->g, t->prompt, t->sample + 3); /* it has not ended */
    if (t->finish == TG_FINISH_NONE) return TG_GENERATE_CONTINUE;
    ck_assert_ptr_nonnull(tg_generator_result(m->g, t->prompt, t->sample));
    tg_generator_release(m->g, t->prompt, t->sample);
    ck_assert_ptr_null(tg_generator_result(m->g, t->prompt, t->sample));
    m->released++;
    return TG_GENERATE_CONTINUE;
}

/* Returns the most bytes in use while n samples are made and, if `freed`, released. */
static int64_t peak_of(int64_t n, bool freed) {
    counted c;
    begin_counted(&c, TG_F64);
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 1, 1);
    many m = {.g = tg_generator_new(lm, TG_GENERATOR(.rows = 2))};
    tg_generator_run(m.g, prompts, 1, TG_GENERATE(.tokens = 3, .samples = n, .logprobs = true, .top_logprobs = VOCAB,
                                                  .on_token = freed ? release : NULL, .state = &m));
    ck_assert_int_eq(m.released, freed ? n : 0);
    for (int64_t i = 0; i < n; i++) ck_assert(!tg_generator_result(m.g, 0, i) == freed);
    if (!freed) tg_generator_release(m.g, 0, n - 1); /* after the call */
    if (!freed) ck_assert_ptr_null(tg_generator_result(m.g, 0, n - 1));
    tg_generator_release(NULL, 0, 0);
    tg_generator_free(m.g);
    tg_module_free(lm);
    end();
    ck_assert_int_eq(c.bytes, 0);
    return c.peak;
}

START_TEST(released_samples_have_no_memory) {
    int64_t few = peak_of(4, true), all = peak_of(400, true), kept = peak_of(400, false);
    ck_assert_int_lt(all - few, 400 * 512); /* what the generator knows of a sample */
    ck_assert_int_gt(kept - all, 396 * 2 * 3 * VOCAB * 8);
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_token_allocates_nothing, released_samples_have_no_memory};
    return tg_check_main("generate_memory", tests, sizeof tests / sizeof *tests);
}
