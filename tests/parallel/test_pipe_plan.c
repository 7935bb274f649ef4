/* Pipeline plans: the built-in schedules against published figures and formulas, lists of the caller against a second
 * implementation of the rules, the texts of refusals, and the diagrams. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "parallel/pp/plan.h"
#include "pipe_lists.h"
#include "train/small_run.h"

#include "check_main.h"

static tg_ctx *ctx_new(void) { return tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1)); }

static tg_pipe_report report(const tg_pipe_plan *p, int stage) {
    tg_pipe_report r = TG_PIPE_REPORT();
    ck_assert_int_eq(tg_pipe_plan_query(p, stage, &r), TG_OK);
    return r;
}

#define ck_near(a, b) ck_assert_msg(fabs((a) - (b)) < 1e-9, "%s is %.12g, expected %.12g", #a, (double)(a), (double)(b))

/* A plan with times f, b and w of a stage for a micro-batch. */
static tg_pipe_plan *plan_with(tg_ctx *ctx, tg_pipe_kind kind, int p, int v, int m, double f, double b, double w) {
    double time[3][64];
    for (int k = 0; k < p * v; k++) time[0][k] = f / v, time[1][k] = b / v, time[2][k] = w / v;
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = kind, .stages = p, .chunks = v, .micros = m,
                                                            .f = time[0], .b = time[1], .w = time[2]));
    ck_assert_msg(plan, "%s", tg_ctx_message(ctx));
    return plan;
}

/* ---- Built-in schedules ---- */

/* Figures of the papers that pipe.h names; all times are 1. */
START_TEST(schedules_cost_what_is_published) {
    static const struct {
        tg_pipe_kind kind;
        int p, v, m;
        double makespan, idle, bubble;
        int peak[8];
    } rows[] = {
        {TG_PIPE_GPIPE, 4, 1, 8, 33, 9, .2727, {8, 8, 8, 8}},
        {TG_PIPE_1F1B, 4, 1, 8, 33, 9, .2727, {4, 3, 2, 1}},
        {TG_PIPE_ZB_H1, 4, 1, 8, 27, 3, .1111, {4, 4, 4, 4}},
        {TG_PIPE_1F1B, 8, 1, 16, 69, 21, .3043, {8, 7, 6, 5, 4, 3, 2, 1}},
        {TG_PIPE_ZB_H1, 8, 1, 16, 55, 7, .1273, {8, 8, 8, 8, 8, 8, 8, 8}},
        {TG_PIPE_INTERLEAVED, 8, 2, 16, 58.5, 10.5, .1795, {23, 21, 19, 17, 15, 13, 11, 9}},
    };
    tg_ctx *ctx = ctx_new();
    for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++) {
        tg_pipe_plan *plan = plan_with(ctx, rows[i].kind, rows[i].p, rows[i].v, rows[i].m, 1, 1, 1);
        for (int s = 0; s < rows[i].p; s++) {
            tg_pipe_report r = report(plan, s);
            ck_near(r.makespan, rows[i].makespan);
            ck_near(r.makespan - r.ideal, rows[i].idle);
            ck_assert_msg(fabs(r.bubble - rows[i].bubble) < 5e-5, "row %d: bubble %g", i, r.bubble);
            ck_assert_msg(r.peak == rows[i].peak[s], "row %d: the peak of stage %d is %d", i, s, r.peak);
        }
        tg_pipe_plan_free(plan);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* Idle times of the papers: (p - 1)(F + B + W), divided by v when interleaved, and (p - 1)(F + B - W) of ZB-H1, where W
 * takes no longer than F and B. */
START_TEST(idle_times_follow_the_formulas) {
    static const double times[][3] = {{1, 1, 1}, {1, 1.2, .9}, {.7, 1.4, .7}};
    tg_ctx *ctx = ctx_new();
    for (int p = 2; p <= 8; p++)
        for (int m = p; m <= 3 * p; m++)
            for (int k = 0; k < 3; k++) {
                double f = times[k][0], b = times[k][1], w = times[k][2];
                const struct {
                    tg_pipe_kind kind;
                    int v;
                    double idle;
                } rows[] = {
                    {TG_PIPE_GPIPE, 1, (p - 1) * (f + b + w)},
                    {TG_PIPE_1F1B, 1, (p - 1) * (f + b + w)},
                    {TG_PIPE_ZB_H1, 1, (p - 1) * (f + b - w)},
                    {TG_PIPE_FORWARD, 1, (p - 1) * f},
                    {TG_PIPE_INTERLEAVED, 2, (p - 1) * (f + b + w) / 2},
                    {TG_PIPE_INTERLEAVED, 3, (p - 1) * (f + b + w) / 3},
                    {TG_PIPE_GPIPE, 2, (p - 1) * (f + b + w) / 2},
                    {TG_PIPE_FORWARD, 4, (p - 1) * f / 4},
                };
                for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++) {
                    tg_pipe_plan *plan = plan_with(ctx, rows[i].kind, p, rows[i].v, m, f, b, w);
                    tg_pipe_report r = report(plan, 0);
                    ck_assert_msg(fabs(r.makespan - r.ideal - rows[i].idle) < 1e-9,
                                  "p %d, m %d, times %d, row %d: idle %g, expected %g", p, m, k, i,
                                  r.makespan - r.ideal, rows[i].idle);
                    tg_pipe_plan_free(plan);
                }
            }
    tg_ctx_free(ctx);
}
END_TEST

