/* Starts one rank of `tapegrad run`, and lists the signals that the launcher handles. */
#ifndef TAPEGRAD_SPAWN_H
#define TAPEGRAD_SPAWN_H

#include <signal.h>

#include "comm/shm/launch.h"

/* Starts argv[0] (searched for in PATH) as number `rank` of the launch l, in a process group of its own, whose id is
 * its pid. The kernel kills the rank when this process ends. Returns 0 and sets *pid, or returns an errno. */
int spawn_rank(const tg_launch *l, int rank, char *const *argv, pid_t *pid);

/* The signals that the launcher passes on to its ranks. A terminal does not send them to the ranks, because these are
 * not in its foreground process group. */
enum { PASSED_ON = 4 };
extern const int passed_on[PASSED_ON];

/* Calls sigaction, unless the signal was ignored when the program began: a shell makes its background jobs ignore
 * SIGINT, which is meant for the job in the foreground, and nohup makes a program ignore SIGHUP. */
static inline void catch_signal(int number, const struct sigaction *a) {
    struct sigaction was;
    if (sigaction(number, NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaction(number, a, NULL);
}

#endif
