/* Waits for signals on a thread of its own, because a handler may not list a directory, and because the program may be
 * waiting for standard input (cache_guard.h). */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/program.h"
#include "data/cache_guard.h"
#include "data/corpus.h"

enum { WAKE = SIGURG }; /* wakes the thread, so that it reads `ended`; programs ignore this signal by default */

static const char *guarded; /* NULL: there is no guard */
static atomic_bool ended;   /* the thread must end */
static pthread_t guard;
static sigset_t awaited, blocked_before;

/* Fills `awaited` with WAKE and those of the signals that the program does not ignore. */
static void choose_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction was;
    sigemptyset(&awaited);
    sigaddset(&awaited, WAKE);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaddset(&awaited, numbers[i]);
}

/* Ends the program by the signal, after giving the signal its default action. */
static void end_by(int number) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    signal(number, SIG_DFL);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
}

/* The guard's thread. Tries to remove the directory TRIES times, because other threads may be adding files to it; once
 * it is gone, they cannot. */
static void *wait_for_signal(void *unused) {
    enum { TRIES = 1000 };
    int number;
    (void)unused;
    do {
        if (atomic_load(&ended) || sigwait(&awaited, &number) != 0) return NULL;
    } while (number == WAKE);
    for (int i = 0; i < TRIES && access(guarded, F_OK) == 0; i++) corpus_remove_cache(guarded);
    end_by(number);
    return NULL;
}

bool guard_begin(const char *cache) {
    choose_signals();
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &awaited, &blocked_before);
    guarded = cache;
    atomic_store(&ended, false);
    int error = pthread_create(&guard, NULL, wait_for_signal, NULL);
    if (!error) return true;
    guarded = NULL;
    pthread_sigmask(SIG_SETMASK, &blocked_before, NULL);
    return fail("cannot start a thread: %s", strerror(error)), false;
}

void guard_end(void) {
    if (!guarded) return;
    atomic_store(&ended, true);
    pthread_kill(guard, WAKE);
    pthread_join(guard, NULL);
    guarded = NULL;
    pthread_sigmask(SIG_SETMASK, &blocked_before, NULL);
}
