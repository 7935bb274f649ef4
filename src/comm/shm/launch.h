/* Starting the ranks of one node as processes, for `tapegrad run`. */
#ifndef TG_LAUNCH_H
#define TG_LAUNCH_H

#include <sys/types.h>

#include "comm/shm/region.h"

/* The environment variables of a rank: the inherited descriptor of the region's file, the rank, and the number of
 * ranks. */
#define TG_LAUNCH_FD "TAPEGRAD_FD"
#define TG_LAUNCH_RANK "TAPEGRAD_RANK"
#define TG_LAUNCH_SIZE "TAPEGRAD_SIZE"

typedef struct tg_launch {
    int n, fd;
    tg_region *region; /* with the rank slots */
} tg_launch;

/* Returns 0, or an errno. */
int tg_launch_open(tg_launch *l, int n);
/* Called when the process of a rank has ended. wait_status: from waitpid. The peers are notified, even if the
 * process never joined. */
void tg_launch_ended(const tg_launch *l, int rank, int wait_status);
/* Writes the flight recorder of all ranks, as tg_comm_record does. */
size_t tg_launch_record(const tg_launch *l, tg_format format, char *buf, size_t n);
void tg_launch_close(tg_launch *l);

#endif