/* A stage sends the result of each forward of all parts but the last, and of each backward of all parts but part 0. */
START_TEST(messages_are_counted) {
    tg_ctx *ctx = ctx_new();
    for (int p = 1; p <= 4; p++)
        for (int m = 1; m <= 9; m++)
            for (tg_pipe_kind kind = TG_PIPE_GPIPE; kind < TG_PIPE_CUSTOM; kind++)
                for (int v = 1; v <= (kind == TG_PIPE_1F1B || kind == TG_PIPE_ZB_H1 ? 1 : 3); v++) {
                    tg_pipe_plan *plan = plan_with(ctx, kind, p, v, m, 1, 1, 1);
                    int64_t sum = 0, backward = kind != TG_PIPE_FORWARD;
                    for (int s = 0; s < p; s++) {
                        tg_pipe_report r = report(plan, s);
                        int64_t down = p == 1 ? 0 : m * (v - (s == p - 1)), up = p == 1 ? 0 : m * (v - (s == 0));
                        ck_assert_int_eq(r.sends, down + backward * up);
                        ck_assert_int_eq(r.receives, up + backward * down);
                        sum += r.sends;
                    }
                    ck_assert_int_eq(report(plan, TG_NONE).sends, sum);
                    ck_assert_int_eq(report(plan, TG_NONE).receives, sum);
                    tg_pipe_plan_free(plan);
                }
    tg_ctx_free(ctx);
}
END_TEST

/* The order of Megatron-Core's get_schedule_table, and the list of a stage that its interleaved schedule runs. Returns
 * the number of items. */
static int megatron_list(int p, int v, int m, int group, int rank, tg_pipe_item *out) {
    int *micro = malloc((size_t)m * v * sizeof *micro), *chunk = malloc((size_t)m * v * sizeof *chunk), n = 0, k = 0;
    for (int first = 0; first < m; first += group)
        for (int c = 0; c < v; c++)
            for (int j = first; j < (first + group >= m ? m : first + group); j++) micro[n] = j, chunk[n++] = c;
    int before = 2 * (p - rank - 1) + (v - 1) * group;
    if (before > n) before = n;
    for (int i = 0; i < n + before; i++) {
        if (i < n) out[k++] = (tg_pipe_item){TG_PIPE_F, (uint8_t)chunk[i], micro[i]};
        if (i >= before) out[k++] = (tg_pipe_item){TG_PIPE_B, (uint8_t)(v - 1 - chunk[i - before]), micro[i - before]};
    }
    free(micro);
    free(chunk);
    return k;
}

