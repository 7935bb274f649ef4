/* Modules, models, optimizers, generation, files, loaders, tokenizers and tools without enough memory. Each case is run
 * again and again, with another allocation missing each time: of the library's own objects, of tensors, or of the C
 * library; once, or from then on. A run must succeed or end with TG_ERR_MEMORY, leave no file that an undisturbed run
 * does not have, and leak nothing. After the error the step, or all of the case, must succeed in the same context, with
 * the bits of an undisturbed run. TG_LONG tries more of the allocations, and TG_FAULTS says how many of each kind.
 *
 * The first argument is the only case to run, and the second one its only variant. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory/allocations.h"
#include "memory/faults.h"
#include "memory/files.h"

static const char *const kinds[FAULT_KINDS] = {
    [FAULT_NONE] = "no fault",       [FAULT_HOST] = "allocation",
    [FAULT_HOST_ALL] = "allocations from", [FAULT_TENSORS] = "tensors from allocation",
    [FAULT_LIMIT] = "a limit of bytes",  [FAULT_C] = "malloc",
    [FAULT_C_ALL] = "mallocs from",
};

/* A case, and what an undisturbed run of it does. */
typedef struct subject {
    const memory_case *c;
    const char *variant;
    uint64_t digest;
    int64_t live, peak, calls[FAULT_KINDS];
    file_set files;
    int refused; /* runs with an error */
    bool good;   /* no run has gone wrong yet */
} subject;

static int passed, failed;

static bool verdict(subject *s, fault f, bool ok, const char *format, ...) TG_PRINTF(4, 5);
static bool verdict(subject *s, fault f, bool ok, const char *format, ...) {
    if (ok) return true;
    va_list ap;
    s->good = false;
    printf("FAIL %s%s%s, %s %lld: ", s->c->name, s->variant ? " " : "", s->variant ? s->variant : "", kinds[f.kind],
           (long long)f.at);
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    puts("");
    return false;
}

static bool is_fine(subject *s, fault f, const trial *r, const char *when) {
    return verdict(s, f, tg_ctx_status(r->ctx) == TG_OK, "%s: %s: %s", when, tg_status_name(tg_ctx_status(r->ctx)),
                   tg_ctx_message(r->ctx));
}

/* ---- The parts of a run ---- */

static void open_case(trial *r, const memory_case *c) {
    tg_rng_set(r->ctx, NULL, &(tg_rng){.seed = 7});
    tg_draws_step(r->ctx, 1);
    if (c->grid) {
        r->self = tg_comm_self_new(r->ctx);
        r->p = tg_parallel_new(r->self, NULL);
    }
    if (c->open) c->open(r);
}

static void step_case(trial *r, const memory_case *c) {
    tg_draws_step(r->ctx, 2);
    c->step(r);
}

static void close_case(trial *r, const memory_case *c) {
    if (c->close) c->close(r);
    tg_tape_reset(r->t);
    if (c->grid) {
        tg_parallel_free(r->p);
        tg_comm_free(r->self);
    }
    memset(r->state, 0, c->bytes);
}

/* Compares the results of a step with those of an undisturbed run. */
static void compare(subject *s, fault f, trial *r, const char *when) {
    r->digest = 0;
    if (s->c->note) s->c->note(r);
    if (is_fine(s, f, r, when)) verdict(s, f, r->digest == s->digest, "%s: other results", when);
}

/* After an error: only the step again, or all of the case. `before` is the random stream before the step; NULL: the
 * error was before it. */
static void repeat(subject *s, fault f, trial *r, const tg_rng *before) {
    tg_ctx_clear(r->ctx);
    tg_tape_reset(r->t);
    if (before && s->c->grid) tg_parallel_recover(r->p);
    if (before && !s->c->once) {
        tg_rng_set(r->ctx, NULL, before);
        step_case(r, s->c);
        compare(s, f, r, "the step again");
        return;
    }
    close_case(r, s->c);
    is_fine(s, f, r, "freeing after the error");
    files_clear(r->dir);
    open_case(r, s->c);
    step_case(r, s->c);
    compare(s, f, r, "the case again");
}

static int64_t live_bytes(tg_ctx *ctx, int64_t *peak) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    *peak = m.peak + m.workspace;
    return m.live - m.by_category[TG_MEM_BUFFER];
}

/* Files need not reach the disk here. */
static int unsynced(void *user, int fd) {
    (void)user, (void)fd;
    return 0;
}
static const tg_file_ops unsynced_files = {.size = sizeof unsynced_files, .fsync = unsynced};

/* Runs a case with a fault. Its first two runs have none, and show what it does: `first` looks at files, which
 * allocates too, so the second one counts. */
