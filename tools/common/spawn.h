/* Starts one rank of `tapegrad run`, and lists the signals that the launcher handles. */
#ifndef TAPEGRAD_SPAWN_H
#define TAPEGRAD_SPAWN_H

#include <sys/types.h>

#include "comm/shm/launch.h"

/* Starts argv[0] (searched for in PATH) as number `rank` of the launch l, in a process group of its own, whose id is
 * its pid. The kernel kills the rank when this process ends. Returns 0 and sets *pid, or returns an errno. */
int spawn_rank(const tg_launch *l, int rank, char *const *argv, pid_t *pid);

/* The signals that the launcher passes on to its ranks. A terminal does not send them to the ranks, because these are
 * not in its foreground process group. */
enum { PASSED_ON = 4 };
extern const int passed_on[PASSED_ON];

#endif
