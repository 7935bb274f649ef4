/* The caching allocator over a source that counts its calls and can refuse one of them. */
#include <stdlib.h>
#include <string.h>
#include <tapegrad/tensor.h>

#include "check_main.h"
#include "base/memory/heap.h"
#include "base/memory/shadow.h"
#include "base/os.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

typedef struct counted {
    int calls, refuse; /* the call number that fails; 0: none */
    int held;
    int64_t segments;
    size_t last_segment;
} counted;

static bool refused(counted *c) {
    return ++c->calls == c->refuse;
}

static void *segment(void *user, size_t bytes, size_t align) {
    counted *c = user;
    void *p = NULL;
    if (refused(c) || posix_memalign(&p, align, bytes)) return NULL;
    c->held++;
    c->segments++;
    c->last_segment = bytes;
    return p;
}

static void *host(void *user, size_t bytes) {
    counted *c = user;
    if (refused(c)) return NULL;
    c->held++;
    return malloc(bytes);
}

static void give(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((counted *)user)->held--;
    free(p);
}

static tg_heap_source source_of(counted *c) {
    return (tg_heap_source){.segment = segment, .segment_free = give, .host = host, .host_free = give, .user = c};
}

static tg_heap *heap_on(counted *c) {
    tg_heap_source s = source_of(c);
    return tg_heap_new(&s);
}

static tg_memory_info stats_of(const tg_heap *h) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_heap_stats(h, &m);
    return m;
}

START_TEST(blocks_are_rounded_and_aligned) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    static const size_t asked[] = {0, 1, 64, 65, 1000, 1024, 1025, 100000, 3 * MIB + 1};
    static const size_t given[] = {64, 64, 64, 128, 1024, 1024, 1088, 100032, 3 * MIB + 64};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        tg_block *b = tg_heap_alloc(h, asked[i], TG_MEM_TEMPORARY);
        ck_assert_ptr_nonnull(b);
        ck_assert_uint_eq(tg_block_bytes(b), given[i]);
        ck_assert_uint_eq((uintptr_t)tg_block_data(b) % 64, 0);
        memset(tg_block_data(b), 0x5a, tg_block_bytes(b));
    }
    tg_heap_free(h);
    ck_assert_int_eq(c.held, 0);
}
END_TEST

START_TEST(impossible_sizes_are_refused) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    int calls = c.calls;
    ck_assert_ptr_null(tg_heap_alloc(h, SIZE_MAX, TG_MEM_SAVED));
    ck_assert_ptr_null(tg_heap_alloc(h, SIZE_MAX / 2, TG_MEM_SAVED));
    ck_assert_int_eq(c.calls, calls);
    ck_assert_int_eq(stats_of(h).live, 0);
    tg_heap_release(h, NULL);
    tg_heap_free(h);
    tg_heap_free(NULL);
}
END_TEST

START_TEST(segments_grow_from_small_to_the_limit) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    tg_heap_alloc(h, 1, TG_MEM_PARAMETER);
    ck_assert_uint_eq(c.last_segment, 2 * MIB);
    static const size_t next[] = {4, 8, 16, 32, 64, 64};
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        tg_heap_alloc(h, next[i] * MIB, TG_MEM_PARAMETER);
        ck_assert_uint_eq(c.last_segment, next[i] * MIB);
    }
    tg_heap_alloc(h, 99 * MIB, TG_MEM_PARAMETER);
    ck_assert_uint_eq(c.last_segment, 100 * MIB);
    ck_assert_int_eq(stats_of(h).reserved, (int64_t)((2 + 4 + 8 + 16 + 32 + 64 + 64 + 100) * MIB));
    tg_heap_free(h);
    ck_assert_int_eq(c.held, 0);
}
END_TEST

START_TEST(a_refused_segment_is_tried_at_the_least_size) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    tg_heap_alloc(h, 2 * MIB, TG_MEM_PARAMETER);
    c.refuse = c.calls + 1;
    ck_assert_ptr_nonnull(tg_heap_alloc(h, 1 * MIB, TG_MEM_PARAMETER));
    ck_assert_uint_eq(c.last_segment, 2 * MIB);
    tg_heap_free(h);
}
END_TEST

