/* Communicators over MPI. Include it in programs that start their ranks with MPI. */
#ifndef TAPEGRAD_MPI_H
#define TAPEGRAD_MPI_H

#include <mpi.h>

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a communicator over MPI of the ranks of comm. Every rank of comm must make the call, and later call
 * tg_comm_free, which may wait for the other ranks. The call duplicates comm; the caller keeps comm. A communicator or
 * group whose ranks are all of one node moves data through shared memory instead (p2p.h).
 *
 * The caller initializes MPI before this call, and finalizes MPI after tg_comm_free of the result and of all its
 * groups. Fails with TG_ERR_STATE if MPI is not initialized or is already finalized, with TG_ERR_ARGUMENT if comm is
 * MPI_COMM_NULL, and with the errors of tg_comm_p2p_new. If MPI was initialized with less than MPI_THREAD_SERIALIZED,
 * only the thread that initialized MPI may make this call (TG_ERR_STATE) and use ctx. On error returns an inert
 * communicator (tapegrad.h). */
TG_API tg_comm *tg_comm_mpi_new(tg_ctx *ctx, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
