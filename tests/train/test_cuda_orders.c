/* On the emulator: training gives the same bits in any order of a kernel's threads and blocks, and in any schedule of
 * streams. */
#include "check_main.h"

#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>

#include "cuda_emulator/control.h"
#include "train/small_run.h"
#include "train/turns.h"

enum { ORDERS = 8, SCHEDULES = 16 };

static void schedule_of(int i, char *text, size_t n) {
    if (i < 2)
        snprintf(text, n, "%s", i ? "lazy" : "eager");
    else
        snprintf(text, n, "%d", i - 1);
}

/* Cases for which the tiny model is too small: rows that several blocks reduce, a gradient of columns, an ordered
 * scatter. */
static uint64_t wide_step(tg_ctx *ctx, tg_tape *t) {
    enum { ROWS = 70, COLUMNS = 9000, TAKEN = 50 };
    int64_t ids[TAKEN];
    for (int i = 0; i < TAKEN; i++) ids[i] = i * 7 % 5;
    tg_rng rng = {.seed = 3};
    tg_rng_set(ctx, NULL, &rng);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(COLUMNS), 1),
              *table = tg_param_new(ctx, "table", TG_DTYPE_DEFAULT, TG_SHAPE(5, 33), 1);
    tg_tensor *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(ROWS, COLUMNS), 1),
              *at = tg_from_host(ctx, TG_I64, TG_SHAPE(TAKEN), ids);
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_softmax(t, tg_rms_norm(t, x, w, 1e-5), -1);
    tg_tensor *loss = tg_add(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false),
                             tg_sum(t, tg_square(t, tg_embedding(t, table, at)), TG_ALL_DIMS, false));
    tg_backward(t, loss);
    double sums[3];
    tg_tensor *of[] = {tg_grad_of(x), tg_grad_of(w), tg_grad_of(table)};
    uint64_t h = tensor_bits(loss, 1);
    for (int i = 0; i < 3; i++) sums[i] = tg_item(tg_sum(t, of[i], TG_ALL_DIMS, false));
    for (size_t i = 0; i < sizeof sums; i++) h = (h ^ ((unsigned char *)sums)[i]) * 1099511628211u;
    tg_tape_reset(t);
    tg_tensor *made[] = {w, table, x, at};
    for (int i = 0; i < 4; i++) tg_drop(made[i]);
    return h;
}

static const options variants[] = {
    {.arch = TG_GPT2, .threads = 1, .device = "cuda"},
    {.arch = TG_LLAMA, .threads = 1, .device = "cuda", .dtype = TG_BF16},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

typedef struct results {
    uint64_t parameters[VARIANTS], wide;
} results;

static results train_all(void) {
    results all;
    for (int v = 0; v < VARIANTS; v++) {
        run r;
        run_open(&r, &variants[v]);
        for (int i = 0; i < STEPS; i++) run_step(&r, i);
        all.parameters[v] = parameter_bits(&r);
        if (v == 0) all.wide = wide_step(r.ctx, r.t);
        ck_assert_msg(tg_ctx_status(r.ctx) == TG_OK, "%s", tg_ctx_message(r.ctx));
        run_close(&r);
    }
    ck_assert_str_eq(emulator_message(), "");
    return all;
}

START_TEST(orders_and_schedules_make_no_difference) {
    turns t = turns_of("orders and schedules", 16);
    int done = 0;
    emulator_order(0);
    emulator_schedule("eager");
    results first = train_all();
    for (int i = 0; i < ORDERS * SCHEDULES; i++) {
        char schedule[16];
        int order = i / SCHEDULES;
        if (!its_turn(&t, i % SCHEDULES + order)) continue; /* a diagonal: every order with some schedule */
        schedule_of(i % SCHEDULES, schedule, sizeof schedule);
        emulator_order((unsigned)order);
        emulator_schedule(schedule);
        results now = train_all();
        for (int v = 0; v < VARIANTS; v++)
            ck_assert_msg(now.parameters[v] == first.parameters[v], "variant %d: other bits in order %d, schedule %s",
                          v, order, schedule);
        ck_assert_msg(now.wide == first.wide, "wide rows: other bits in order %d, schedule %s", order, schedule);
        done++;
    }
    printf("%d of %d orders and schedules\n", done, ORDERS * SCHEDULES);
    ck_assert_int_ge(done, ORDERS);
}
END_TEST

int main(void) {
    const TTest *tests[] = {orders_and_schedules_make_no_difference};
    return tg_check_main("cuda_orders", tests, sizeof tests / sizeof *tests);
}