START_TEST(neighbors_merge_in_any_order) {
    static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        counted c = {0};
        tg_heap *h = heap_on(&c);
        tg_block *b[3];
        for (int j = 0; j < 3; j++) b[j] = tg_heap_alloc(h, 600 * KIB, TG_MEM_TEMPORARY);
        for (int j = 0; j < 3; j++) tg_heap_release(h, b[order[i][j]]);
        ck_assert_ptr_nonnull(tg_heap_alloc(h, 2 * MIB, TG_MEM_TEMPORARY));
        ck_assert_int_eq(c.segments, 1);
        tg_heap_free(h);
    }
}
END_TEST

START_TEST(small_blocks_come_back_last_in_first_out) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    tg_block *a = tg_heap_alloc(h, 100, TG_MEM_SAVED), *b = tg_heap_alloc(h, 100, TG_MEM_SAVED);
    tg_heap_release(h, a);
    tg_heap_release(h, b);
    ck_assert_int_eq(stats_of(h).live, 0);
    ck_assert_ptr_eq(tg_heap_alloc(h, 128, TG_MEM_SAVED), b);
    ck_assert_ptr_eq(tg_heap_alloc(h, 65, TG_MEM_SAVED), a);
    tg_heap_free(h);
}
END_TEST

START_TEST(the_peak_is_split_by_category_as_it_was) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    tg_block *p = tg_heap_alloc(h, 1 * MIB, TG_MEM_PARAMETER);
    tg_block *t = tg_heap_alloc(h, 64 * KIB, TG_MEM_TEMPORARY);
    tg_block_categorize(h, t, TG_MEM_SAVED);
    tg_heap_release(h, t);
    tg_heap_alloc(h, 64, TG_MEM_GRADIENT);
    tg_memory_info m = stats_of(h);
    ck_assert_int_eq(m.live, 1 * MIB + 64);
    ck_assert_int_eq(m.peak, 1 * MIB + 64 * KIB);
    ck_assert_int_eq(m.peak_by_category[TG_MEM_PARAMETER], 1 * MIB);
    ck_assert_int_eq(m.peak_by_category[TG_MEM_SAVED], 64 * KIB);
    ck_assert_int_eq(m.peak_by_category[TG_MEM_TEMPORARY], 0);
    ck_assert_int_eq(m.by_category[TG_MEM_GRADIENT], 64);
    ck_assert_int_eq(tg_block_category(p), TG_MEM_PARAMETER);
    tg_heap_reset_peak(h);
    m = stats_of(h);
    ck_assert_int_eq(m.peak, m.live);
    ck_assert_int_eq(m.peak_by_category[TG_MEM_SAVED], 0);
    tg_heap_free(h);
}
END_TEST

static void count_call(void *user, const tg_block *b) {
    ck_assert(tg_block_bytes(b) >= 64 && !tg_block_owner(b));
    ++*(int *)user;
}

START_TEST(a_new_peak_is_reported_once_it_is_a_64th_higher) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    int calls = 0;
    tg_heap_alloc(h, 64 * KIB, TG_MEM_SAVED);
    tg_heap_on_peak(h, count_call, &calls);
    tg_heap_alloc(h, 1 * KIB - 64, TG_MEM_SAVED);
    ck_assert_int_eq(calls, 0);
    tg_block *b = tg_heap_alloc(h, 64, TG_MEM_SAVED);
    ck_assert_int_eq(calls, 1);
    tg_heap_release(h, b);
    tg_heap_alloc(h, 64, TG_MEM_SAVED);
    ck_assert_int_eq(calls, 1);
    tg_heap_on_peak(h, NULL, NULL);
    tg_heap_alloc(h, 1 * MIB, TG_MEM_SAVED);
    ck_assert_int_eq(calls, 1);
    tg_heap_free(h);
}
END_TEST

/* A model of the heap: the live blocks, filled with a byte that nothing else may change. */
enum { SLOTS = 400 };
typedef struct model {
    tg_block *block[SLOTS];
    int64_t live, by_category[TG_MEM_CATEGORIES];
} model;

typedef struct walk {
    const char *last;
    int64_t bytes;
    bool ordered, owned;
} walk;

static void step_over(void *user, const tg_block *b) {
    walk *w = user;
    const char *data = tg_block_data(b);
    if (w->last && data < w->last) w->ordered = false;
    tg_block *const *slot = tg_block_owner(b);
    if (!slot || *slot != b) w->owned = false;
    w->last = data + tg_block_bytes(b);
    w->bytes += (int64_t)tg_block_bytes(b);
}

