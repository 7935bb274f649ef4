#define _GNU_SOURCE
#include "parallel/launch.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/system.h"

int tg_launch_open(tg_launch *l, int n) {
    const char *why;
    *l = (tg_launch){.n = n, .fd = -1};
    if (n < 1 || n > TG_MAX_RANKS) return EINVAL;
    l->fd = tg_region_file(n);
    if (l->fd < 0) return errno;
    l->region = tg_region_map(l->fd, false, &why);
    if (l->region) return 0;
    close(l->fd);
    return ENOMEM;
}

void tg_launch_close(tg_launch *l) {
    if (l->region) tg_region_unmap(l->region, false);
    if (l->fd >= 0) close(l->fd);
    *l = (tg_launch){.fd = -1};
}

static bool is_ours(const char *variable) {
    return !strncmp(variable, TG_LAUNCH_FD "=", sizeof TG_LAUNCH_FD) ||
           !strncmp(variable, TG_LAUNCH_RANK "=", sizeof TG_LAUNCH_RANK) ||
           !strncmp(variable, TG_LAUNCH_SIZE "=", sizeof TG_LAUNCH_SIZE);
}

int tg_launch_spawn(const tg_launch *l, int rank, char *const *argv, pid_t *pid) {
    enum { OURS = 3, LENGTH = 48 };
    char ours[OURS][LENGTH];
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    tg_allocator a = tg_system_allocator();
    size_t bytes = (n + OURS + 1) * sizeof(char *);
    char **variables = a.alloc(a.user, bytes, sizeof(char *));
    if (!variables) return ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (!is_ours(environ[i])) variables[kept++] = environ[i];
    snprintf(ours[0], LENGTH, TG_LAUNCH_FD "=%d", l->fd);
    snprintf(ours[1], LENGTH, TG_LAUNCH_RANK "=%d", rank);
    snprintf(ours[2], LENGTH, TG_LAUNCH_SIZE "=%d", l->n);
    for (int i = 0; i < OURS; i++) variables[kept++] = ours[i];
    variables[kept] = NULL;
    int error = posix_spawnp(pid, argv[0], NULL, NULL, argv, variables);
    a.free(a.user, variables, bytes);
    return error;
}

void tg_launch_ended(const tg_launch *l, int rank, int wait_status) {
    tg_card *card = &l->region->card[rank];
    char text[96];
    size_t at = 0;
    int state = atomic_load_explicit(&card->state, memory_order_acquire);
    if (state == TG_RANK_RETURNED || atomic_load_explicit(&card->status, memory_order_acquire) != TG_OK)
        return; /* it has spoken for itself */
    if (WIFSIGNALED(wait_status))
        tg_text(text, sizeof text, &at, "its process was killed by signal %d", WTERMSIG(wait_status));
    else
        tg_text(text, sizeof text, &at, "its process has ended with exit status %d", WEXITSTATUS(wait_status));
    tg_box_write(&card->failure, text);
    atomic_store_explicit(&card->status, TG_ERR_REMOTE, memory_order_relaxed);
    atomic_store_explicit(&card->cause, -1, memory_order_relaxed);
    if (state == TG_RANK_AWAITED) atomic_store_explicit(&card->state, TG_RANK_RETURNED, memory_order_release);
}
