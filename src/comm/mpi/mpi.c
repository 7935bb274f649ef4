/* MPI as a message layer (tapegrad/p2p.h). Of MPI's communication it uses only non-blocking messages between two ranks.
 * This file is a library of its own, with plugin.c, so that libtapegrad does not need MPI; it includes public headers
 * only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/transport.h>
#include <tapegrad/p2p.h>
#include <tapegrad/mpi.h>

enum { FIRST_CAPACITY = 128 };

/* Makes the communicator of MPI's world for tg_comm_world_new (plugin.c). */
tg_comm *tg_mpi_world(tg_ctx *ctx, int rank, int ranks);

/* The state of the layer: a communicator, and its requests in flight. of[i] has the token and the direction of
 * requests[i]. */
typedef struct layer {
    MPI_Comm comm;
    MPI_Request opening; /* of the MPI_Comm_idup that makes comm */
    bool open;           /* MPI_Comm_idup has completed, so comm can be used */
    bool broken;         /* a call of MPI has failed */
    bool finalizes;      /* the end of the layer finalizes MPI */
    int in_flight, capacity;
    MPI_Request *requests;
    MPI_Status *statuses; /* results of MPI_Testsome: the statuses and the indices of completed requests */
    int *completed;
    struct {
        void *token;
        bool incoming; /* a receive */
    } *of;
} layer;

/* ---- Requests in flight ---- */

/* Reallocates an array for `capacity` elements of `each` bytes. array: the address of the pointer to the array. */
static bool widen(void *array, size_t capacity, size_t each) {
    void *old, *now;
    memcpy(&old, array, sizeof old);
    now = realloc(old, capacity * each);
    if (now) memcpy(array, &now, sizeof now);
    return now != NULL;
}

static int reserve_request(layer *l) {
    if (l->in_flight < l->capacity) return MPI_SUCCESS;
    size_t capacity = l->capacity ? 2 * (size_t)l->capacity : FIRST_CAPACITY;
    if (!widen(&l->requests, capacity, sizeof *l->requests) || !widen(&l->statuses, capacity, sizeof *l->statuses) ||
        !widen(&l->completed, capacity, sizeof *l->completed) || !widen(&l->of, capacity, sizeof *l->of))
        return MPI_ERR_NO_MEM;
    l->capacity = (int)capacity;
    return MPI_SUCCESS;
}

static int add_request(layer *l, int error, void *token, bool incoming) {
    if (error != MPI_SUCCESS) {
        l->broken = true;
        return error;
    }
    l->of[l->in_flight].token = token;
    l->of[l->in_flight++].incoming = incoming;
    return MPI_SUCCESS;
}

static int mpi_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    layer *l = state;
    int error = reserve_request(l);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, l->comm, &l->requests[l->in_flight]);
    return add_request(l, error, token, false);
}

static int mpi_receive(void *state, void *data, size_t capacity, int from, int tag, void *token) {
    layer *l = state;
    int error = reserve_request(l);
    if (error == MPI_SUCCESS)
        error = MPI_Irecv(data, (int)capacity, MPI_BYTE, from < 0 ? MPI_ANY_SOURCE : from, tag, l->comm,
                          &l->requests[l->in_flight]);
    return add_request(l, error, token, true);
}

/* Reports the n requests that MPI_Testsome has completed, and removes them. */
static void report_completed(layer *l, int n, tg_p2p_completed_fn completed) {
    int kept = 0, bytes;
    for (int i = 0; i < n; i++) {
        MPI_Get_count(&l->statuses[i], MPI_BYTE, &bytes);
        completed(l->of[l->completed[i]].token, bytes > 0 ? (size_t)bytes : 0);
    }
    for (int i = 0; i < l->in_flight; i++) {
        if (l->requests[i] == MPI_REQUEST_NULL) continue;
        l->requests[kept] = l->requests[i];
        l->of[kept++] = l->of[i];
    }
    l->in_flight = kept;
}

