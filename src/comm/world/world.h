/* Internals of this folder: the state of a query, and the functions that read the variables of launchers. */
#ifndef TG_WORLD_H
#define TG_WORLD_H

#include <tapegrad/world.h>

#include "base/plugin.h"
#include "comm/comm.h"

/* The number of ports on which rank 0 may listen, unless Slurm has reserved one for it. */
enum { TG_WORLD_PORTS = 16 };

/* The state of one tg_world_query. status: TG_OK, or the error of the first contradiction that was found. */
typedef struct tg_world_query_state {
    tg_world_info info;
    tg_status status;
    char *message; /* the caller's buffer of n bytes for the error; NULL: none */
    size_t n;
} tg_world_query_state;

/* ---- variables.c ---- */

/* Returns the value of an environment variable; NULL if it is not set or empty. */
const char *tg_variable(const char *name);
/* Reads a number into *value. Returns false if the variable is not set. If its value is not a number of at least
 * `least` that an int holds, records a contradiction, returns false, and leaves *value as it is. */
bool tg_variable_number(tg_world_query_state *q, const char *name, int least, int *value);
/* Records a contradiction, unless there was one before. Returns false. */
bool tg_world_refuse(tg_world_query_state *q, const char *format, ...) TG_PRINTF(2, 3);
/* Reads MASTER_ADDR into the query's info, or records a contradiction if it is too long. Returns false if it is not
 * set. */
bool tg_world_read_host(tg_world_query_state *q);

/* ---- slurm.c ---- */

/* Returns whether srun has started this process. */
bool tg_slurm_is_here(void);
/* Fills the query's info from Slurm's variables. */
void tg_slurm_read(tg_world_query_state *q);
/* Writes the first host of a list such as "node[07-09,12],other" to `host`, which has n bytes. Returns false if the
 * list is malformed, if its first name has two pairs of brackets, or if `host` is too small. */
bool tg_slurm_first_host(const char *list, char *host, size_t n);
/* Returns the number of tasks of node number `node` (from 0) in a list such as "2(x3),1"; 0 if the list is too
 * short. */
int tg_slurm_tasks_of(const char *list, int node);

/* ---- world.c ---- */

/* The functions of plugin "mpi" (base/plugin.h). */
typedef struct tg_mpi_plugin_table {
    /* Makes the communicator of MPI's world. Fails with TG_ERR_STATE unless the world has `ranks` ranks and this
     * process is number `rank` of them. If MPI is not initialized, initializes it; tapegrad/world.h says when it is
     * then finalized. Returns NULL or an inert communicator after recording an error. */
    tg_comm *(*world)(tg_ctx *ctx, int rank, int ranks);
} tg_mpi_plugin_table;
extern TG_PRIVATE_API const tg_plugin tg_mpi_plugin;

#endif
