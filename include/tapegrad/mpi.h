/* Ranks of MPI. */
#ifndef TAPEGRAD_MPI_H
#define TAPEGRAD_MPI_H

#include <mpi.h>

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The communicator of comm's ranks, which stays the caller's; collective over them, as is tg_comm_free, which waits for
 * the others. MPI is the caller's: begun before, ended after tg_comm_free; TG_ERR_STATE else. Where MPI was begun with
 * less than MPI_THREAD_SERIALIZED, ctx belongs to the thread that began it. Inert on error. */
TG_API tg_comm *tg_comm_mpi_new(tg_ctx *ctx, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
