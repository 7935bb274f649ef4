/* tapegrad run: starts a program as N processes that are ranks of one node, passes signals on to them, and waits until
 * all have ended. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "common/program.h"
#include "common/interrupts.h"
#include "common/spawn.h"

enum { MAX_PROCESSES = 256 };

/* `grace`: the seconds that the other ranks have to end by themselves after one has failed. After that they get
 * SIGTERM. `last_grace`: the seconds from SIGTERM to SIGKILL. */
static const double grace = 15, last_grace = 5;

/* The ranks that were started. No rank is reaped until all have ended, so that no other process can get the id of its
 * process group, to which signals are sent. */
typedef struct team {
    tg_launch launch;
    int n, alive;
    pid_t pid[MAX_PROCESSES]; /* also the id of the rank's process group; 0: it was not started */
    bool ended[MAX_PROCESSES];
    int status;              /* exit status: that of the first rank that was killed, or else of the first that failed */
    double failed_at;        /* time at which the first rank failed; 0: none has */
    bool lost;               /* a signal ended a rank before all were sent SIGTERM; other ranks may fail as a result */
    bool terminated, killed; /* SIGTERM was sent to all ranks; SIGKILL was sent to all ranks */
} team;

/* For each signal of passed_on, whether it has come and has not been sent to the ranks yet. There is one for each, so
 * that none is lost if another one comes before it is sent. */
static volatile sig_atomic_t signalled[PASSED_ON];
static volatile sig_atomic_t stopped;

static void on_signal(int number) {
    for (int i = 0; i < PASSED_ON; i++)
        if (passed_on[i] == number) signalled[i] = 1;
}

static void on_stop(int number) { stopped = number; }

static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < PASSED_ON; i++) catch_signal(passed_on[i], &a);
    a.sa_handler = on_stop;
    catch_signal(SIGTSTP, &a);
}

/* Signals the process groups of all ranks, including those that have ended, because programs that they started may
 * still run. */
static void send_all(const team *t, int number) {
    for (int i = 0; i < t->n; i++)
        if (t->pid[i]) kill(-t->pid[i], number);
}

/* Records and reports that a rank has ended. */
static void note_end(team *t, int rank, int wait_status) {
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    bool interrupted = code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP;
    t->ended[rank] = true;
    t->alive--;
    tg_launch_ended(&t->launch, rank, wait_status);
    if (!code) return;
    if (WIFSIGNALED(wait_status))
        fail("rank %d was ended by signal %d (%s)", rank, WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else if (!t->failed_at && !interrupted) /* an interrupted rank has printed that itself */
        fail("rank %d ended with status %d", rank, code);
    bool lost = WIFSIGNALED(wait_status) && !t->terminated && !t->lost;
    if (lost || !t->failed_at) t->status = code;
    t->lost |= lost;
    if (!t->failed_at) t->failed_at = seconds_now();
}

/* Returns the status in the form that waitpid gives. */
static int wait_status_of(const siginfo_t *info) {
    return info->si_code == CLD_EXITED ? (info->si_status & 255) << 8 : info->si_status & 127;
}

/* Records the ranks that have ended since the last call. */
static void note_ends(team *t) {
    for (int i = 0; i < t->n; i++) {
        siginfo_t info = {.si_pid = 0};
        if (!t->pid[i] || t->ended[i]) continue;
        if (waitid(P_PID, (id_t)t->pid[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
            note_end(t, i, wait_status_of(&info));
    }
}

/* Ends the ranks that do not end by themselves after one has failed. */
static void end_slow_ranks(team *t) {
    double since = t->failed_at ? seconds_now() - t->failed_at : 0;
    if (since > grace && !t->terminated) {
        t->terminated = true;
        send_all(t, SIGTERM);
    }
    if (since > grace + last_grace && !t->killed) {
        t->killed = true;
        send_all(t, SIGKILL);
    }
}

/* Handles Ctrl-Z: stops the ranks and then the launcher itself. When the shell's fg or bg continues the launcher, the
 * launcher continues the ranks. */
static void stop(const team *t) {
    stopped = 0;
    send_all(t, SIGSTOP);
    raise(SIGSTOP);
    send_all(t, SIGCONT);
}

/* Kills processes that the ranks have started and left running, and then reaps the ranks. */
static void end_groups(const team *t) {
    send_all(t, SIGKILL);
    for (int i = 0; i < t->n; i++)
        if (t->pid[i]) waitpid(t->pid[i], NULL, 0);
}

/* Sends the ranks the signals that have come. Each is forgotten before it is sent, so that one that comes meanwhile is
 * sent by the next call. */
static void pass_signals(const team *t) {
    for (int i = 0; i < PASSED_ON; i++) {
        if (!signalled[i]) continue;
        signalled[i] = 0;
        send_all(t, passed_on[i]);
    }
}

/* Waits until all ranks have ended, and passes signals on to them. Returns the exit status. */
static int watch(team *t) {
    const struct timespec interval = {.tv_nsec = 5000000};
    while (t->alive) {
        note_ends(t);
        end_slow_ranks(t);
        pass_signals(t);
        if (stopped) stop(t);
        if (t->alive) nanosleep(&interval, NULL);
    }
    end_groups(t);
    return t->status;
}

/* Starts the ranks and waits for them. Returns the exit status. */
static int start(team *t, char *const *argv) {
    int error = tg_launch_open(&t->launch, t->n);
    if (error) return fail("there is no shared memory for %d ranks: %s", t->n, strerror(error));
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
            "Starts PROGRAM as N processes, ranks 0 to N - 1 on this node, that communicate\n"
            "through shared memory (tg_comm_launched_new). If a rank is killed or fails, the\n"
            "others get an error; those that have not ended %d seconds later are terminated.\n"
            "The exit status is 0, or that of the first rank that was killed or, if none\n"
            "was, of the first that failed. When all ranks have ended, the processes that\n"
            "they started and left running are killed.\n",
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
            fail("expected -- and a program after -n %ld", n);
        else
            fail("expected -n N as the first option, with N from 1 to %d", MAX_PROCESSES);
        return usage(stderr);
    }
    team *t = calloc(1, sizeof *t);
    if (!t) return fail("no memory");
    t->n = (int)n;
    int status = start(t, argv + 3);
    free(t);
    return status;
}