START_TEST(interleaved_lists_are_those_of_megatron_core) {
    tg_pipe_item expected[2 * 3 * 16];
    tg_ctx *ctx = ctx_new();
    int compared = 0;
    for (int p = 2; p <= 4; p++)
        for (int v = 1; v <= 3; v++)
            for (int m = p; m <= 16; m++)
                for (int group = p; group <= m; group++) {
                    if (m % group && m % group < p) continue; /* which Megatron-Core refuses */
                    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_INTERLEAVED, .stages = p,
                                                                            .chunks = v, .micros = m, .group = group));
                    for (int s = 0; s < p; s++) {
                        int n = megatron_list(p, v, m, group, s, expected);
                        ck_assert_int_eq(tg_pipe_item_count(plan, s), n);
                        for (int i = 0; i < n; i++) ck_assert(same_item(tg_pipe_items(plan, s)[i], expected[i]));
                        compared += n;
                    }
                    tg_pipe_plan_free(plan);
                }
    ck_assert_int_gt(compared, 10000);
    tg_ctx_free(ctx);
}
END_TEST

/* Where Megatron-Core refuses a number of micro-batches, the rest is spread over the turns: no stage waits longer. */
START_TEST(any_number_of_micro_batches_is_interleaved) {
    tg_ctx *ctx = ctx_new();
    for (int p = 1; p <= 6; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = 1; m <= 3 * p; m++)
                for (int group = p; group <= m + 1; group++) {
                    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_INTERLEAVED, .stages = p,
                                                                            .chunks = v, .micros = m, .group = group));
                    ck_assert_msg(plan, "p %d, v %d, m %d, group %d: %s", p, v, m, group, tg_ctx_message(ctx));
                    if (m >= p) ck_near(report(plan, p - 1).makespan, 3 * m + 3.0 * (p - 1) / v);
                    tg_pipe_plan_free(plan);
                }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_report_of_the_plan_covers_all_stages) {
    const double f[] = {1, 2, 1}, b[] = {2, 1, 1}, w[] = {1, 1, 1};
    tg_ctx *ctx = ctx_new();
    tg_pipe_plan *plan = tg_pipe_plan_new(
        ctx, TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 3, .micros = 6, .f = f, .b = b, .w = w, .hop = .5));
    tg_pipe_report all = report(plan, TG_NONE);
    double busy = 0;
    for (int s = 0; s < 3; s++) {
        tg_pipe_report r = report(plan, s);
        ck_near(r.ideal, 6 * (f[s] + b[s] + w[s]));
        ck_near(r.bubble, 1 - r.ideal / r.makespan);
        ck_assert_int_eq(r.peak, 3);
        ck_assert_int_eq(r.waiting, s + 1); /* W of a micro-batch follows the B of s later ones */
        ck_assert_int_eq(tg_pipe_tapes(plan, s), 3 - s);
        busy += r.ideal;
    }
    ck_near(all.ideal, 24);
    ck_near(all.bubble, 1 - busy / (3 * all.makespan));
    ck_assert_int_eq(all.peak, 3);
    ck_assert_int_eq(all.waiting, 3);
    tg_pipe_plan_free(plan);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_stage_without_backward_keeps_one_micro_batch) {
    tg_ctx *ctx = ctx_new();
    for (int v = 1; v <= 2; v++) {
        tg_pipe_plan *plan = plan_with(ctx, TG_PIPE_FORWARD, 2, v, 5, 1, 1, 1);
        for (int s = 0; s < 2; s++) {
            ck_assert_int_eq(report(plan, s).peak, 1);
            ck_assert_int_eq(tg_pipe_tapes(plan, s), 1);
        }
        ck_assert_int_eq(report(plan, TG_NONE).peak, 1);
        tg_pipe_plan_free(plan);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_plan_of_thousand_micro_batches_is_made) {
    tg_ctx *ctx = ctx_new();
    tg_pipe_plan *plan = plan_with(ctx, TG_PIPE_ZB_H1, 64, 1, 1000, 1, 1, 1);
    ck_near(report(plan, TG_NONE).makespan, 3000 + 63);
    tg_pipe_plan_free(plan);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Lists of the caller ---- */

enum { RANDOM_LISTS = 300, MUTATIONS = 8, PARTS = MOST_STAGES * MOST_CHUNKS };

START_TEST(random_lists_that_follow_the_rules_are_planned) {
    uint64_t state = 5;
    tg_ctx *ctx = ctx_new();
    for (int i = 0; i < RANDOM_LISTS; i++) {
        lists l;
        double f[PARTS], b[PARTS], w[PARTS], hop = draw(&state, 5) / 4.0;
        random_lists(&l, &state);
        for (int k = 0; k < PARTS; k++) {
            f[k] = (1 + draw(&state, 9)) / 4.0;
            b[k] = (1 + draw(&state, 9)) / 4.0;
            w[k] = (1 + draw(&state, 9)) / 4.0;
        }
        tg_pipe_plan *plan = plan_of(ctx, &l, f, b, w, hop);
        ck_assert_msg(plan, "lists %d: %s", i, tg_ctx_message(ctx));
        ck_near(report(plan, TG_NONE).makespan, makespan_of(&l, f, b, w, hop));
        tg_pipe_plan_free(plan);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* Changes one thing in the lists of a stage, at random. */
static void mutate(lists *l, uint64_t *state) {
    int s = draw(state, l->p), n = l->n[s], i = draw(state, n), k = draw(state, n);
    tg_pipe_item *item = l->item[s], old = item[i];
    switch (draw(state, 6)) {
    case 0:
    case 1:
        item[i] = item[k], item[k] = old;
        break;
    case 2: /* moves an item */
        memmove(item + i, item + i + 1, (size_t)(n - i - 1) * sizeof *item);
        memmove(item + k + 1, item + k, (size_t)(n - k - 1) * sizeof *item);
        item[k] = old;
        break;
    case 3:
        memmove(item + i, item + i + 1, (size_t)(n - i - 1) * sizeof *item);
        l->n[s]--;
        break;
    case 4:
        item[l->n[s]++] = item[i];
        break;
    default:
        item[i] = (tg_pipe_item){(uint8_t)draw(state, 4), (uint8_t)draw(state, l->v + 1), draw(state, l->m + 2) - 1};
    }
}

/* Reads "B3" or "B3.1". */
static bool read_name(const lists *l, const char *name, tg_pipe_item *out) {
    char act;
    int micro, chunk = 0, end = 0;
    if (l->v > 1 ? sscanf(name, "%c%d.%d%n", &act, &micro, &chunk, &end) != 3
                 : sscanf(name, "%c%d%n", &act, &micro, &end) != 2)
        return false;
    *out = (tg_pipe_item){(uint8_t)(act == 'F'   ? TG_PIPE_F
                                    : act == 'B' ? TG_PIPE_B
                                                 : TG_PIPE_W),
                          (uint8_t)chunk, micro};
    return !name[end];
}

/* Whether the item of that name is item i of a stage. */
static bool is_at(const lists *l, int stage, int i, const char *name, tg_pipe_item *out) {
    return read_name(l, name, out) && i >= 0 && i < l->n[stage] && same_item(l->item[stage][i], *out);
}

/* Whether each item of a circle waits for one that its stage, the next of the circle, cannot reach before its own. */
static bool is_circle(const lists *l, const char *text) {
    char a[16], b[16];
    int i, s, k, t, first_i = -1, first_s = -1, last_k = -1, last_t = -1, end;
    while (sscanf(text, "%15s (item %d of stage %d) waits for %15s (item %d of stage %d)%n", a, &i, &s, b, &k, &t,
                  &end) == 6) {
        tg_pipe_item x, y, need;
        int from;
        if (!is_at(l, s, i, a, &x) || !is_at(l, t, k, b, &y)) return false;
        if (!comes_from(l, s, x, &from, &need) || from != t || !same_item(need, y)) return false;
        if (first_s < 0)
            first_i = i, first_s = s;
        else if (s != last_t || i > last_k)
            return false;
        last_k = k, last_t = t;
        text += end;
        text += strspn(text, ", ");
    }
    return !*text && first_s == last_t && first_i <= last_k;
}

/* Whether what a refusal says of the lists is so. */
static bool is_true(const lists *l, const char *message) {
    char a[16], b[16], field[8];
    int s, i, t, k, value, most;
    tg_pipe_item x, y;
    static const char who[] = "tg_pipe_plan_new: ", waits[] = "items wait for each other: ";
    if (strncmp(message, who, sizeof who - 1)) return false;
    message += sizeof who - 1;
    if (!strncmp(message, waits, sizeof waits - 1)) return is_circle(l, message + sizeof waits - 1);
    if (sscanf(message, "items[%d][%d] has %7s %d, expected 0 to %d", &s, &i, field, &value, &most) == 5) {
        x = l->item[s][i];
        return value == (*field == 'a' ? x.act : *field == 'c' ? x.chunk : x.micro) && (value < 0 || value > most);
    }
    if (sscanf(message, "the list of stage %d has %15s twice, as items %d and %d", &s, a, &i, &k) == 4)
        return i < k && is_at(l, s, i, a, &x) && is_at(l, s, k, a, &x);
    if (sscanf(message, "the list of stage %d has no %15[^;];", &s, a) == 2)
        return read_name(l, a, &x) && position(l, s, x) < 0;
    if (sscanf(message, "the list of stage %d has %15s (item %d) before %15s (item %d)", &s, a, &i, b, &k) == 5) {
        if (i >= k || !is_at(l, s, i, a, &x) || !is_at(l, s, k, b, &y)) return false;
        if (x.act != y.act) return x.act > y.act && x.chunk == y.chunk && x.micro == y.micro;
        x.act--, y.act--;
        return x.act == TG_PIPE_B && position(l, s, y) < position(l, s, x);
    }
    if (sscanf(message, "%15s (item %d of stage %d) receives before the message of %15s (item %d of stage %d), which",
               a, &i, &s, b, &k, &t) == 6) {
        tg_pipe_item need;
        int from;
        return is_at(l, s, i, a, &x) && is_at(l, t, k, b, &y) && x.act == y.act && comes_from(l, s, x, &from, &need) &&
               from == t && position(l, t, need) > k;
    }
    return false;
}

START_TEST(changed_lists_are_refused_with_the_items_that_are_wrong) {
    uint64_t state = 7;
    int refused = 0, accepted = 0;
    tg_ctx *ctx = ctx_new();
    for (int i = 0; i < RANDOM_LISTS * MUTATIONS; i++) {
        static lists whole;
        lists l;
        if (i % MUTATIONS == 0) random_lists(&whole, &state);
        l = whole;
        mutate(&l, &state);
        tg_pipe_plan *plan = plan_of(ctx, &l, NULL, NULL, NULL, 0);
        const char *message = tg_ctx_message(ctx);
        l.split = true; /* the times do not matter */
        ck_assert_msg(!!plan == follows_rules(&l), "lists %d: %s", i, plan ? "accepted" : message);
        ck_assert_msg(plan || (tg_ctx_status(ctx) == TG_ERR_ARGUMENT && is_true(&l, message)), "lists %d: %s", i,
                      message);
        *(plan ? &accepted : &refused) += 1;
        tg_pipe_plan_free(plan);
        tg_ctx_clear(ctx);
    }
    ck_assert_int_gt(refused, RANDOM_LISTS * MUTATIONS / 2);
    ck_assert_int_gt(accepted, RANDOM_LISTS * MUTATIONS / 50);
    tg_ctx_free(ctx);
}
END_TEST

/* Reads lists such as "F0 F1 B0 | F0 B0", a stage after the other. */
static lists lists_of(const char *text, int v, int m) {
    lists l = {.p = 1, .v = v, .m = m};
    for (; *text; text += strspn(text, " ")) {
        char word[16];
        sscanf(text, "%15s", word);
        text += strlen(word);
        if (*word == '|')
            l.p++;
        else
            ck_assert(read_name(&l, word, &l.item[l.p - 1][l.n[l.p - 1]++]));
    }
    return l;
}

START_TEST(refusals_say_what_is_wrong) {
    static const struct {
        const char *text;
        int v, m;
        const char *says;
    } rows[] = {
        {"F0 W0 B0", 1, 1, "the list of stage 0 has W0 (item 1) before B0 (item 2)"},
        {"B0 F0", 1, 1, "the list of stage 0 has B0 (item 0) before F0 (item 1)"},
        {"F0 F1 B0 F1 B1", 1, 2, "the list of stage 0 has F1 twice, as items 1 and 3"},
        {"F0 B0", 1, 2, "the list of stage 0 has no F1; every part needs one F for each micro-batch"},
        {"F0 F1 B0", 1, 2,
         "the list of stage 0 has no B1; since lists have B or W, every part needs one B for each micro-batch"},
        {"F0 F1 B0 B1 W1 W0", 1, 2,
         "the list of stage 0 has W1 (item 4) before W0 (item 5); W must be in the order of B"},
        {"F0 F1 B0 B1 | F0 B0 W0 F1 B1 W1", 1, 2,
         "the list of stage 0 has no W0; since lists have W, every part needs one W for each micro-batch"},
        {"F0 F1 B0 B1 | F1 F0 B0 B1", 1, 2,
         "F1 (item 0 of stage 1) receives before the message of F0 (item 0 of stage 0), which is sent first; a stage "
         "must receive messages in the order in which they are sent"},
        {"F0 F1 B0 B1 | F0 F1 B1 B0", 1, 2,
         "B0 (item 2 of stage 0) receives before the message of B1 (item 2 of stage 1), which is sent first; a stage "
         "must receive messages in the order in which they are sent"},
        {"F0.1 F0.0 B0.1 B0.0", 2, 1,
         "items wait for each other: F0.1 (item 0 of stage 0) waits for F0.0 (item 1 of stage 0)"},
        {"F0 B0 F1 B1 | F0 F1 B0 B1", 1, 2,
         "items wait for each other: B0 (item 1 of stage 0) waits for B0 (item 2 of stage 1), F1 (item 1 of stage 1) "
         "waits for F1 (item 2 of stage 0)"},
        {"F0 F3 B0", 1, 1, "items[0][1] has micro 3, expected 0 to 0"},
    };
    tg_ctx *ctx = ctx_new();
    for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++) {
        lists l = lists_of(rows[i].text, rows[i].v, rows[i].m);
        ck_assert_ptr_null(plan_of(ctx, &l, NULL, NULL, NULL, 0));
        ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_ARGUMENT);
        ck_assert_str_eq(tg_ctx_message(ctx) + strlen("tg_pipe_plan_new: "), rows[i].says);
        tg_ctx_clear(ctx);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Diagrams ---- */

static void expect_text(tg_ctx *ctx, const tg_pipe_plan_opts *opts, const char *expected) {
    char text[1024], part[20];
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, opts);
    ck_assert_int_eq(tg_pipe_plan_text(plan, TG_TEXT, text, sizeof text), strlen(expected));
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(tg_pipe_plan_text(plan, TG_TEXT, part, sizeof part), strlen(expected));
    ck_assert(!strncmp(part, expected, sizeof part - 1) && !part[sizeof part - 1]);
    tg_pipe_plan_free(plan);
}

START_TEST(a_diagram_has_a_row_for_each_stage) {
    tg_ctx *ctx = ctx_new();
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = 2, .micros = 2),
                "1f1b: 2 stages, 2 micro-batches, time per column 1\n"
                "stage 0  F0 F1  .  . B0  -  . B1  -\n"
                "stage 1   . F0 B0  - F1 B1  -  .  .\n");
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_INTERLEAVED, .stages = 2, .chunks = 2, .micros = 2),
                "interleaved: 2 stages of 2 chunks, 2 micro-batches, time per column 0.5\n"
                "stage 0  F0.0 F1.0 F0.1 F1.1    .    . B0.1    -    . B1.1    - B0.0    - B1.0    -\n"
                "stage 1     . F0.0 F1.0 F0.1 B0.1    - F1.1 B1.1    - B0.0    - B1.0    -    .    .\n");
    expect_text(ctx, TG_PIPE_PLAN(.stages = 1, .micros = 1),
                "gpipe: 1 stage, 1 micro-batch, time per column 1\n"
                "stage 0  F0 B0  -\n");
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_FORWARD, .stages = 2, .micros = 2, .hop = .5),
                "forward: 2 stages, 2 micro-batches, time per column 0.5\n"
                "stage 0  F0  - F1  -  .  .  .\n"
                "stage 1   .  .  . F0  - F1  -\n");
    tg_ctx_free(ctx);
}
END_TEST

