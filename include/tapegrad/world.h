/* The communicator of all ranks that a launcher has started, whichever launcher it was. Include this header in programs
 * that must run both alone and under `tapegrad run`, mpirun, torchrun and Slurm's srun. docs/cluster.md has a job
 * script for each. */
#ifndef TAPEGRAD_WORLD_H
#define TAPEGRAD_WORLD_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_launcher {
    TG_LAUNCHER_NONE,     /* nothing has started this process as one of several ranks */
    TG_LAUNCHER_RUN,      /* tapegrad run */
    TG_LAUNCHER_MPI,      /* mpirun or mpiexec */
    TG_LAUNCHER_TORCHRUN, /* torchrun, or another launcher that sets the same variables */
    TG_LAUNCHER_SLURM,    /* Slurm's srun */
} tg_launcher;

typedef enum tg_world_transport {
    TG_WORLD_ALONE, /* no transport: one rank, which neither `tapegrad run` nor mpirun has started */
    TG_WORLD_SHM,   /* memory that `tapegrad run` shares between its ranks */
    TG_WORLD_MPI,
    TG_WORLD_TCP,
} tg_world_transport;

/* How this process was started. If no launcher has started it, it is rank 0 of 1. The strings are terminated by a 0
 * byte. */
typedef struct tg_world_info {
    size_t size;
    tg_launcher launcher;
    tg_world_transport transport; /* how the ranks find each other (see p2p.h for ranks of one node) */
    int rank, ranks;              /* the number of this rank, from 0, and the number of all ranks */
    int local_rank, local_ranks;  /* the same among the ranks of this node; if the launcher does not say, 0 */
    /* These are used over TCP only. */
    char host[256];  /* the name or address of rank 0's node */
    int port, ports; /* the first port on which rank 0 may listen, and the number of ports */
    char job[128];   /* the name of the run, which is the same on all ranks */
} tg_world_info;

#define TG_WORLD_INFO() ((tg_world_info){.size = sizeof(tg_world_info)})

/* Fills *out, which TG_WORLD_INFO() initializes, from the environment variables of the launchers. If the variables of
 * several launchers are set, the first launcher of this list counts, because it is usually the innermost one. The
 * variables after a semicolon are optional. An empty variable counts as not set.
 *
 *   tapegrad run   TAPEGRAD_RANK, TAPEGRAD_SIZE and TAPEGRAD_FD
 *   torchrun       RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; LOCAL_RANK, LOCAL_WORLD_SIZE
 *   mpirun         Open MPI: OMPI_COMM_WORLD_RANK and ..._SIZE; ..._LOCAL_RANK, ..._LOCAL_SIZE.
 *                  MPICH: PMI_RANK and PMI_SIZE; MPI_LOCALRANKID, MPI_LOCALNRANKS
 *   srun           SLURM_STEP_ID, SLURM_PROCID and SLURM_STEP_NUM_TASKS (or SLURM_NTASKS); SLURM_LOCALID,
 *                  SLURM_STEP_TASKS_PER_NODE and SLURM_NODEID. Rank 0 is on the first node of SLURM_STEP_NODELIST (or
 *                  SLURM_JOB_NODELIST). With --mpi=pmix or --mpi=pmi2 (PMIX_RANK, PMI_RANK) the ranks communicate over
 *                  MPI if libtapegrad-mpi.so is installed, else over TCP
 *
 * If there are several ranks, TAPEGRAD_TRANSPORT ("tcp" or "mpi") replaces their transport. "tcp" under mpirun or
 * `tapegrad run` needs MASTER_ADDR and MASTER_PORT.
 *
 * Over TCP rank 0 listens at MASTER_ADDR, on the first free one of 16 ports. The first of the 16 is TAPEGRAD_PORT if
 * that is set. Otherwise it is MASTER_PORT, or the port after it if a store of torchrun listens there
 * (TORCHELASTIC_USE_AGENT_STORE is "True"). Under srun MASTER_ADDR and MASTER_PORT may be missing. Without MASTER_ADDR
 * the address is the first node. If neither port is set, there is only one port instead of 16, the first of
 * SLURM_STEP_RESV_PORTS (srun --resv-ports). If that is not set either, the ids of the job and the step decide the
 * first of the 16 ports.
 *
 * Returns TG_ERR_ARGUMENT if variables contradict each other, if the launcher has not set a variable that it needs
 * (for example, RANK is set without WORLD_SIZE), and if out is NULL or out->size is that of another version. *out must
 * then not be used. The reason is written to message, at most n bytes with the terminating 0; message may be NULL. On
 * success message is set to "". */
TG_API tg_status tg_world_query(tg_world_info *out, char *message, size_t n);

/* Writes one line about info to buf, without a newline: at most n bytes with the terminating 0. Returns the length of
 * the whole text, even if buf is too short for it; 0 if info is NULL or invalid. buf may be NULL if n is 0. Such a line
 * is "rank 2 of 4, number 0 of 2 on this node, started by torchrun, over TCP: the ranks meet at node1, port 29501 to
 * 29516". */
TG_API size_t tg_world_text(const tg_world_info *info, char *buf, size_t n);

/* Creates the communicator of all ranks. info is what tg_world_query has filled. A caller may change transport and,
 * over TCP, rank, ranks, host, port, ports and job. If info is NULL, this call calls tg_world_query. Every rank makes
 * the call, and later calls tg_comm_free, which may wait for the others. A process that is alone gets a communicator of
 * one rank.
 *
 * Over MPI, loads libtapegrad-mpi.so. If the program has not initialized MPI, tg_comm_world_new initializes it, and
 * tg_comm_free finalizes it. If all ranks share the memory of one node, tg_comm_world_new itself finalizes MPI before
 * it returns. After a failure MPI is not finalized. A process can initialize MPI only once, so a program that leaves
 * this to tg_comm_world_new should create only one communicator over MPI.
 *
 * The caller chooses the context's device. For GPUs it is "cuda:N", where N is the local_rank of tg_world_query, and
 * tg_comm_nccl_new (nccl.h) makes the communicator of the GPUs from the one that this call returns.
 *
 * Fails with the errors of tg_world_query, of tg_comm_tcp_new (tcp.h), of tg_comm_mpi_new (mpi.h) and of
 * tg_comm_launched_new; with TG_ERR_STATE if MPI has given this process another rank or number of ranks than the
 * launcher; with TG_ERR_UNSUPPORTED if libtapegrad-mpi.so is missing; and with TG_ERR_ARGUMENT if info->size or
 * info->transport is invalid. On error returns an inert communicator (tapegrad.h). */
TG_API tg_comm *tg_comm_world_new(tg_ctx *ctx, const tg_world_info *info);

#ifdef __cplusplus
}
#endif

#endif
