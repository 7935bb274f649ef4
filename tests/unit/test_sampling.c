/* Sampling functions against a reference that sorts everything, and draws against the probabilities. */
#include "generate_world.h"

typedef struct entry {
    double p;
    int id;
} entry;

static int by_probability(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id - y->id;
}

static bool has(const int64_t *ids, int64_t n, int id) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static double softmax_sum(entry *e, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += e[i].p;
    return sum;
}

/* Computes the probabilities as the comments of tg_sampling_opts define them, one step after the other. */
static void reference(const double *logits, int n, const int64_t *ids, int64_t count, int64_t prompt,
                      const tg_sampling_opts *o, double *p) {
    entry e[VOCAB];
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        double x = logits[i], times = 0;
        if (has(ids, count, i)) x = x > 0 ? x / o->repetition_penalty : x * o->repetition_penalty;
        for (int64_t k = prompt; k < count; k++) times += ids[k] == i;
        if (times > 0) x -= o->presence_penalty + times * o->frequency_penalty;
        e[i] = (entry){x, i};
        top = fmax(top, x);
        p[i] = 0;
    }
    qsort(e, (size_t)n, sizeof *e, by_probability);
    if (o->temperature == 0) {
        p[e[0].id] = 1;
        return;
    }
    for (int i = 0; i < n; i++) e[i].p = exp((e[i].p - top) / o->temperature);
    if (o->top_k > 0 && o->top_k < n) n = (int)o->top_k;
    double all = softmax_sum(e, n);
    int kept = 0;
    while (kept < n && (kept == 0 || sum < o->top_p * all)) sum += e[kept++].p;
    if (o->top_p < 1) n = kept;
    while (n > 1 && e[n - 1].p < o->min_p * e[0].p) n--;
    all = softmax_sum(e, n);
    for (int i = 0; i < n; i++) p[e[i].id] = e[i].p / all;
}

static double number(int k, uint64_t seed) { return tg_sampling_uniform(seed, 99, 0, k); }

static void one_case(uint64_t seed) {
    double x[VOCAB], want[VOCAB], got[VOCAB];
    int64_t ids[12], count = (int64_t)(13 * number(1, seed)), prompt = (int64_t)((double)(count + 1) * number(2, seed));
    int n = 1 + (int)(VOCAB * number(3, seed));
    for (int i = 0; i < n; i++) x[i] = 12 * number(100 + i, seed) - 6;
    if (seed % 3 == 0)
        for (int i = 0; i < n; i++) x[i] = round(x[i]); /* equal ones */
    for (int64_t i = 0; i < count; i++) ids[i] = (int64_t)(n * number((int)(200 + i), seed));
    tg_sampling_opts o = *TG_SAMPLING(.temperature = seed % 11 ? 0.1 + 2 * number(4, seed) : 0);
    if (seed % 2) o.top_k = (int64_t)(1.2 * n * number(5, seed));
    if (seed / 2 % 2) o.top_p = 0.01 + 0.99 * number(6, seed);
    if (seed / 4 % 2) o.min_p = number(7, seed) * number(8, seed);
    if (seed / 8 % 2) o.repetition_penalty = 0.5 + number(9, seed);
    if (seed / 16 % 2) o.presence_penalty = 2 * number(10, seed) - 1, o.frequency_penalty = number(11, seed) - 0.3;
    reference(x, n, ids, count, prompt, &o, want);
    ck_assert_int_eq(tg_sampling_probabilities(ctx, x, n, ids, count, prompt, &o, got), TG_OK);
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs(got[i] - want[i]) < 1e-12, "case %d: p[%d] is %.17g, expected %.17g", (int)seed, i, got[i],
                      want[i]);
    ck_assert_int_eq(tg_sampling_probabilities(ctx, x, n, ids, count, prompt, &o, x), TG_OK); /* in place */
    ck_assert_int_eq(memcmp(x, got, (size_t)n * sizeof *x), 0);
}

START_TEST(probabilities_are_the_references) {
    begin();
    for (uint64_t seed = 0; seed < 4000; seed++) one_case(seed);
    end();
}
END_TEST

/* A penalty may be so large that a logit overflows. Its token is then the only one, or has the probability 0. */
START_TEST(penalties_that_overflow_leave_probabilities) {
    const int64_t ids[] = {1, 1};
    const tg_sampling_opts *o[] = {TG_SAMPLING(.repetition_penalty = 1e-308),
                                   TG_SAMPLING(.frequency_penalty = -1.5e308),
                                   TG_SAMPLING(.frequency_penalty = 1.5e308)};
    begin();
    for (int i = 0; i < 3; i++) {
        double p[] = {3, 1e10, 3};
        ck_assert_int_eq(tg_sampling_probabilities(ctx, p, 3, ids, 2, 0, o[i], p), TG_OK);
        ck_assert_double_eq(p[1], i < 2 ? 1 : 0);
        ck_assert_double_eq(p[0], i < 2 ? 0 : 0.5);
        ck_assert_double_eq(p[2], p[0]);
    }
    end();
}
END_TEST

START_TEST(draws_follow_probabilities) {
    enum { DRAWS = 100000 };
    const double p[] = {0, 0.5, 0, 0.125, 0.25, 0.125, 0};
    int count[7] = {0};
    ck_assert_int_eq(tg_sampling_pick(p, 7, 0), 1);
    ck_assert_int_eq(tg_sampling_pick(p, 7, 0.5), 3);
    ck_assert_int_eq(tg_sampling_pick(p, 7, nextafter(0.5, 0)), 1);
    ck_assert_int_eq(tg_sampling_pick(p, 7, nextafter(1, 0)), 5);
    ck_assert_int_eq(tg_sampling_pick(p, 1, 0.5), -1);
    for (int i = 0; i < DRAWS; i++)
        count[tg_sampling_pick(p, 7, tg_sampling_uniform(1, i % 10, i / 10 % 10, i / 100))]++;
    for (int i = 0; i < 7; i++) ck_assert_double_lt(fabs(count[i] / (double)DRAWS - p[i]), 0.006);
}
END_TEST

START_TEST(uniform_numbers_depend_on_all_arguments) {
    double seen[16];
    for (int i = 0; i < 16; i++) {
        seen[i] = tg_sampling_uniform(i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3);
        ck_assert(seen[i] >= 0 && seen[i] < 1);
        for (int k = 0; k < i; k++) ck_assert(seen[k] != seen[i]);
    }
    ck_assert_double_eq(tg_sampling_uniform(7, 3, 2, 1), tg_sampling_uniform(7, 3, 2, 1));
}
END_TEST

int main(void) {
    const TTest *tests[] = {probabilities_are_the_references, penalties_that_overflow_leave_probabilities,
                            draws_follow_probabilities, uniform_numbers_depend_on_all_arguments};
    return tg_check_main("sampling", tests, sizeof tests / sizeof *tests);
}
