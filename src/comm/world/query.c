/* Recognizes how this process was started, and describes it in one line. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "comm/shm/launch.h"
#include "comm/world/world.h"

static const char *const launchers[] = {"nothing", "tapegrad run", "mpirun", "torchrun", "srun"};

/* ---- torchrun ---- */

/* Reads from MASTER_ADDR and MASTER_PORT where the ranks meet. If torchrun's agent has its own store on MASTER_PORT,
 * the first port on which rank 0 may listen is the one after it. */
static void read_meeting_place(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    const char *agent = tg_variable("TORCHELASTIC_USE_AGENT_STORE");
    bool used = agent && !strcmp(agent, "True");
    if (!tg_world_read_host(q)) {
        tg_world_refuse(
            q, "%s has started this process as rank %d of %d, but MASTER_ADDR is not set; set it to the node of rank 0",
            launchers[i->launcher], i->rank, i->ranks);
        return;
    }
    if (!tg_variable_number(q, "MASTER_PORT", 1, &i->port))
        tg_world_refuse(q, "MASTER_ADDR is \"%s\", but MASTER_PORT is not set; set it to a free port of that node",
                        i->host);
    if (used && i->port < 65536) i->port++;
    i->ports = TG_WORLD_PORTS;
}

static void read_torchrun(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    const char *run = tg_variable("TORCHELASTIC_RUN_ID"), *restarts = tg_variable("TORCHELASTIC_RESTART_COUNT");
    i->launcher = TG_LAUNCHER_TORCHRUN;
    if (!tg_variable_number(q, "WORLD_SIZE", 1, &i->ranks))
        tg_world_refuse(q, "RANK is \"%s\", but WORLD_SIZE is not set; torchrun sets both", tg_variable("RANK"));
    if (!tg_variable_number(q, "RANK", 0, &i->rank))
        tg_world_refuse(q, "WORLD_SIZE is \"%s\", but RANK is not set; torchrun sets both", tg_variable("WORLD_SIZE"));
    tg_variable_number(q, "LOCAL_RANK", 0, &i->local_rank);
    tg_variable_number(q, "LOCAL_WORLD_SIZE", 1, &i->local_ranks);
    snprintf(i->job, sizeof i->job, "torchrun %s %s", run ? run : "", restarts ? restarts : "0");
    if (q->status == TG_OK && i->ranks > 1) read_meeting_place(q);
}

/* ---- mpirun ---- */

/* Returns whether the variables of the protocol PMI are set, by MPICH's launcher or by Slurm's plugin for it. */
static bool has_pmi(void) { return tg_variable("PMI_RANK") && tg_variable("PMI_SIZE"); }
/* Returns whether mpirun has started this process. */
static bool is_of_mpi(void) { return tg_variable("OMPI_COMM_WORLD_SIZE") || (has_pmi() && !tg_slurm_is_here()); }

