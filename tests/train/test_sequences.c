/* The order of the sequences of a run, and the law by which --time chooses. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include <tapegrad/io.h>

#include "common/text.h"
#include "data/sequences.h"
#include "train/choose.h"

#include "check_main.h" /* last, because Check has a macro `fail` */

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Opens documents of these lengths, which end with 0, as a stream. */
static tg_tokens *open_documents(tg_ctx *ctx, char dir[], const int *lengths) {
    char path[300];
    const int64_t id = 1;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/d", dir);
    tg_token_writer *w = tg_token_writer_open(ctx, path, 2);
    for (; *lengths; lengths++) {
        for (int i = 0; i < *lengths; i++) tg_token_writer_add(w, &id, 1, false);
        tg_token_writer_end_document(w);
    }
    ck_assert_int_eq(tg_token_writer_commit(w), TG_OK);
    tg_tokens *t = tg_tokens_open(ctx, path, TG_TOKENS_MEGATRON, 0);
    snprintf(path, sizeof path, "rm -r %s", dir);
    ck_assert_int_eq(system(path), 0); /* the open files stay */
    return t;
}

static void check_starts(sequence_pool *p, const int64_t *starts, int n) {
    ck_assert_int_eq(p->windows, n);
    for (int i = 0; i < n; i++) ck_assert_int_eq(pool_at(p, i), starts[i]);
    pool_close(p);
}

START_TEST(windows_of_documents_do_not_overlap) {
    char dir[] = "/tmp/tapegrad-sequences-XXXXXX";
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_tokens *t = open_documents(ctx, dir, (const int[]){3, 1, 9, 5, 0});
    sequence_pool p;
    ck_assert(pool_open(&p, t, 0, 18, 4, TG_WINDOWS_ACROSS));
    check_starts(&p, (const int64_t[]){0, 4, 8, 12}, 4);
    ck_assert(pool_open(&p, t, 0, 18, 4, TG_WINDOWS_PACKED)); /* the same, as documents follow each other */
    check_starts(&p, (const int64_t[]){0, 4, 8, 12}, 4);
    /* A document of one token has no window, nor has a last token. */
    ck_assert(pool_open(&p, t, 0, 18, 4, TG_WINDOWS_PADDED));
    ck_assert_int_eq(p.read, 3 + 4 + 4 + 4);
    check_starts(&p, (const int64_t[]){0, 4, 8, 13}, 4);
    ck_assert(pool_open(&p, t, 0, 5, 4, TG_WINDOWS_PADDED)); /* the whole third document, which begins in it */
    check_starts(&p, (const int64_t[]){0, 4, 8}, 3);
    ck_assert(pool_open(&p, t, 5, 13, 4, TG_WINDOWS_PADDED));
    check_starts(&p, (const int64_t[]){13}, 1);
    ck_assert(pool_open(&p, t, 14, 4, 4, TG_WINDOWS_PADDED));
    check_starts(&p, NULL, 0);
    tg_tokens_close(t);
    tg_ctx_free(ctx);
}
END_TEST

/* Opens pools of 7, 5 and 2 windows with weights 0.5, 0.3 and 0.2. */
static void open_blend(sequence_pool p[3]) {
    static const int64_t first[] = {0, 100, 200}, windows[] = {7, 5, 2};
    static const double weights[] = {0.5, 0.3, 0.2};
    for (int i = 0; i < 3; i++) {
        ck_assert(pool_open(&p[i], NULL, first[i], 4 * windows[i] + 1, 4, TG_WINDOWS_ACROSS));
        ck_assert(pool_shuffle(&p[i], (uint64_t)i));
        p[i].weight = weights[i];
    }
}