static void attempt(subject *s, fault f, bool first) {
    const memory_case *c = s->c;
    int descriptors = files_descriptors();
    trial r = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = fault_allocator(), .files = &unsynced_files)),
               .name = s->variant};
    tg_rng before;
    int64_t peak;
    r.t = tg_tape_new(r.ctx);
    r.dir = files_new();
    r.state = calloc(1, c->bytes + 1);
    fault_begin(r.ctx, f);
    open_case(&r, c);
    bool opened = tg_ctx_status(r.ctx) == TG_OK;
    if (first) files_add(&s->files, r.dir);
    tg_rng_get(r.ctx, NULL, &before);
    step_case(&r, c);
    for (int k = 0; f.kind == FAULT_NONE && k < FAULT_KINDS; k++) s->calls[k] = fault_calls((fault_kind)k);
    bool missing = fault_end();
    tg_status status = tg_ctx_status(r.ctx);
    if (first && c->note && status == TG_OK) c->note(&r), s->digest = r.digest;
    if (first) files_add(&s->files, r.dir);

    verdict(s, f, status == TG_OK || (missing && status == TG_ERR_MEMORY && *tg_ctx_message(r.ctx)), "%s: %s",
            tg_status_name(status), tg_ctx_message(r.ctx));
    const char *odd = files_other(&s->files, r.dir);
    verdict(s, f, !odd, "the file '%s' is not that of an undisturbed run", odd);
    s->refused += status != TG_OK;
    if (status == TG_OK)
        compare(s, f, &r, "after it");
    else
        repeat(s, f, &r, opened ? &before : NULL);
    close_case(&r, c);
    is_fine(s, f, &r, "freeing");
    int64_t live = live_bytes(r.ctx, &peak);
    if (first) s->live = live, s->peak = peak;
    verdict(s, f, live <= s->live, "%lld bytes of tensors are left, %lld without a fault", (long long)live,
            (long long)s->live);
    tg_tape_free(r.t);
    tg_ctx_free(r.ctx);
    verdict(s, f, fault_held() == 0, "%lld blocks leak", (long long)fault_held());
    verdict(s, f, files_descriptors() == descriptors, "%d descriptors leak", files_descriptors() - descriptors);
    free(r.state);
    *(s->good ? &passed : &failed) += 1;
}

/* ---- The faults of a case ---- */

/* Returns how many faults of each kind a case gets at most. */
static int64_t most_faults(void) {
    const char *set = getenv("TG_FAULTS");
    return set ? strtoll(set, NULL, 10) : getenv("TG_TEST_QUICK") ? 3 : getenv("TG_LONG") ? 200 : 15;
}

enum { FEW = 150 }; /* a case with few allocations is small, and gets four times as many faults */

/* Tries faults that are spread over all allocations; those of different kinds lie between each other. */
static void try_kind(subject *s, fault_kind k) {
    int64_t n = k == FAULT_LIMIT ? s->peak : s->calls[k], most = most_faults() * (n <= FEW ? 4 : 1);
    int64_t points = n < most ? n : most;
    for (int64_t i = 0; i < points && s->good; i++)
        attempt(s, (fault){k, 1 + (n * i + n * k / FAULT_KINDS) / points % n}, false);
}

#ifdef TG_MEMCHECK
enum { C_CALLS_FAIL = 0 }; /* valgrind replaces the C library's functions, so those of this program are not called */
#else
enum { C_CALLS_FAIL = 1 };
#endif

static void try_case(const memory_case *c, const char *variant) {
    subject s = {.c = c, .variant = variant, .good = true};
    printf("%s%s%s: ", c->name, variant ? " " : "", variant ? variant : "");
    fflush(stdout);
    attempt(&s, (fault){FAULT_NONE, 0}, true);
    if (s.good) attempt(&s, (fault){FAULT_NONE, 0}, false);
    for (int k = FAULT_NONE + 1; k < FAULT_KINDS; k++) try_kind(&s, (fault_kind)k);
    if (s.good && most_faults() > 0 && (C_CALLS_FAIL || s.calls[FAULT_HOST] > 0))
        verdict(&s, (fault){FAULT_NONE, 0}, s.refused > 0, "no run lacked memory") ? passed++ : failed++;
    printf("%lld allocations, %lld mallocs, %lld bytes: %d errors\n", (long long)s.calls[FAULT_HOST],
           (long long)s.calls[FAULT_C], (long long)s.peak, s.refused);
}

static void try_variants(const memory_case *c, const char *only) {
    if (!c->variant) try_case(c, NULL);
    for (int i = 0; c->variant && c->variant(i); i++)
        if (!only || !strcmp(only, c->variant(i))) try_case(c, c->variant(i));
}

int main(int argc, char **argv) {
    const memory_cases *const tables[] = {&module_cases,     &model_cases, &training_cases, &parallel_cases,
                                          &generation_cases, &file_cases,  &data_cases,     &text_cases,
                                          &tool_cases};
    files_open();
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (int k = 0; k < tables[i]->n; k++)
            if (argc < 2 || !strcmp(tables[i]->rows[k].name, argv[1]))
                try_variants(tables[i]->rows + k, argc > 2 ? argv[2] : NULL);
    files_close();
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed ? EXIT_FAILURE : EXIT_SUCCESS;
}
