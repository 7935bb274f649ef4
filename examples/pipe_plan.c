/* A pipeline schedule of your own, as a list of items for each of two stages. tg_pipe_plan_new checks the lists and
 * computes what they cost before anything runs. */
#include <stdio.h>

#include <tapegrad/pipe.h>
#include <tapegrad/tapegrad.h>

enum { F = TG_PIPE_F, B = TG_PIPE_B, W = TG_PIPE_W };

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu"));
    const tg_pipe_item first[] = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 0}, {W, 0, 0},
                                  {B, 0, 1}, {W, 0, 1}, {B, 0, 2}, {W, 0, 2}};
    const tg_pipe_item last[] = {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}, {F, 0, 2},
                                 {B, 0, 2}, {W, 0, 0}, {W, 0, 1}, {W, 0, 2}};
    const tg_pipe_item *items[] = {first, last};
    const int n_items[] = {9, 9};
    tg_pipe_plan *plan = tg_pipe_plan_new(
        ctx, TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 2, .micros = 3, .items = items, .n_items = n_items));
    if (!plan) {
        fprintf(stderr, "%s\n", tg_ctx_message(ctx)); /* such as: items wait for each other: ... */
        tg_ctx_free(ctx);
        return 1;
    }
    char text[1000];
    tg_pipe_plan_text(plan, TG_TEXT, text, sizeof text);
    fputs(text, stdout);
    for (int stage = 0; stage < 2; stage++) {
        tg_pipe_report r = TG_PIPE_REPORT();
        tg_pipe_plan_query(plan, stage, &r);
        printf("stage %d is idle for %g of %g and keeps %d micro-batches\n", stage, r.makespan - r.ideal, r.makespan,
               r.peak);
    }
    tg_pipe_plan_free(plan);
    tg_ctx_free(ctx);
    return 0;
}