START_TEST(blends_keep_their_shares_from_any_place) {
    enum { N = 200 };
    int64_t order[N], at = 0;
    sequence_pool p[3];
    open_blend(p);
    for (int i = 0; i < N; i++) {
        order[i] = pools_next(p, 3, &at);
        for (int k = 0; k < 3; k++)
            ck_assert_double_le(fabs((double)p[k].taken - p[k].weight * (i + 1)), 1); /* never a sequence off */
    }
    for (int i = 0; i < N; i = 2 * i + 1)
        for (int back = N; back >= 0; back -= N) {
            pools_seek(p, 3, &at, back);
            pools_seek(p, 3, &at, i);
            ck_assert_int_eq(pools_next(p, 3, &at), order[i]);
        }
    for (int k = 0; k < 3; k++) pool_close(&p[k]);
}
END_TEST

START_TEST(an_epoch_has_every_window_once) {
    sequence_pool p[3];
    open_blend(p);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t sum = 0, squares = 0;
        for (int64_t i = 0; i < 7; i++) {
            int64_t w = pool_shuffled(&p[0], 7 * epoch + i) / 4;
            sum += w, squares += w * w;
        }
        ck_assert_int_eq(sum, 21);
        ck_assert_int_eq(squares, 91);
    }
    for (int k = 0; k < 3; k++) pool_close(&p[k]);
}
END_TEST

/* Returns the tokens for each parameter that are best for a number of multiplications. */
static double best_ratio(double product, double unique) {
    double best = INFINITY, ratio = 0;
    for (double r = 0.1; r < 1e4; r *= 1.01) {
        double parameters = sqrt(product / r), loss = predict_loss(parameters, parameters * r, unique);
        if (loss < best) best = loss, ratio = r;
    }
    return ratio;
}

START_TEST(the_law_is_that_of_the_paper) {
    for (double product = 1e14; product < 1e22; product *= 100) {
        double ratio = best_ratio(product, INFINITY);
        ck_assert_double_ge(ratio, 19);
        ck_assert_double_le(ratio, 20.5);
    }
    /* Four epochs are nearly as good as new data, and forty are not (section 5 there). */
    double fresh = predict_loss(5e7, 4e9, 4e9), four = predict_loss(5e7, 4e9, 1e9);
    ck_assert_double_ge(four, fresh);
    ck_assert_double_le(four, fresh + 0.02);
    ck_assert_double_ge(predict_loss(5e7, 4e10, 1e9), predict_loss(5e7, 4e10, 4e10) + 0.08);
    /* With repeated data smaller models, read more often, are best. */
    ck_assert_double_ge(best_ratio(1e20, 1e8), best_ratio(1e20, INFINITY));
}
END_TEST

START_TEST(times_are_read) {
    static const struct {
        const char *text;
        double seconds;
    } times[] = {{"90s", 90}, {"30m", 1800}, {"1.5h", 5400}, {"2d", 172800}, {"5", 300},  {"", 0},
                 {"m", 0},    {"-3m", 0},    {"3x", 0},      {"3mm", 0},     {"inf", 0}, {"nan", 0}};
    for (size_t i = 0; i < COUNT(times); i++)
        ck_assert_msg(choose_seconds(times[i].text) == times[i].seconds, "'%s' is %g", times[i].text,
                      choose_seconds(times[i].text));
}
END_TEST

START_TEST(sizes_are_read) {
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"4096", 4096},   {"100K", 102400}, {"900M", 900 << 20}, {"1.5G", 3LL << 29}, {"2T", 2LL << 40},
                 {"0", 0},         {"", -1},         {"M", -1},           {"3X", -1},          {"3MB", -1},
                 {"-1", -1},       {"nan", -1},      {"1e30", -1},        {"8388608T", -1},    {"inf", -1}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        ck_assert_msg(text_read_bytes(sizes[i].text) == sizes[i].bytes, "'%s' is %lld", sizes[i].text,
                      (long long)text_read_bytes(sizes[i].text));
}
END_TEST

int main(void) {
    const TTest *tests[] = {windows_of_documents_do_not_overlap, blends_keep_their_shares_from_any_place,
                            an_epoch_has_every_window_once, the_law_is_that_of_the_paper, times_are_read,
                            sizes_are_read};
    return tg_check_main("sequences", tests, COUNT(tests));
}