static void agrees(const tg_heap *h, const model *m) {
    walk w = {.ordered = true, .owned = true};
    tg_heap_each(h, step_over, &w);
    ck_assert(w.ordered && w.owned);
    ck_assert_int_eq(w.bytes, m->live);
    tg_memory_info s = stats_of(h);
    ck_assert_int_eq(s.live, m->live);
    ck_assert_mem_eq(s.by_category, m->by_category, sizeof m->by_category);
}

static void slot_fill(tg_heap *h, model *m, int i, size_t bytes, tg_category category) {
    tg_block *b = m->block[i] = tg_heap_alloc(h, bytes, category);
    ck_assert_ptr_nonnull(b);
    tg_block_set_owner(b, &m->block[i]);
    memset(tg_block_data(b), i & 255, tg_block_bytes(b));
    m->live += (int64_t)tg_block_bytes(b);
    m->by_category[category] += (int64_t)tg_block_bytes(b);
}

static void slot_empty(tg_heap *h, model *m, int i) {
    tg_block *b = m->block[i];
    const unsigned char *data = tg_block_data(b);
    size_t kept = 0;
    while (kept < tg_block_bytes(b) && data[kept] == (i & 255)) kept++;
    ck_assert_uint_eq(kept, tg_block_bytes(b));
    m->live -= (int64_t)tg_block_bytes(b);
    m->by_category[tg_block_category(b)] -= (int64_t)tg_block_bytes(b);
    m->block[i] = NULL;
    tg_heap_release(h, b);
}

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

START_TEST(random_work_agrees_with_a_model) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    model m = {0};
    uint32_t seed = 1;
    for (int step = 0; step < 20000; step++) {
        int i = (int)(draw(&seed) % SLOTS);
        size_t most = draw(&seed) % 4 ? 2 * KIB : 300 * KIB;
        if (m.block[i])
            slot_empty(h, &m, i);
        else
            slot_fill(h, &m, i, draw(&seed) % most, (tg_category)(draw(&seed) % TG_MEM_CATEGORIES));
        if (step % 200 == 0) agrees(h, &m);
    }
    for (int i = 0; i < SLOTS; i++)
        if (m.block[i]) slot_empty(h, &m, i);
    agrees(h, &m);
    tg_heap_free(h);
    ck_assert_int_eq(c.held, 0);
}
END_TEST

/* Like a training step: activations grow and are freed in reverse while gradients are allocated and freed; the
 * parameters' gradients remain from the first step on. */
static void training_step(tg_heap *h, tg_block **gradient, int layers) {
    tg_block *saved[64][4];
    for (int l = 0; l < layers; l++)
        for (int k = 0; k < 4; k++)
            saved[l][k] = tg_heap_alloc(h, (size_t)(1000 + 7000 * k * k + 130 * l), TG_MEM_SAVED);
    for (int l = layers - 1; l >= 0; l--) {
        tg_block *g = tg_heap_alloc(h, (size_t)(90000 + 70 * l), TG_MEM_TEMPORARY);
        if (!gradient[l]) gradient[l] = tg_heap_alloc(h, (size_t)(40000 + 64 * l), TG_MEM_GRADIENT);
        for (int k = 0; k < 4; k++) tg_heap_release(h, saved[l][k]);
        tg_heap_release(h, g);
    }
}

START_TEST(a_steady_step_takes_nothing_from_the_source) {
    counted c = {0};
    tg_heap *h = heap_on(&c);
    tg_block *gradient[64] = {NULL};
    for (int step = 0; step < 2; step++) training_step(h, gradient, 64);
    int calls = c.calls;
    for (int step = 0; step < 50; step++) training_step(h, gradient, 64);
    ck_assert_int_eq(c.calls, calls);
    tg_heap_free(h);
}
END_TEST

/* Makes the same requests while the nth call of the source fails. The request that meets it changes nothing, and
 * succeeds when it is repeated. Returns false if n is beyond the last call. */
