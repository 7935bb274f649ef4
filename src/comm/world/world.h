/* What the files of this folder share: reading the variables of launchers. */
#ifndef TG_WORLD_H
#define TG_WORLD_H

#include <tapegrad/world.h>

#include "base/plugin.h"
#include "comm/comm.h"

/* The number of ports on which rank 0 may listen. */
enum { TG_WORLD_PORTS = 16 };

/* The query that is running. status: the first contradiction found. */
typedef struct tg_world_query_state {
    tg_world_info info;
    tg_status status;
    char *message; /* of the caller; NULL: none */
    size_t n;
} tg_world_query_state;

/* ---- variables.c ---- */

/* Returns the value of a variable; NULL: it is not set, or empty. */
const char *tg_variable(const char *name);
/* Reads a number from `least` on into *value. Returns whether the variable is set. A value that is no such number is a
 * contradiction. */
bool tg_variable_number(tg_world_query_state *q, const char *name, int least, int *value);
/* Records a contradiction. Returns false. */
bool tg_world_refuse(tg_world_query_state *q, const char *format, ...) TG_PRINTF(2, 3);

/* ---- slurm.c ---- */

/* Whether srun has started this process. */
bool tg_slurm_is_here(void);
/* Fills the query's info from Slurm's variables. */
void tg_slurm_read(tg_world_query_state *q);
/* Writes the first host of a list such as "node[07-09,12],other". Returns false if that is no list, or host, of n
 * bytes, is too small. */
bool tg_slurm_first_host(const char *list, char *host, size_t n);
/* Returns the number of tasks of a node in a list such as "2(x3),1"; 0: the list has none for it. */
int tg_slurm_tasks_of(const char *list, int node);

/* ---- world.c ---- */

/* What plugin "mpi" offers (base/plugin.h): makes the communicator of MPI's world, which must have `ranks` ranks, of
 * which this one is `rank`. Initializes MPI if that has not been done, and then finalizes it at the end. Returns NULL
 * or an inert communicator after recording an error. */
typedef struct tg_mpi_plugin_table {
    tg_comm *(*world)(tg_ctx *ctx, int rank, int ranks);
} tg_mpi_plugin_table;
extern TG_PRIVATE_API const tg_plugin tg_mpi_plugin;

#endif
