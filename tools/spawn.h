/* Starting one rank of `tapegrad run`. */
#ifndef TAPEGRAD_SPAWN_H
#define TAPEGRAD_SPAWN_H

#include "parallel/launch.h"

/* Starts argv[0] (looked for in PATH) as that rank, which the kernel ends with this process: 0 and its pid, or an
 * errno. */
int spawn_rank(const tg_launch *l, int rank, char *const *argv, pid_t *pid);

#endif