static bool survives(int n) {
    counted c = {.refuse = n};
    tg_heap *h = heap_on(&c);
    if (!h) {
        ck_assert_int_eq(c.held, 0);
        return true;
    }
    model m = {0};
    uint32_t seed = 7;
    for (int i = 0; i < SLOTS; i++) {
        size_t bytes = draw(&seed) % (i % 9 ? 1500 : 200 * KIB);
        tg_memory_info before = stats_of(h);
        tg_block *b = tg_heap_alloc(h, bytes, TG_MEM_SAVED);
        if (b) {
            tg_heap_release(h, b);
        } else {
            tg_memory_info after = stats_of(h);
            ck_assert_mem_eq(&before, &after, sizeof before);
            agrees(h, &m);
        }
        slot_fill(h, &m, i, bytes, TG_MEM_SAVED);
        if (i % 3 == 0) slot_empty(h, &m, i);
    }
    agrees(h, &m);
    tg_heap_free(h);
    ck_assert_int_eq(c.held, 0);
    return c.calls >= n;
}

START_TEST(any_refusal_is_survived) {
    int n = 1;
    while (survives(n)) n++;
    ck_assert_int_gt(n, 5);
}
END_TEST

#if TG_SHADOWED
/* Returns what the checker reports for one byte. */
static bool closed(const char *p) {
#ifdef TG_SHADOW_ADDRESS
    return __asan_address_is_poisoned(p);
#else
    char bits;
    return VALGRIND_GET_VBITS(p, &bits, 1) == 3;
#endif
}

static bool somebody_checks(void) {
#ifdef TG_SHADOW_ADDRESS
    return true;
#else
    return RUNNING_ON_VALGRIND;
#endif
}

START_TEST(bytes_outside_of_live_tensors_are_closed) {
    if (!somebody_checks()) return;
    tg_ctx *ctx = tg_ctx_new(NULL);
    static const int64_t elements[] = {1, 25, 250, 1250, (3 << 18) + 1}; /* small blocks and ranges */
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        size_t bytes = (size_t)elements[i] * 4;
        tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(elements[i]));
        const char *p = tg_host_data(x);
        ck_assert(!closed(p) && !closed(p + bytes - 1));
        ck_assert_msg(closed(p + bytes), "an access after %zu bytes is not caught", bytes);
        tg_drop(x);
        ck_assert_msg(closed(p) && closed(p + bytes - 1), "freed, %zu bytes may still be touched", bytes);
        x = tg_zeros(ctx, TG_F32, TG_SHAPE(elements[i]));
        ck_assert_ptr_eq(tg_host_data(x), p);
        ck_assert(!closed(p) && !closed(p + bytes - 1) && closed(p + bytes));
        tg_drop(x);
    }
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
}
END_TEST
#endif

START_TEST(the_system_allocator_aligns_and_gives_back) {
    tg_allocator a = tg_system_allocator();
    static const size_t bytes[] = {1, 100, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 12345};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        for (size_t align = 1; align <= 2 * MIB; align *= 64) {
            char *p = a.alloc(a.user, bytes[i], align);
            ck_assert_ptr_nonnull(p);
            ck_assert_uint_eq((uintptr_t)p % align, 0);
            p[0] = p[bytes[i] - 1] = 1;
            a.free(a.user, p, bytes[i]);
        }
    ck_assert_ptr_null(a.alloc(a.user, SIZE_MAX - 5, 64));
    ck_assert_ptr_null(a.alloc(a.user, (size_t)1 << 60, 64));
    a.free(a.user, NULL, 0);
}
END_TEST

START_TEST(there_is_a_core_to_run_on) {
    ck_assert_int_ge(tg_system_cores(), 1);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        blocks_are_rounded_and_aligned,
        impossible_sizes_are_refused,
        segments_grow_from_small_to_the_limit,
        a_refused_segment_is_tried_at_the_least_size,
        neighbors_merge_in_any_order,
        small_blocks_come_back_last_in_first_out,
        the_peak_is_split_by_category_as_it_was,
        a_new_peak_is_reported_once_it_is_a_64th_higher,
        random_work_agrees_with_a_model,
        a_steady_step_takes_nothing_from_the_source,
        any_refusal_is_survived,
#if TG_SHADOWED
        bytes_outside_of_live_tensors_are_closed,
#endif
        the_system_allocator_aligns_and_gives_back,
        there_is_a_core_to_run_on,
    };
    return tg_check_main("heap", tests, sizeof tests / sizeof tests[0]);
}
