/* Starting the ranks of one node as processes: what `tapegrad run` is made of. */
#ifndef TG_LAUNCH_H
#define TG_LAUNCH_H

#include <sys/types.h>

#include "comm/shm/region.h"

/* The environment of a rank: the descriptor of the region's file, which it inherits; its rank; how many there are. */
#define TG_LAUNCH_FD "TAPEGRAD_FD"
#define TG_LAUNCH_RANK "TAPEGRAD_RANK"
#define TG_LAUNCH_SIZE "TAPEGRAD_SIZE"

typedef struct tg_launch {
    int n, fd;
    tg_region *region; /* its cards */
} tg_launch;

/* 0, or an errno. */
int tg_launch_open(tg_launch *l, int n);
/* That rank's process has ended, with what waitpid has said: its peers will be told, also if it never came to join. */
void tg_launch_ended(const tg_launch *l, int rank, int wait_status);
/* The record of all ranks, as tg_comm_record gives it. */
size_t tg_launch_record(const tg_launch *l, tg_format format, char *buf, size_t n);
void tg_launch_close(tg_launch *l);

#endif
