/* load_time LIBRARY.so: prints the processor time that dlopen of the library takes, and how much memory it adds. Fails
 * above the limit of 5 ms. Each of RUNS processes loads the library once; the first brings its file into the cache and
 * does not count. The least time is compared, because what else runs on the machine can only add to it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 12, SKIPPED = 1 };
static const double limit = 5; /* ms */

typedef struct load {
    double ms, mb; /* ms < 0: dlopen has failed */
} load;

static double processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static double resident_mb(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return 1e-6 * (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static load loaded(const char *path) {
    double memory = resident_mb(), start = processor_ms();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    load l = {processor_ms() - start, resident_mb() - memory};
    if (library) return l;
    fprintf(stderr, "%s\n", dlerror());
    return (load){-1, 0};
}

/* Returns what a new process measures. */
static load in_a_process(const char *path) {
    int ends[2];
    load l = {-1, 0};
    if (pipe(ends)) return l;
    pid_t child = fork();
    if (child == 0) {
        l = loaded(path);
        _exit(write(ends[1], &l, sizeof l) != sizeof l);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &l, sizeof l) != sizeof l) l.ms = -1;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return l;
}

static int by_time(const void *a, const void *b) {
    double x = ((const load *)a)->ms, y = ((const load *)b)->ms;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    load l[RUNS];
    if (argc != 2) return fprintf(stderr, "usage: load_time LIBRARY.so\n"), 2;
    for (int i = 0; i < RUNS; i++) {
        l[i] = in_a_process(argv[1]);
        if (l[i].ms < 0) return fprintf(stderr, "%s could not be loaded\n", argv[1]), 1;
    }
    qsort(l + SKIPPED, RUNS - SKIPPED, sizeof *l, by_time);
    double least = l[SKIPPED].ms, median = l[SKIPPED + (RUNS - SKIPPED) / 2].ms, most = l[RUNS - 1].ms;
    printf("dlopen: %.1f ms of processor time (%.1f to %.1f of %d), %.1f MB more in memory\n", median, least, most,
           RUNS - SKIPPED, l[SKIPPED].mb);
    if (least > limit) return fprintf(stderr, "expected at most %g ms\n", limit), 1;
    return 0;
}
