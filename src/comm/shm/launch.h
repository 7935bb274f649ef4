/* Starting the ranks of one node as processes, for `tapegrad run`. */
#ifndef TG_LAUNCH_H
#define TG_LAUNCH_H

#include <sys/types.h>

#include "base/private_api.h"
#include "comm/shm/region.h"

/* The environment variables that a rank's process gets: the inherited descriptor of the region's file, the rank, and
 * the number of ranks. */
#define TG_LAUNCH_FD   "TAPEGRAD_FD"
#define TG_LAUNCH_RANK "TAPEGRAD_RANK"
#define TG_LAUNCH_SIZE "TAPEGRAD_SIZE"

typedef struct tg_launch {
    int n, fd;         /* number of ranks; the region's file */
    tg_region *region; /* mapped without the arenas, from which the ranks take memory for tensors */
} tg_launch;

/* Makes the region of n processes. Returns 0, or an errno value. */
TG_PRIVATE_API int tg_launch_open(tg_launch *l, int n);
/* Called when the process of a rank has ended. Unless the rank has reported an error or its return, writes into the
 * region how the process ended, so that the other ranks can report it, even if the process never attached to the
 * region. wait_status: from waitpid. */
TG_PRIVATE_API void tg_launch_ended(const tg_launch *l, int rank, int wait_status);
/* Writes the flight recorder of all ranks, as tg_comm_record does. */
size_t tg_launch_record(const tg_launch *l, tg_format format, char *buf, size_t n);
TG_PRIVATE_API void tg_launch_close(tg_launch *l);

#endif
