/* Starting one rank of `tapegrad run`, and the signals of those who start and are started. */
#ifndef TAPEGRAD_SPAWN_H
#define TAPEGRAD_SPAWN_H

#include <signal.h>

#include "comm/shm/launch.h"

/* Starts argv[0] (looked for in PATH) as that rank, which the kernel ends with this process: 0 and its pid, or an
 * errno. */
int spawn_rank(const tg_launch *l, int rank, char *const *argv, pid_t *pid);

/* sigaction, but a signal that was ignored at the start stays so: a shell has its background jobs ignore SIGINT, which
 * is for the job in front of the terminal. */
static inline void catch_signal(int number, const struct sigaction *a) {
    struct sigaction was;
    if (sigaction(number, NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaction(number, a, NULL);
}

#endif
