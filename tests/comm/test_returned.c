/* A rank that returns while another rank examines its process: it has not died. The program's own fcntl delays the
 * question whether a process holds its lock, so that ranks return between the two halves of the examination. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "worlds.h"

enum { RANKS = 4, ROUNDS = 8 };

int fcntl64(int fd, int command, ...);

int fcntl64(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_GETLK) sleep_for(0.03);
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* Ranks 0 and 1 communicate when the others have returned, and rank 0 examines all while it waits for rank 1. */
static tg_status returning(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    (void)arg, (void)end;
    int me = tg_comm_rank(world);
    double x = 1;
    tg_tensor *t = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &x);
    tg_comm_all_reduce(world, t, t, TG_REDUCE_SUM);
    if (me == 1) sleep_for(0.5);
    if (me > 1) sleep_for(0.1 * me);
    if (me == 1) tg_comm_send(world, t, 0);
    if (me == 0) tg_comm_recv(world, t, 1);
    tg_drop(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_rank_that_returns_has_not_died) {
    for (int i = 0; i < ROUNDS; i++) expect_world(PROCESSES, RANKS, returning, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_rank_that_returns_has_not_died};
    return tg_check_main("returned", tests, sizeof tests / sizeof *tests);
}
