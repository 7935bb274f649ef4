/* fuzz_NAME [--runs N] [--from I] [--write DIR] [FILE...]
 *
 * Runs a target on its seeds, on the files, and on N mutations of both, from number I on: the same for the same
 * numbers. --write writes the inputs into a directory instead, where libFuzzer begins. Files without --runs are all
 * that is run. */
#include <signal.h>
#include <unistd.h>

#include "fuzz.h"

enum { SEEDS = 256 };

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

static input pool[SEEDS];
static int n_pool;
static uint64_t mutations; /* state of LLVMFuzzerMutate */

/* What is being run, for the message if the process ends. */
static char running[64];

static void report(void) {
    size_t n = write(STDERR_FILENO, running, strlen(running)) < 0 ? 1 : 0;
    (void)n;
}

static void report_and_end(int number) {
    report();
    signal(number, SIG_DFL);
    raise(number);
}

/* Functions of the sanitizers, if they are linked. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static const char *dir; /* directory of --write */

static void write_input(const uint8_t *data, size_t size, const char *kind, long long number) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s-%03lld", dir, kind, number);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        fuzz_fail(__FILE__, __LINE__, "fwrite", "cannot write '%s'", path);
}

static void run(const uint8_t *data, size_t size, const char *kind, long long number) {
    if (dir) {
        write_input(data, size, kind, number);
        return;
    }
    snprintf(running, sizeof running, "the input was %s %lld\n", kind, number);
    uint8_t *own = malloc(size ? size : 1); /* of exactly this size, so that sanitizers see accesses beyond it */
    if (size) memcpy(own, data, size);
    LLVMFuzzerTestOneInput(own, size);
    free(own);
}

static void add(const uint8_t *data, size_t size) {
    if (n_pool == SEEDS) fuzz_fail(__FILE__, __LINE__, "n_pool < SEEDS", "more than %d seeds", SEEDS);
    pool[n_pool] = (input){malloc(size ? size : 1), size};
    memcpy(pool[n_pool++].data, data, size);
}

static void add_file(const char *path) {
    uint8_t data[FUZZ_MAX];
    FILE *f = fopen(path, "rb");
    if (!f) fuzz_fail(__FILE__, __LINE__, "fopen", "cannot read '%s'", path);
    add(data, fread(data, 1, sizeof data, f));
    fclose(f);
}


size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) {
    return fuzz_mutate(data, size, max, &mutations);
}

/* Makes mutation number i: a seed, sometimes with the end of another one, mutated a few times. */
static void run_mutation(long long i) {
    uint8_t data[FUZZ_MAX];
    uint64_t state = (uint64_t)i * 0xD1B54A32D192ED03u;
    const input *from = &pool[fuzz_below(&state, (size_t)n_pool)], *other = &pool[fuzz_below(&state, (size_t)n_pool)];
    size_t size = from->size;
    memcpy(data, from->data, size);
    if (!fuzz_below(&state, 8) && size && other->size) {
        size_t head = fuzz_below(&state, size + 1), tail = fuzz_below(&state, other->size);
        size = other->size - tail < FUZZ_MAX - head ? other->size - tail : FUZZ_MAX - head;
        memcpy(data + head, other->data + tail, size);
        size += head;
    }
    mutations = fuzz_random(&state);
    for (size_t k = 1 + fuzz_below(&state, 4); k > 0; k--)
        size = LLVMFuzzerCustomMutator(data, size, FUZZ_MAX, (unsigned)fuzz_random(&state));
    run(data, size, "mutation", i);
}

int main(int argc, char **argv) {
    uint8_t data[FUZZ_MAX];
    long long runs = 0, from = 0;
    for (size_t n; (n = fuzz_seed(n_pool, data, sizeof data)) > 0;) add(data, n);
    int seeds = n_pool;
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (value && !strcmp(argv[i], "--runs")) runs = strtoll(argv[++i], NULL, 10);
        else if (value && !strcmp(argv[i], "--from")) from = strtoll(argv[++i], NULL, 10);
        else if (value && !strcmp(argv[i], "--write")) dir = argv[++i];
        else add_file(argv[i]);
    }
    if (getenv("TG_TEST_QUICK")) runs /= 4;
    signal(SIGABRT, report_and_end);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(report);
    if (runs || n_pool == seeds) seeds = 0;
    for (int i = seeds; i < n_pool && !from; i++) run(pool[i].data, pool[i].size, "seed", i);
    for (long long i = from; i < from + runs; i++) run_mutation(i);
    printf("%lld passed, 0 failed\n", dir ? 0 : (from ? 0 : n_pool - seeds) + runs);
    for (int i = 0; i < n_pool; i++) free(pool[i].data);
    return EXIT_SUCCESS;
}
