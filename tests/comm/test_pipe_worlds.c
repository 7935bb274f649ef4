/* Pipelines over every transport of the host: threads, processes, and MPI on one and on several nodes. */
#include "comm/worlds.h"

#undef EXPECT
#include "parallel/compose.h"

static tg_status composed(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    (void)end;
    return compose_rank(arg, ctx, world);
}

/* Steps of a program with two lengths and tied embeddings equal those of one rank. */
START_TEST(pipelines_run_on_every_transport) {
    static const compose_job jobs[] = {
        {{.layers = 3, .micros = 5, .steps = 2, .rows = 2, .length = 4, .two_lengths = true, .tied = true},
         {.tp = 1, .dp = 1, .pp = 2, .vp = 1, .kind = TG_PIPE_1F1B}},
        {{.layers = 5, .micros = 4, .steps = 2, .rows = 2, .length = 4, .tied = true},
         {.tp = 1, .dp = 1, .pp = 4, .vp = 1, .kind = TG_PIPE_ZB_H1, .ahead = 2}},
        {{.layers = 6, .micros = 4, .steps = 2, .rows = 2, .length = 4, .recompute = true},
         {.tp = 2, .dp = 1, .pp = 2, .vp = 2, .sp = true, .kind = TG_PIPE_INTERLEAVED}},
    };
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60);
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
            int n = jobs[i].layout.tp * jobs[i].layout.pp;
            const world_end *end = run_world((world_kind)kind, n, composed, (void *)&jobs[i], config);
            for (int r = 0; r < n; r++)
                ck_assert_msg(end->ended[r] && end->status[r] == TG_OK, "%s, job %d, rank %d: %s", world_names[kind],
                              (int)i, r, end->message[r]);
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {pipelines_run_on_every_transport};
    return tg_check_main("pipe_worlds", tests, sizeof tests / sizeof *tests);
}