/* Tests until two tests in a row find no completed request. In Open MPI a test that finds none may take in messages
 * from the network, which only the next test reports; so one such test does not show that nothing has arrived. */
static int mpi_poll(void *state, tg_p2p_completed_fn completed) {
    layer *l = state;
    for (int empty = 0; empty < 2;) {
        int n = 0, error = MPI_Testsome(l->in_flight, l->requests, &n, l->completed, l->statuses);
        if (error != MPI_SUCCESS) {
            l->broken = true;
            return error;
        }
        if (n == MPI_UNDEFINED) break;
        empty = n > 0 ? 0 : empty + 1;
        report_completed(l, n, completed);
    }
    return MPI_SUCCESS;
}

static void mpi_explain(void *state, int error, char *buf, size_t n) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    (void)state;
    MPI_Error_string(error, text, &length);
    size_t k = strlen(text);
    if (k >= n) k = n - 1;
    memcpy(buf, text, k);
    buf[k] = 0;
}

/* ---- Begin and end ---- */

static tg_p2p_phase mpi_phase(void *state) {
    layer *l = state;
    int over = 0, done = 0;
    MPI_Finalized(&over);
    if (over) return TG_P2P_ENDED;
    if (l->open) return TG_P2P_OPEN;
    if (MPI_Test(&l->opening, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return TG_P2P_ENDED;
    if (!done) return TG_P2P_OPENING;
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    l->open = true;
    return TG_P2P_OPEN;
}

/* Cancels the receives in flight, and reports each of them to the transport as completed with 0 bytes. If `over`, MPI
 * cannot be used any more: calls nothing of it, and reports all requests, sends too, as completed with 0 bytes. Returns
 * whether no request is left in flight. */
static bool cancel_receives(layer *l, bool over, tg_p2p_completed_fn completed) {
    bool all = true;
    for (int i = 0; i < l->in_flight; i++) {
        bool back = over || (l->of[i].incoming && MPI_Cancel(&l->requests[i]) == MPI_SUCCESS &&
                             MPI_Wait(&l->requests[i], MPI_STATUS_IGNORE) == MPI_SUCCESS);
        if (back) completed(l->of[i].token, 0);
        all &= back;
    }
    return all;
}

/* Frees the layer, unless MPI_Comm_idup is not complete: MPI will still write to l->comm. Frees the communicator only
 * if no message can still arrive for it (`quiet`, and no request is left). If it were freed while a message is on its
 * way, MPI could reuse its internal number for a new communicator, and deliver the late message there. Calls
 * MPI_Finalize only in the same case, because it could wait forever for a rank that has failed; in the other case the
 * launcher ends the job. */
static void mpi_close(void *state, bool quiet, tg_p2p_completed_fn completed) {
    layer *l = state;
    tg_p2p_phase phase = mpi_phase(l);
    bool over = phase == TG_P2P_ENDED;
    if (phase == TG_P2P_OPENING) return;
    if (cancel_receives(l, over, completed) && quiet && !over && !l->broken) {
        MPI_Comm_free(&l->comm);
        if (l->finalizes) MPI_Finalize();
    }
    free(l->requests);
    free(l->statuses);
    free(l->completed);
    free(l->of);
    free(l);
}

static const tg_p2p_ops mpi_ops = {.size = sizeof(tg_p2p_ops),
                                    .name = "mpi",
                                    .send = mpi_send,
                                    .receive = mpi_receive,
                                    .poll = mpi_poll,
                                    .explain = mpi_explain,
                                    .close = mpi_close,
                                    .phase = mpi_phase};

/* Fails unless this thread may call MPI now, and comm is a communicator. who: the public call, for errors. */
static tg_status check_mpi(tg_ctx *ctx, MPI_Comm comm, const char *who) {
    int begun = 0, over = 0, level = MPI_THREAD_SINGLE, main_thread = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    if (!begun || over)
        return tg_ctx_fail(ctx, TG_ERR_STATE,
                           "%s: MPI %s; expected a call between MPI_Init_thread and MPI_Finalize", who,
                           over ? "has been finalized" : "has not been initialized");
    if (comm == MPI_COMM_NULL) return tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "%s: comm is MPI_COMM_NULL", who);
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    if (level < MPI_THREAD_SERIALIZED && !main_thread)
        return tg_ctx_fail(ctx, TG_ERR_STATE,
                           "%s: MPI may be called only by the thread that initialized it, and this is another thread; "
                           "ask MPI_Init_thread for MPI_THREAD_SERIALIZED",
                           who);
    return TG_OK;
}

/* Duplicates the communicator, so that receives of the caller cannot match messages of the layer, nor the reverse. */
static layer *layer_new(tg_ctx *ctx, MPI_Comm comm, const char *who) {
    layer *l = calloc(1, sizeof *l);
    if (l && MPI_Comm_idup(comm, &l->comm, &l->opening) == MPI_SUCCESS) return l;
    tg_ctx_fail(ctx, l ? TG_ERR_IO : TG_ERR_MEMORY, "%s: %s", who, l ? "MPI_Comm_idup failed" : "no memory");
    free(l);
    return NULL;
}

static tg_comm *comm_new(tg_ctx *ctx, MPI_Comm comm, bool finalizes, const char *who) {
    int rank = 0, size = 1;
    bool good = ctx && tg_ctx_status(ctx) == TG_OK && check_mpi(ctx, comm, who) == TG_OK;
    layer *l = good ? layer_new(ctx, comm, who) : NULL;
    if (!l) return tg_comm_p2p_new(ctx, &mpi_ops, NULL, 0, 1); /* returns an inert communicator */
    l->finalizes = finalizes;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    return tg_comm_p2p_new(ctx, &mpi_ops, l, rank, size);
}

tg_comm *tg_comm_mpi_new(tg_ctx *ctx, MPI_Comm comm) { return comm_new(ctx, comm, false, "tg_comm_mpi_new"); }

/* Checks that MPI agrees with the launcher. A launcher and an MPI that do not know each other's protocol make each
 * process a world of its own. */
static tg_status check_world(tg_ctx *ctx, int rank, int ranks) {
    int me = 0, n = 0;
    if (check_mpi(ctx, MPI_COMM_WORLD, "tg_comm_world_new") != TG_OK) return tg_ctx_status(ctx);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (me == rank && n == ranks) return TG_OK;
    return tg_ctx_fail(ctx, TG_ERR_STATE,
                       "tg_comm_world_new: the launcher has started this process as rank %d of %d, but for MPI it is "
                       "rank %d of %d; use the mpirun of this MPI, srun with a --mpi that it knows, or "
                       "TAPEGRAD_TRANSPORT=tcp",
                       rank, ranks, me, n);
}

/* Makes MPI's functions visible to the modules that MPI loads. When this library is loaded as a plugin, only the plugin
 * sees these functions, and Open MPI's modules do not name the libraries that they need. */
static void publish_mpi(void) {
    int (*function)(int *, char ***) = MPI_Init;
    const void *address = NULL;
    Dl_info info;
    memcpy(&address, &function, sizeof address);
    if (dladdr(address, &info) && info.dli_fname) dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

tg_comm *tg_mpi_world(tg_ctx *ctx, int rank, int ranks) {
    int begun = 0, level;
    publish_mpi();
    MPI_Initialized(&begun);
    if (!begun && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        tg_ctx_fail(ctx, TG_ERR_STATE, "tg_comm_world_new: MPI_Init_thread has failed");
    if (tg_ctx_status(ctx) == TG_OK) check_world(ctx, rank, ranks);
    return comm_new(ctx, MPI_COMM_WORLD, !begun, "tg_comm_world_new");
}
