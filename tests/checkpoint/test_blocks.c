/* Blocks of global tensors: their text, what two have in common, and holes, against a brute-force count of elements. */
#include "base/memory/host_memory.h"
#include "checkpoint/block.h"
#include "check_main.h"
#include "core/context.h"

static tg_ctx *ctx;

static tg_block parsed(const char *text, tg_shape whole) {
    tg_block b;
    ck_assert_msg(tg_block_parse(ctx, text, &whole, &b), "'%s'", text);
    return b;
}

START_TEST(texts_are_read_back) {
    static const struct {
        const char *text;
        int64_t count;
    } rows[] = {{"0:4+8:12,0:3", 24}, {"1:2,2:3", 1}, {"0:12,0:3", 36}, {"0:12,0:3;5:6", 1}, {"3:12,1:3;4:18", 14}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        tg_block b = parsed(rows[i].text, TG_SHAPE(12, 3));
        ck_assert_uint_eq(tg_block_text(&b, text, sizeof text), strlen(rows[i].text));
        ck_assert_str_eq(text, rows[i].text);
        ck_assert_int_eq(tg_block_count(&b), rows[i].count);
        tg_block_free(ctx, &b);
    }
    tg_block scalar = parsed("", TG_SHAPE()), none = parsed(",0:3", TG_SHAPE(0, 3));
    ck_assert(tg_block_count(&scalar) == 1 && tg_block_count(&none) == 0);
    tg_block_free(ctx, &scalar);
    tg_block_free(ctx, &none);
}
END_TEST

START_TEST(malformed_texts_are_refused) {
    static const char *const texts[] = {"",
                                        "0:4",
                                        "0:4,",
                                        "0:4,0:4",
                                        "0:13,0:3",
                                        "4:4,0:3",
                                        "5:4,0:3",
                                        "0:4+4:8,0:3",
                                        "4:8+0:2,0:3",
                                        "0:4,0:3,0:1",
                                        "0:4,0:3;",
                                        "0:4,0:3;3",
                                        "0:4,0:3;0:13",
                                        "0:4,0:3;4:4",
                                        "0:4,0:3x",
                                        "-1:4,0:3",
                                        "0:4 ,0:3",
                                        "0:99999999999999999999,0:3",
                                        "0:4,0:3;1:2;3:4"};
    tg_shape whole = TG_SHAPE(12, 3);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tg_block b;
        ck_assert_msg(!tg_block_parse(ctx, texts[i], &whole, &b), "'%s'", texts[i]);
    }
    ck_assert(tg_ctx_status(ctx) == TG_OK);
}
END_TEST

/* ---- By elements ---- */

enum { MOST = 96 };

/* Sets number[i] to the place of global element i in the block; -1: it is not there. */
static void numbers(const tg_block *b, const tg_shape *whole, int64_t *number) {
    int64_t all = 1, next = 0;
    for (int d = 0; d < whole->ndim; d++) all *= whole->dim[d];
    for (int64_t i = 0; i < all; i++) {
        bool in = true;
        int64_t left = i;
        for (int d = (int)whole->ndim - 1; d >= 0; left /= whole->dim[d--]) {
            bool found = false;
            for (int k = 0; k < b->n[d]; k++) {
                int64_t off = left % whole->dim[d] - b->span[d][k].first;
                found |= off >= 0 && off < b->span[d][k].n;
            }
            in &= found;
        }
        int64_t at = in ? next++ : -1;
        number[i] = at >= b->begin && at < b->end ? at - b->begin : -1;
    }
}

typedef struct pairing {
    const int64_t *a, *b;
    int64_t all, at, seen; /* at: the global element behind the last one */
} pairing;

/* Checks that the runs are the common elements, in order. */
static tg_status pair(void *user, int64_t a, int64_t b, int64_t n) {
    pairing *p = user;
    for (int64_t i = 0; i < n; i++, p->at++, p->seen++) {
        while (p->at < p->all && (p->a[p->at] < 0 || p->b[p->at] < 0)) p->at++;
        ck_assert(p->at < p->all && p->a[p->at] == a + i && p->b[p->at] == b + i);
    }
    return TG_OK;
}

static const char *const blocks[] = {
    "0:12,0:8",       "0:4+8:12,0:8",       "0:12,0:2+4:6",     "3:5,0:8",        "0:12,7:8",
    "0:12,0:8;10:50", "0:4+8:12,0:8;3:61",  "2:12,1:8;0:1",     "2:12,1:8;69:70", "0:1+2:3+5:6+11:12,0:8;7:20",
    "4:8,0:8",        "0:12,0:2+4:6;11:12", "0:12,0:2+4:6;0:11"};
enum { BLOCKS = sizeof blocks / sizeof *blocks };

START_TEST(common_elements_are_met_in_order) {
    tg_shape whole = TG_SHAPE(12, 8);
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0; k < BLOCKS; k++) {
            int64_t a[MOST], b[MOST], common = 0;
            tg_block x = parsed(blocks[i], whole), y = parsed(blocks[k], whole);
            numbers(&x, &whole, a);
            numbers(&y, &whole, b);
            for (int e = 0; e < MOST; e++) common += a[e] >= 0 && b[e] >= 0;
            pairing p = {a, b, MOST, 0, 0};
            ck_assert(tg_block_meet(&x, &y, pair, &p) == TG_OK);
            ck_assert_msg(p.seen == common, "'%s' and '%s': %d of %d", blocks[i], blocks[k], (int)p.seen, (int)common);
            ck_assert_int_eq(tg_block_common(&x, &y), common);
            tg_block_free(ctx, &x);
            tg_block_free(ctx, &y);
        }
}
END_TEST

START_TEST(the_first_hole_is_found) {
    tg_shape whole = TG_SHAPE(12, 8);
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0; k < BLOCKS; k++) {
            int64_t a[MOST], b[MOST], first = 0, after, stop = -1;
            tg_block x = parsed(blocks[i], whole), y = parsed(blocks[k], whole);
            numbers(&x, &whole, a);
            numbers(&y, &whole, b);
            while (first < MOST && (a[first] >= 0 || b[first] >= 0)) first++;
            for (after = first; after < MOST && a[after] < 0 && b[after] < 0;) after++;
            int64_t got = tg_block_hole((const tg_block *[]){&x, &y}, 2, &whole, &stop);
            ck_assert_msg(got == (first < MOST ? first : -1), "'%s' and '%s': %d, not %d", blocks[i], blocks[k],
                          (int)got, (int)first);
            ck_assert_int_eq(stop, after);
            tg_block_free(ctx, &x);
            tg_block_free(ctx, &y);
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {texts_are_read_back, malformed_texts_are_refused, common_elements_are_met_in_order,
                                  the_first_hole_is_found};
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    int result = tg_check_main("blocks", tests, sizeof tests / sizeof *tests);
    tg_ctx_free(ctx);
    return result;
}
