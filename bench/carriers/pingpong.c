/* Measures a library that carries messages between two processes of this machine: half the time of a round trip, and
 * the bytes a second of a stream of messages of 128 KiB, of which two are in flight. Prints the medians of `ROUNDS`
 * rounds. `pingpong WHERE killed` instead ends one process by SIGKILL while the other waits for its message, and prints
 * what the library says of that. bench/carriers/run.py runs all libraries in turn. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "carrier.h"

enum { ROUNDS = 5, SHORT_TRIPS = 1000, LONG_TRIPS = 100, STREAM = 500, PATIENCE = 10 /* seconds */ };

static int link_fd;      /* to the other process */
static double killed_at; /* when the other process ended */
static char page[2][LONGEST];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void swap_bytes(const void *mine, void *theirs, size_t n) {
    if (write(link_fd, mine, n) != (ssize_t)n || recv(link_fd, theirs, n, MSG_WAITALL) != (ssize_t)n)
        lost("the other process has ended at the start");
}

void lost(const char *why) {
    printf("reported after %.3f s: %s\n", killed_at ? now() - killed_at : 0, why);
    fflush(stdout);
    _exit(3);
}

static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

static double median(double *v) {
    qsort(v, ROUNDS, sizeof *v, by_value);
    return v[ROUNDS / 2];
}

/* Returns microseconds of one way. */
static double trips(int me, size_t n, int count) {
    double begun = now();
    for (int i = 0; i < count; i++)
        for (int turn = 0; turn < 2; turn++) {
            if (turn == me) {
                carrier_send(page[0], n);
                carrier_flush();
            } else {
                carrier_receive(page[1], n);
            }
        }
    return 1e6 * (now() - begun) / (2 * count);
}

/* Returns bytes a second. */
static double stream(int me) {
    char done = 1;
    double begun = now();
    for (int i = 0; i < STREAM; i++) {
        if (me == 0) carrier_send(page[i % 2], LONGEST);
        if (me == 0 && i % 2) carrier_flush();
        if (me) carrier_receive(page[1], LONGEST);
    }
    if (me) carrier_send(&done, 1), carrier_flush();
    if (!me) carrier_receive(&done, 1);
    return (double)STREAM * LONGEST / (now() - begun);
}

static void measure(int me) {
    double few[ROUNDS], many[ROUNDS], speed[ROUNDS];
    trips(me, 8, SHORT_TRIPS / 10);
    for (int r = 0; r < ROUNDS; r++) {
        few[r] = trips(me, 8, SHORT_TRIPS);
        many[r] = trips(me, LONGEST, LONG_TRIPS);
        speed[r] = stream(me);
    }
    if (me == 0) printf("%.1f %.1f %.2f\n", median(few), median(many), median(speed) * 1e-9);
    fflush(stdout);
}

/* The pause lets threads of the library send what was handed over before. */
static void kill_one(int me) {
    const struct timespec pause = {.tv_nsec = 200000000};
    alarm(PATIENCE);
    trips(me, 8, 10);
    nanosleep(&pause, NULL);
    killed_at = now();
    if (me) kill(getpid(), SIGKILL);
    carrier_receive(page[1], 8);
    lost("a message came");
}

static void on_alarm(int number) {
    static const char text[] = "not reported within 10 s\n";
    (void)number;
    if (write(1, text, sizeof text - 1) > 0) _exit(4);
}

int main(int argc, char **argv) {
    int fd[2], me = 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    pid_t child = 0;
    signal(SIGALRM, on_alarm);
    if (rank) {
        me = atoi(rank);
    } else {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0 || (child = fork()) < 0) return 1;
        me = child == 0;
        link_fd = fd[me];
        close(fd[!me]);
    }
    carrier_open(me, argc > 1 ? argv[1] : "");
    memset(page, 1, sizeof page);
    if (argc > 2 && !strcmp(argv[2], "killed"))
        kill_one(me);
    else
        measure(me);
    if (!rank) { /* neither ends before the other is done */
        char byte = 0;
        swap_bytes(&byte, &byte, 1);
        if (me) _exit(0);
        waitpid(child, NULL, 0);
        _exit(0);
    }
    exit(0);
}
