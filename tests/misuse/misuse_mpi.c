/* Ranks of MPI in a process that has not initialized MPI, and of NCCL in a context without a GPU. Their correct use
 * has tests of its own (comm/). */
#include <tapegrad/nccl.h>

#include "misuse/misuse.h"

static bool is_inert_comm(tg_comm *c) { return c && tg_comm_size(c) == 1 && tg_comm_barrier(c) != TG_OK; }

static int no_broadcast(void *user, void *data, size_t bytes) { return (void)user, (void)data, (void)bytes, 1; }

static void misuse_nccl(misuse_world *b) {
    QUIET(tg_comm_nccl_new, is_inert_comm(tg_comm_nccl_new(NULL)));
    QUIET(tg_comm_nccl_new_by, is_inert_comm(tg_comm_nccl_new_by(NULL, 0, 2, no_broadcast, NULL)));
    GIVES(tg_comm_nccl_new_by, ARGUMENT, "rank 2 of 2",
          is_inert_comm(tg_comm_nccl_new_by(b->ctx, 2, 2, no_broadcast, NULL)));
    GIVES(tg_comm_nccl_new_by, ARGUMENT, "is NULL", is_inert_comm(tg_comm_nccl_new_by(b->ctx, 0, 2, NULL, NULL)));
    GIVES(tg_comm_nccl_new_by, DEVICE, "expected \"cuda\"",
          is_inert_comm(tg_comm_nccl_new_by(b->ctx, 0, 2, no_broadcast, NULL)));
    tg_comm *plan = tg_comm_plan_new(b->ctx, 0, 2);
    GIVES(tg_comm_nccl_new, ARGUMENT, "moves host memory", is_inert_comm(tg_comm_nccl_new(plan)));
    tg_comm_free(plan);
}

#ifdef TG_HAVE_MPI
#include <tapegrad/mpi.h>

void misuse_mpi(misuse_world *b) {
    misuse_nccl(b);
    GIVES(tg_comm_mpi_new, STATE, "MPI has not been initialized",
          is_inert_comm(tg_comm_mpi_new(b->ctx, MPI_COMM_WORLD)));
    QUIET(tg_comm_mpi_new, is_inert_comm(tg_comm_mpi_new(NULL, MPI_COMM_WORLD)));
}
#else
void misuse_mpi(misuse_world *b) { misuse_nccl(b); }
#endif
