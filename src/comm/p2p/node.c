/* Connects ranks that are processes of one node through shared memory. Over the message layer the ranks first exchange
 * their nodes, then the file that the first rank of each node has made, and then whether each can share its memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory/host_memory.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* What each rank sends the others: its node, its process, and the file that it has made for the ranks of its node. */
typedef struct address {
    int64_t node, pid, fd, inode;
} address;

/* ---- Names of nodes ---- */

/* Adds n bytes of text to the hash h. n is the result of the call that has read the text; if it is not positive, adds
 * nothing. */
static uint64_t mix_text(uint64_t h, const char *text, ssize_t n) {
    return n > 0 ? tg_hash_bytes(h, text, (size_t)n) : h;
}

/* Returns a number for this node: a hash of the id of the machine's boot, of the process's PID namespace, and of the
 * host name. */
static int64_t this_node(void) {
    char text[256];
    uint64_t h = TG_HASH_START;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        h = mix_text(h, text, read(fd, text, sizeof text));
        close(fd);
    }
    h = mix_text(h, text, readlink("/proc/self/ns/pid", text, sizeof text));
    if (gethostname(text, sizeof text) == 0) h = mix_text(h, text, (ssize_t)strnlen(text, sizeof text));
    return (int64_t)(h >> 1);
}

/* Returns a number for the node of this rank. For tests, TG_MPI_NODES sets a number of nodes over which the ranks are
 * spread. */
static int64_t node_of(const tg_comm *world) {
    const char *text = getenv("TG_MPI_NODES");
    long nodes = text ? strtol(text, NULL, 10) : 0;
    if (nodes <= 0) return this_node();
    return nodes >= world->size ? world->rank : (int64_t)world->rank * nodes / world->size;
}

/* ---- The file ---- */

/* Returns the first rank on the node of `rank`. */
static int first_of(const address *all, int rank) {
    int first = 0;
    while (all[first].node != all[rank].node) first++;
    return first;
}

/* Returns the number of ranks on the node of `rank`. */
static int members_of(const address *all, int n, int rank) {
    int members = 0;
    for (int i = 0; i < n; i++) members += all[i].node == all[rank].node;
    return members;
}

/* Returns whether some ranks on the node of `rank` are threads of one process. The ranks of such a node do not use
 * shared memory: a lock on the file shows whether a rank is alive, and such a lock belongs to the whole process. */
static bool are_threads(const address *all, int n, int rank) {
    for (int i = 0; i < n; i++)
        for (int k = 0; all[i].node == all[rank].node && k < i; k++)
            if (all[k].node == all[i].node && all[k].pid == all[i].pid) return true;
    return false;
}

/* Opens the file of another rank. Returns a descriptor that child programs do not inherit; -1: it cannot be opened, or
 * it is another file. Each rank has a descriptor of its own, because the kernel drops a process's locks on a file when
 * the process closes any of its descriptors of that file. */
static int open_file(const address *a) {
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)a->pid, (long long)a->fd);
    int fd = a->fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (fstat(fd, &file) == 0 && (int64_t)file.st_ino == a->inode)) return fd;
    close(fd);
    return -1;
}

/* Returns whether this rank can share the memory of the file. A context can use the memory of one file only, so a
 * further communicator of the context goes over the message layer, also within the node. */
static bool can_share(const tg_ctx *ctx, int fd) {
    const char *why;
    tg_region *r = fd < 0 || ctx->arena ? NULL : tg_region_map(fd, true, &why);
    if (r) tg_region_unmap(r, true);
    return r != NULL;
}

static void make_file(address *mine, int n) {
    struct stat file = {.st_ino = 0};
    mine->fd = tg_region_file(n);
    if (mine->fd < 0) return;
    fcntl((int)mine->fd, F_SETFD, FD_CLOEXEC);
    fstat((int)mine->fd, &file);
    mine->inode = (int64_t)file.st_ino;
}

/* ---- Meeting ---- */

/* Gathers this number of 64-bit words from every rank. */
static tg_status all_gather(tg_comm *world, const void *mine, void *all, int64_t words) {
    tg_transfer call = {.kind = TG_ALL_GATHER, .dtype = TG_I64, .src = mine, .dst = all, .count = words};
    return tg_comm_exchange(world, &call);
}

/* Sets *can to whether all ranks of this rank's node can share the memory of the node's file, and *in_one to whether
 * all ranks of world can, on one node. fd: the file, opened by this rank; -1: it is not open. */
static tg_status all_can(tg_comm *world, const address *all, int fd, bool *can, bool *in_one) {
    size_t bytes = (size_t)world->size * sizeof(int64_t);
    int64_t mine = can_share(world->ctx, fd), *each = tg_host_alloc(world->ctx, bytes);
    tg_status s = each ? all_gather(world, &mine, each, 1) : world->ctx->run.status;
    *can = *in_one = s == TG_OK;
    for (int i = 0; s == TG_OK && i < world->size; i++) {
        bool here = all[i].node == all[world->rank].node;
        *can &= !here || each[i];
        *in_one &= here && each[i];
    }
    tg_host_free(world->ctx, each, bytes);
    return s;
}

/* Does the work of tg_p2p_meet. all: receives the address of each rank of world. */
static tg_status meet(tg_comm *world, address *all, tg_comm **node, bool *in_one) {
    int n = world->size, me = world->rank, fd = -1;
    bool can = false;
    address mine = {.node = node_of(world), .pid = getpid(), .fd = -1};
    TG_TRY(all_gather(world, &mine, all, sizeof mine / sizeof(int64_t)));
    int first = first_of(all, me);
    bool others = members_of(all, n, me) > 1 && !are_threads(all, n, me);
    if (others && first == me) make_file(&mine, n);
    tg_status s = all_gather(world, &mine, all, sizeof mine / sizeof(int64_t));
    if (others) fd = first == me ? (int)mine.fd : s == TG_OK ? open_file(&all[first]) : -1;
    if (s == TG_OK) s = all_can(world, all, fd, &can, in_one);
    if (s == TG_OK && fd >= 0 && can)
        *node = tg_comm_attach(world->ctx, fd, me, true);
    else if (fd >= 0)
        close(fd);
    return s == TG_OK ? world->ctx->run.status : s;
}

tg_status tg_p2p_meet(tg_p2p_rank *self, tg_comm *world, tg_comm **node, bool *in_one) {
    size_t bytes = (size_t)world->size * sizeof(address);
    address *all = tg_host_alloc(world->ctx, bytes);
    tg_status s = all ? meet(world, all, node, in_one) : world->ctx->run.status;
    for (int i = 0; s == TG_OK && i < world->size; i++) {
        self->nodes[i] = all[i].node;
        self->peer[i].pid = all[i].pid;
    }
    tg_host_free(world->ctx, all, bytes);
    return s;
}