/* Times that are no multiples of one column are rounded to it; what is too short, or takes no time, is not drawn. */
START_TEST(a_diagram_rounds_times_to_columns) {
    const double one[] = {1, 1}, more[] = {1.2, 1.2}, less[] = {.9, .9}, none[] = {0, 0}, little[] = {.01, 0};
    tg_ctx *ctx = ctx_new();
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 2, .micros = 2, .f = one, .b = more, .w = less),
                "zb-h1: 2 stages, 2 micro-batches, time per column 0.45\n"
                "stage 0  F0  - F1  -  .  .  . B0  -  - W0  - B1  -  - W1  -\n"
                "stage 1   .  . F0  - B0  -  - F1  - B1  -  - W0  - W1  -  .\n");
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = 2, .micros = 1, .f = little, .b = one, .w = none),
                "1f1b: 2 stages, 1 micro-batch, time per column 0.1\n"
                "stage 0   .  .  .  .  .  .  .  .  .  . B0  -  -  -  -  -  -  -  -  -\n"
                "stage 1  B0  -  -  -  -  -  -  -  -  -  .  .  .  .  .  .  .  .  .  .\n");
    expect_text(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_FORWARD, .stages = 2, .micros = 1, .f = none),
                "forward: 2 stages, 1 micro-batch, time per column 1\n"
                "stage 0 \n"
                "stage 1 \n");
    tg_ctx_free(ctx);
}
END_TEST

