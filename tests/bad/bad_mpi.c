/* Ranks of MPI, in a process that has not begun MPI. With MPI there are tests of its own (parallel/). */
#include "bad/bad.h"

#ifdef TG_HAVE_MPI
#include <tapegrad/mpi.h>

static bool is_inert_comm(tg_comm *c) { return c && tg_comm_size(c) == 1 && tg_comm_barrier(c) != TG_OK; }

void bad_mpi(bad_world *b) {
    GIVES(tg_comm_mpi_new, STATE, "MPI has not been begun", is_inert_comm(tg_comm_mpi_new(b->ctx, MPI_COMM_WORLD)));
    QUIET(tg_comm_mpi_new, is_inert_comm(tg_comm_mpi_new(NULL, MPI_COMM_WORLD)));
}
#else
void bad_mpi(bad_world *b) { (void)b; }
#endif
