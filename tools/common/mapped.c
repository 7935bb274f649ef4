/* Handles SIGBUS, which the system sends for a page of a mapped file that was truncated. */
#include <signal.h>
#include <stdatomic.h>

#include "common/mapped.h"

enum { MOST = 1024 }; /* contexts: the most ranks of one process */

static _Atomic(tg_ctx *) watched[MOST];

/* Lets the context that has mapped the address go on. A signal with another cause ends the program, when the
 * interrupted instruction runs again. */
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    for (int i = 0; i < MOST; i++)
        if (tg_mapping_fault(atomic_load(&watched[i]), info->si_addr)) return;
    signal(number, SIG_DFL);
}

/* Replaces the first element that is `old` by `new`. */
static void replace(tg_ctx *old, tg_ctx *new) {
    for (int i = 0; i < MOST; i++) {
        tg_ctx *is = old;
        if (atomic_compare_exchange_strong(&watched[i], &is, new)) return;
    }
}

void mapped_watch(tg_ctx *ctx) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigemptyset(&a.sa_mask);
    replace(NULL, ctx);
    sigaction(SIGBUS, &a, NULL);
}

void mapped_unwatch(tg_ctx *ctx) { replace(ctx, NULL); }
