/* The launcher's side of ranks that are processes: the file that the ranks share, the end of each process, and the
 * flight recorder of all ranks. */
#include "comm/shm/launch.h"

#include "base/text.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

int tg_launch_open(tg_launch *l, int n) {
    const char *why;
    *l = (tg_launch){.n = n, .fd = -1};
    if (n < 1 || n > TG_MAX_RANKS) return EINVAL;
    l->fd = tg_region_file(n);
    if (l->fd < 0) return errno;
    l->region = tg_region_map(l->fd, false, &why);
    if (l->region) return 0;
    tg_launch_close(l);
    return ENOMEM;
}

void tg_launch_close(tg_launch *l) {
    if (l->region) tg_region_unmap(l->region, false);
    if (l->fd >= 0) close(l->fd);
    *l = (tg_launch){.fd = -1};
}

void tg_launch_ended(const tg_launch *l, int rank, int wait_status) {
    tg_rank_slot *rank_slot = &l->region->rank_slot[rank];
    char text[96];
    size_t at = 0;
    int state = atomic_load_explicit(&rank_slot->state, memory_order_acquire);
    if (state == TG_RANK_RETURNED || atomic_load_explicit(&rank_slot->status, memory_order_acquire) != TG_OK)
        return; /* the rank has reported its own end */
    if (WIFSIGNALED(wait_status))
        tg_text(text, sizeof text, &at, "its process was killed by signal %d", WTERMSIG(wait_status));
    else
        tg_text(text, sizeof text, &at, "its process has ended with exit status %d", WEXITSTATUS(wait_status));
    tg_shared_text_write(&rank_slot->failure, text);
    atomic_store_explicit(&rank_slot->cause, -1, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->status, TG_ERR_REMOTE, memory_order_release);
    if (state == TG_RANK_AWAITED) atomic_store_explicit(&rank_slot->state, TG_RANK_RETURNED, memory_order_release);
}

size_t tg_launch_record(const tg_launch *l, tg_format format, char *buf, size_t n) {
    tg_recorder b = {.rank_slot = l->region->rank_slot, .n = l->n, .size = l->n, .me = -1};
    return tg_recorder_print(&b, NULL, format, buf, n);
}
