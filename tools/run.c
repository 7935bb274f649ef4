/* tapegrad run: a program as N processes that are ranks of one node. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "program.h"
#include "spawn.h"

enum { MAX_PROCESSES = 256 };

/* Seconds that the others have to end by themselves when one has failed, and from SIGTERM to SIGKILL. */
static const double grace = 15, last_grace = 5;

typedef struct team {
    tg_launch launch;
    int n, alive;
    pid_t pid[MAX_PROCESSES]; /* 0: it has ended */
    int status;               /* exit status: of the first rank that was killed, or else of the first that failed */
    double failed_at;         /* 0: none has */
    bool lost;                /* a rank was killed, by others than this launcher: peers that fail fail because of it */
    bool told, killed;
} team;

static volatile sig_atomic_t signalled;

/* A terminal's interrupt reaches the ranks by itself; what a process sends here alone is passed on. */
static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code == SI_USER || number != SIGINT) signalled = number;
}

static void catch_signals(void) {
    struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&a.sa_mask);
    catch_signal(SIGINT, &a);
    catch_signal(SIGTERM, &a);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void send_all(const team *t, int number) {
    for (int i = 0; i < t->n; i++)
        if (t->pid[i]) kill(t->pid[i], number);
}

static void note_end(team *t, int rank, int wait_status) {
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    t->pid[rank] = 0;
    t->alive--;
    tg_launch_ended(&t->launch, rank, wait_status);
    if (!code) return;
    if (WIFSIGNALED(wait_status))
        fail("rank %d was ended by signal %d (%s)", rank, WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else if (!t->failed_at && code != 128 + SIGINT && code != 128 + SIGTERM) /* who was interrupted has said so */
        fail("rank %d ended with status %d", rank, code);
    bool lost = WIFSIGNALED(wait_status) && !t->told && !t->lost;
    if (lost || !t->failed_at) t->status = code;
    t->lost |= lost;
    if (!t->failed_at) t->failed_at = now();
}

static void reap(team *t) {
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;)
        for (int i = 0; i < t->n; i++)
            if (t->pid[i] == pid) note_end(t, i, wait_status);
}

/* Who does not end by itself after another has failed is ended. */
static void press(team *t) {
    double since = t->failed_at ? now() - t->failed_at : 0;
    if (since > grace && !t->told) {
        t->told = true;
        send_all(t, SIGTERM);
    }
    if (since > grace + last_grace && !t->killed) {
        t->killed = true;
        send_all(t, SIGKILL);
    }
}

static int watch(team *t) {
    const struct timespec nap = {.tv_nsec = 5000000};
    while (t->alive) {
        reap(t);
        press(t);
        if (signalled) {
            send_all(t, signalled);
            signalled = 0;
        }
        if (t->alive) nanosleep(&nap, NULL);
    }
    return t->status;
}

static int start(team *t, char *const *argv) {
    int error = tg_launch_open(&t->launch, t->n);
    if (error) return fail("no shared memory for %d ranks: %s", t->n, strerror(error));
    catch_signals();
    for (int i = 0; i < t->n; i++, t->alive++)
        if ((error = spawn_rank(&t->launch, i, argv, &t->pid[i]))) {
            t->pid[i] = 0;
            send_all(t, SIGKILL);
            watch(t);
            tg_launch_close(&t->launch);
            return fail("cannot start '%s': %s", argv[0], strerror(error));
        }
    int status = watch(t);
    tg_launch_close(&t->launch);
    return status;
}

static int usage(FILE *to) {
    fprintf(to,
            "usage: tapegrad run -n N -- PROGRAM [ARGUMENT...]\n\n"
            "Starts PROGRAM as N processes, ranks 0 to N - 1 of this node, which meet in shared memory\n"
            "(tg_comm_launched_new). Ends with 0, or the status of the first rank that was killed, or failed; the\n"
            "others are told of it, and ended after %d seconds.\n",
            (int)grace);
    return to == stdout ? 0 : 2;
}

int run_run(int argc, char **argv) {
    char *end = NULL;
    if (argc > 0 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) return usage(stdout);
    long n = argc > 1 && !strcmp(argv[0], "-n") ? strtol(argv[1], &end, 10) : 0;
    bool counted = end && !*end && n >= 1 && n <= MAX_PROCESSES;
    if (!counted || argc < 4 || strcmp(argv[2], "--") != 0) {
        if (counted)
            fail("expected -- and a program behind -n %ld", n);
        else
            fail("expected -n N, N from 1 to %d", MAX_PROCESSES);
        return usage(stderr);
    }
    team *t = calloc(1, sizeof *t);
    if (!t) return fail("no memory");
    t->n = (int)n;
    int status = start(t, argv + 3);
    free(t);
    return status;
}
