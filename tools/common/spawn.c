/* Starts one rank of `tapegrad run`: sets up its environment and signals, and reports errors of the child process
 * before exec. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/interrupts.h"
#include "common/spawn.h"

enum { OURS = 3, LENGTH = 48 }; /* OURS: number of environment variables for a rank; LENGTH: bytes for each */

const int passed_on[PASSED_ON] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static bool is_ours(const char *variable) {
    return !strncmp(variable, TG_LAUNCH_FD "=", sizeof TG_LAUNCH_FD) ||
           !strncmp(variable, TG_LAUNCH_RANK "=", sizeof TG_LAUNCH_RANK) ||
           !strncmp(variable, TG_LAUNCH_SIZE "=", sizeof TG_LAUNCH_SIZE);
}

/* Returns this process's environment with the variables of a rank, which are written to `ours`. The caller frees the
 * array. NULL: no memory. */
static char **environment(const tg_launch *l, int rank, char ours[OURS][LENGTH]) {
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **variables = malloc((n + OURS + 1) * sizeof *variables);
    if (!variables) return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_ours(environ[i])) variables[kept++] = environ[i];
    snprintf(ours[0], LENGTH, TG_LAUNCH_FD "=%d", l->fd);
    snprintf(ours[1], LENGTH, TG_LAUNCH_RANK "=%d", rank);
    snprintf(ours[2], LENGTH, TG_LAUNCH_SIZE "=%d", l->n);
    for (int i = 0; i < OURS; i++) variables[kept++] = ours[i];
    variables[kept] = NULL;
    return variables;
}

/* Resets the signals that the launcher passes on to their defaults, unless they were ignored when it began. */
static void reset_signals(void) {
    struct sigaction a = {.sa_handler = SIG_DFL};
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < PASSED_ON; i++) catch_signal(passed_on[i], &a);
    signal(SIGXFSZ, SIG_DFL); /* main ignores it for this program; exec would pass that on */
}

/* Runs the program in the child. The kernel kills the child when the launcher ends, for whatever reason; if the
 * launcher has ended already, the program is not started. Signals are blocked until their handlers, which are the
 * launcher's, are reset. If exec fails, writes errno to the pipe `report`. */
static void become(char *const *argv, char **variables, const sigset_t *mask, pid_t launcher, int report) {
    reset_signals();
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == launcher) execvpe(argv[0], argv, variables);
    int error = errno;
    if (write(report, &error, sizeof error) < 0) _exit(126);
    _exit(127);
}

/* Returns the errno that the child wrote to the pipe; 0: exec succeeded, which closed the pipe. */
static int read_error(int from) {
    int error = 0;
    ssize_t n;
    do n = read(from, &error, sizeof error);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof error ? error : 0;
}

int spawn_rank(const tg_launch *l, int rank, char *const *argv, pid_t *pid) {
    char ours[OURS][LENGTH];
    int ends[2], error = 0;
    sigset_t all, mask;
    pid_t launcher = getpid();
    char **variables = environment(l, rank, ours);
    if (!variables) return ENOMEM;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        error = errno;
        free(variables);
        return error;
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &mask);
    *pid = fork();
    if (*pid == 0) become(argv, variables, &mask, launcher, ends[1]);
    if (*pid < 0) error = errno;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    close(ends[1]);
    if (!error && (error = read_error(ends[0]))) waitpid(*pid, NULL, 0);
    close(ends[0]);
    free(variables);
    return error;
}