static void read_mpi(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    bool open_mpi = tg_variable("OMPI_COMM_WORLD_SIZE");
    i->launcher = TG_LAUNCHER_MPI;
    i->transport = TG_WORLD_MPI;
    if (!tg_variable_number(q, open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK", 0, &i->rank))
        tg_world_refuse(q, "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not; mpirun sets both");
    tg_variable_number(q, open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE", 1, &i->ranks);
    tg_variable_number(q, open_mpi ? "OMPI_COMM_WORLD_LOCAL_RANK" : "MPI_LOCALRANKID", 0, &i->local_rank);
    tg_variable_number(q, open_mpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS", 1, &i->local_ranks);
}

/* ---- The launcher ---- */

static void read_run(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    i->launcher = TG_LAUNCHER_RUN;
    i->transport = TG_WORLD_SHM;
    i->rank = i->local_rank = tg_comm_launched_rank();
    if (!tg_variable_number(q, TG_LAUNCH_SIZE, 1, &i->ranks))
        tg_world_refuse(q, TG_LAUNCH_RANK " is %d, but " TG_LAUNCH_SIZE " is not set; `tapegrad run` sets both",
                        i->rank);
    i->local_ranks = i->ranks;
}

static void read_launcher(tg_world_query_state *q) {
    bool by_name = tg_variable("RANK") || (tg_variable("WORLD_SIZE") && !is_of_mpi() && !tg_slurm_is_here());
    if (tg_comm_launched_rank() >= 0)
        read_run(q);
    else if (by_name)
        read_torchrun(q);
    else if (is_of_mpi())
        read_mpi(q);
    else if (tg_slurm_is_here())
        tg_slurm_read(q);
}

/* ---- The transport ---- */

/* Chooses the transport where the launcher leaves a choice. */
static void choose_transport(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    bool pmi = tg_variable("PMIX_RANK") || has_pmi();
    if (i->launcher == TG_LAUNCHER_TORCHRUN) i->transport = TG_WORLD_TCP;
    if (i->launcher == TG_LAUNCHER_SLURM) i->transport = pmi && tg_plugin_is_here("mpi") ? TG_WORLD_MPI : TG_WORLD_TCP;
    if (i->ranks == 1 && i->launcher != TG_LAUNCHER_RUN && i->launcher != TG_LAUNCHER_MPI)
        i->transport = TG_WORLD_ALONE;
}

/* Replaces the transport by the one that TAPEGRAD_TRANSPORT names. */
static void replace_transport(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    const char *wanted = tg_variable("TAPEGRAD_TRANSPORT");
    if (!wanted || i->ranks == 1) return;
    if (!strcmp(wanted, "tcp")) {
        i->transport = TG_WORLD_TCP;
        if (!*i->host) read_meeting_place(q);
    } else if (!strcmp(wanted, "mpi")) {
        i->transport = TG_WORLD_MPI;
    } else {
        tg_world_refuse(q, "TAPEGRAD_TRANSPORT is \"%s\", expected \"tcp\" or \"mpi\"", wanted);
    }
}

/* ---- Contradictions ---- */

/* Checks that the numbers and variables fit together. Applies TAPEGRAD_PORT before it checks the ports. */
static void check(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    const char *by = launchers[i->launcher];
    char others[40] = "";
    int said;
    if (i->rank >= i->ranks)
        tg_world_refuse(q, "%s has started this process as rank %d of %d, expected a rank below %d", by, i->rank,
                        i->ranks, i->ranks);
    if (i->local_ranks && (i->local_rank >= i->local_ranks || i->local_ranks > i->ranks))
        tg_world_refuse(q,
                        "%s has started this process as number %d of %d on its node, of %d ranks in all; expected a "
                        "number below %d, and at most %d ranks on the node",
                        by, i->local_rank, i->local_ranks, i->ranks, i->local_ranks, i->ranks);
    if (i->launcher != TG_LAUNCHER_TORCHRUN && tg_variable_number(q, "WORLD_SIZE", 1, &said) && said != i->ranks)
        tg_world_refuse(q, "WORLD_SIZE is %d, but %s has started %d ranks; unset it, or start as many", said, by,
                        i->ranks);
    if (tg_variable_number(q, "TAPEGRAD_PORT", 1, &i->port)) i->ports = TG_WORLD_PORTS;
    if (i->transport != TG_WORLD_TCP || i->port <= 65536 - i->ports) return;
    if (i->ports > 1) snprintf(others, sizeof others, " or one of the %d after it", i->ports - 1);
    tg_world_refuse(q, "the ranks would meet on port %d%s, expected ports up to 65535; set TAPEGRAD_PORT", i->port,
                    others);
}

tg_status tg_world_query(tg_world_info *out, char *message, size_t n) {
    tg_world_query_state q = {.info = {.ranks = 1}, .message = message, .n = n};
    if (message && n) *message = 0;
    if (!out)
        tg_world_refuse(&q, "tg_world_query: out is NULL, expected a struct that TG_WORLD_INFO() has initialized");
    else if (out->size != sizeof *out)
        tg_world_refuse(&q, "tg_world_query: out->size is %zu, expected %zu; initialize out with TG_WORLD_INFO()",
                        out->size, sizeof *out);
    if (q.status != TG_OK) return q.status;
    read_launcher(&q);
    choose_transport(&q);
    replace_transport(&q);
    if (q.info.launcher == TG_LAUNCHER_NONE)
        q.info.local_ranks = 1;
    else
        check(&q);
    q.info.size = sizeof q.info;
    *out = q.info;
    return q.status;
}

/* ---- The text ---- */

size_t tg_world_text(const tg_world_info *i, char *buf, size_t n) {
    static const char *const transports[] = {"alone", "over shared memory", "over MPI", "over TCP"};
    size_t at = 0;
    if (n) *buf = 0;
    if (!i || i->size != sizeof *i || i->launcher > TG_LAUNCHER_SLURM || i->transport > TG_WORLD_TCP) return 0;
    if (i->launcher == TG_LAUNCHER_NONE) {
        tg_text(buf, n, &at, "one rank, started by no launcher");
        return at;
    }
    tg_text(buf, n, &at, "rank %d of %d", i->rank, i->ranks);
    if (i->local_ranks) tg_text(buf, n, &at, ", number %d of %d on this node", i->local_rank, i->local_ranks);
    tg_text(buf, n, &at, ", started by %s, %s", launchers[i->launcher], transports[i->transport]);
    if (i->transport == TG_WORLD_TCP) tg_text(buf, n, &at, ": the ranks meet at %s, port %d", i->host, i->port);
    if (i->transport == TG_WORLD_TCP && i->ports > 1) tg_text(buf, n, &at, " to %d", i->port + i->ports - 1);
    return at;
}
