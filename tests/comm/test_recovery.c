/* Ranks that are killed while a group recovers. test_p2p.c ends ranks between two messages of a recovery. */
#include "comm/worlds.h"

enum { RANKS = 3, VICTIM = 1 };

/* The victim joins the recovery, and is killed while it waits for the last rank, which kills it. */
static tg_status is_killed_in_recovery(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    int me = tg_comm_rank(c);
    (void)arg;
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    if (me == VICTIM) {
        end->word[me] = (uint64_t)getpid();
        atomic_store(&end->past[me], true);
    } else if (me == RANKS - 1) {
        while (!atomic_load(&end->past[VICTIM])) sleep_for(0.002);
        sleep_for(0.2); /* the victim calls tg_comm_recover */
        pid_t pid = (pid_t)end->word[VICTIM];
        kill(pid, SIGKILL);
        while (kill(pid, 0) == 0) sleep_for(0.002);
        sleep_for(0.2); /* over TCP: all ranks notice that the connection is closed */
    }
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == RANKS - 1);
    return tg_comm_barrier(c);
}

START_TEST(a_process_is_killed_in_a_recovery) {
    const world_end *end = run_world(PROCESSES, RANKS, is_killed_in_recovery, NULL, NULL);
    for (int r = 0; r < RANKS; r++)
        ck_assert_msg(r == VICTIM || (end->ended[r] && end->status[r] == TG_OK), "rank %d: %s: %s", r,
                      tg_status_name(end->status[r]), end->message[r]);
}
END_TEST

#if !defined TG_WORLD_TCP && !defined TG_WORLD_NCCL
/* Returns the number of groups in the memory that the ranks share. */
static int count_groups(const tg_comm *c) {
    const tg_region_view *v = &((const tg_shm_group *)c->state)->self->view;
    int n = 0;
    for (const tg_group *g = tg_at(v, v->region->groups); g; g = tg_at(v, g->next)) n++;
    return n;
}

static tg_status leaves_groups_behind(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_comm *all = tg_comm_split(c, 0, tg_comm_rank(c), "all", TG_MAX_AXES);
    EXPECT(ctx, tg_comm_barrier(all) == TG_OK);
    if (tg_comm_rank(c) == VICTIM) kill(getpid(), SIGKILL);
    EXPECT(ctx, tg_comm_barrier(c) != TG_OK);
    tg_ctx_clear(ctx);
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == RANKS - 1);
    tg_comm_free(all);
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK && count_groups(c) == 1);
    return tg_comm_barrier(c); /* no rank leaves the last group before the others have counted it */
}

/* The groups of a process that is killed are freed when the other members have left them. */
START_TEST(groups_of_a_killed_process_are_freed) {
    const world_end *end = run_world(PROCESSES, RANKS, leaves_groups_behind, NULL, NULL);
    for (int r = 0; r < RANKS; r++)
        ck_assert_msg(r == VICTIM || (end->ended[r] && end->status[r] == TG_OK), "rank %d: %s: %s", r,
                      tg_status_name(end->status[r]), end->message[r]);
}
END_TEST
#endif

int main(void) {
    const TTest *const tests[] = {
        a_process_is_killed_in_a_recovery,
#if !defined TG_WORLD_TCP && !defined TG_WORLD_NCCL
        groups_of_a_killed_process_are_freed,
#endif
    };
    return tg_check_main("recovery", tests, sizeof tests / sizeof *tests);
}