/* Counts the boxes of a picture, and checks that those of a row follow each other. */
static int count_boxes(const char *text) {
    int boxes = 0, y, row = -1;
    double x, width, end = 0;
    for (const char *at = text; (at = strstr(at, "</title><rect ")); at++, boxes++) {
        ck_assert_int_eq(sscanf(at, "</title><rect class=\"%*c\" x=\"%lf\" y=\"%d\" width=\"%lf\"", &x, &y, &width), 3);
        ck_assert(width > 0 && y >= row && (y > row || x > end - .02)); /* numbers have two digits after the point */
        row = y;
        end = x + width;
    }
    return boxes;
}

START_TEST(a_picture_has_a_box_for_each_item_that_takes_time) {
    tg_ctx *ctx = ctx_new();
    for (int w = 0; w < 2; w++) {
        tg_pipe_plan *plan = plan_with(ctx, TG_PIPE_ZB_H1, 4, 1, 8, 1, 1.2, .9 * w);
        size_t n = tg_pipe_plan_text(plan, TG_SVG, NULL, 0);
        char *text = malloc(n + 1);
        int open = 0;
        ck_assert_int_eq(tg_pipe_plan_text(plan, TG_SVG, text, n + 1), n);
        ck_assert_int_eq(strlen(text), n);
        ck_assert_int_eq(count_boxes(text), (2 + w) * 4 * 8);
        for (const char *at = text; *at; at++)
            open += *at == '<' ? (at[1] == '/' ? -1 : 1) : *at == '/' && at[1] == '>' ? -1 : 0;
        ck_assert_int_eq(open, 0); /* every element is closed */
        ck_assert(!strncmp(text, "<svg ", 5) && !strcmp(text + n - 7, "</svg>\n"));
        free(text);
        tg_pipe_plan_free(plan);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_picture_takes_any_times) {
    static const double times[] = {1.7e308, 1e305, 1e-305, 1e-310, 5e-324};
    static char text[1 << 14];
    tg_ctx *ctx = ctx_new();
    for (int i = 0; i < (int)(sizeof times / sizeof *times); i++) {
        tg_pipe_plan *plan =
            tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_FORWARD, .stages = 1, .micros = 1, .f = &times[i]));
        size_t n = tg_pipe_plan_text(plan, TG_SVG, text, sizeof text);
        ck_assert_msg(n < sizeof text && !strstr(text, "inf") && !strstr(text, "nan"), "%g: %s", times[i], text);
        ck_assert_int_eq(count_boxes(text), 1);
        tg_pipe_plan_free(plan);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Memory ---- */

START_TEST(a_plan_that_memory_does_not_suffice_for_leaves_none) {
    static const tg_pipe_item list[] = {{TG_PIPE_F, 0, 0}, {TG_PIPE_B, 0, 0}};
    const tg_pipe_item *items[] = {list};
    const int n_items[] = {2};
    faulty f = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .allocator = {faulty_alloc, faulty_free, &f}));
    int64_t blocks = f.blocks;
    for (int custom = 0; custom < 2; custom++) {
        tg_pipe_plan *plan = NULL;
        for (int i = 1; !plan; i++) {
            f.fail_at = f.calls + i;
            plan = tg_pipe_plan_new(ctx, custom ? TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1,
                                                               .items = items, .n_items = n_items)
                                                : TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 2, .micros = 3));
            ck_assert_int_eq(tg_ctx_status(ctx), plan ? TG_OK : TG_ERR_MEMORY);
            ck_assert(plan ? i > 5 : f.blocks == blocks);
            tg_ctx_clear(ctx);
        }
        tg_pipe_plan_free(plan);
        ck_assert_int_eq(f.blocks, blocks);
    }
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *tests[] = {
        schedules_cost_what_is_published,
        idle_times_follow_the_formulas,
        messages_are_counted,
        interleaved_lists_are_those_of_megatron_core,
        any_number_of_micro_batches_is_interleaved,
        a_report_of_the_plan_covers_all_stages,
        a_stage_without_backward_keeps_one_micro_batch,
        a_plan_of_thousand_micro_batches_is_made,
        random_lists_that_follow_the_rules_are_planned,
        changed_lists_are_refused_with_the_items_that_are_wrong,
        refusals_say_what_is_wrong,
        a_diagram_has_a_row_for_each_stage,
        a_diagram_rounds_times_to_columns,
        a_picture_has_a_box_for_each_item_that_takes_time,
        a_picture_takes_any_times,
        a_plan_that_memory_does_not_suffice_for_leaves_none,
    };
    return tg_check_main("pipe_plan", tests, sizeof tests / sizeof *tests);
}
