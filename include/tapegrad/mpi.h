/* Communicators over MPI. Include it in programs that start their ranks with MPI. */
#ifndef TAPEGRAD_MPI_H
#define TAPEGRAD_MPI_H

#include <mpi.h>

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a communicator of the ranks of comm, which the caller keeps. It is collective over these ranks.
 * tg_comm_free is collective too, and waits for the other ranks. The caller initializes MPI before this call and
 * finalizes it after tg_comm_free; otherwise the call fails with TG_ERR_STATE. If MPI was initialized with less than
 * MPI_THREAD_SERIALIZED, only the thread that initialized it may use ctx. Returns an inert communicator on error. */
TG_API tg_comm *tg_comm_mpi_new(tg_ctx *ctx, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
