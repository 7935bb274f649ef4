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

int main(void) {
    const TTest *const tests[] = {a_process_is_killed_in_a_recovery};
    return tg_check_main("recovery", tests, sizeof tests / sizeof *tests);
}
