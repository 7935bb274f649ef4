/* Compares the options, builds, environments and files of ranks (start.h). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/device.h>

#include "common/start.h"

/* ---- The list ---- */

/* Appends text and its zero byte to the list. */
static void append(start_facts *f, const char *text) {
    size_t n = strlen(text) + 1;
    if (f->n + n > f->capacity) {
        size_t capacity = 2 * (f->n + n) + 4096;
        char *more = f->failed ? NULL : realloc(f->text, capacity);
        if (!more) {
            f->failed = true;
            return;
        }
        f->text = more;
        f->capacity = capacity;
    }
    memcpy(f->text + f->n, text, n);
    f->n += n;
}

void facts_add(start_facts *f, fact_kind kind, const char *name, const char *value) {
    const char digit[2] = {(char)('0' + (int)kind), 0};
    append(f, digit);
    append(f, name);
    append(f, value);
}

void facts_add_sum(start_facts *f, fact_kind kind, const char *name, uint64_t sum) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, sum);
    facts_add(f, kind, name, text);
}

static void add_options(start_facts *f, const command *c, const void *options) {
    for (int i = 0; i < c->n_options; i++) {
        char name[64], value[4096];
        snprintf(name, sizeof name, "--%s", c->options[i].name);
        option_text(&c->options[i], options, value, sizeof value);
        facts_add(f, FACT_OPTION, name, value);
    }
}

/* Returns a checksum of the file; 0: it is empty or cannot be read. */
static uint64_t sum_of_file(const char *path) {
    enum { CHUNK = 1 << 20 };
    FILE *f = path ? fopen(path, "re") : NULL;
    unsigned char *chunk = f ? malloc(CHUNK) : NULL;
    uint64_t sum = 0;
    for (size_t n; chunk && (n = fread(chunk, 1, CHUNK, f)) > 0;)
        sum = (sum ^ tg_checksum(chunk, n)) * 0x9E3779B97F4A7C15u;
    free(chunk);
    if (f) fclose(f);
    return sum;
}

/* Returns the path of the file that this address was loaded from; NULL: it is unknown. */
static const char *file_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname && strchr(info.dli_fname, '/') ? info.dli_fname : NULL;
}

/* Returns a checksum of the program's file and, where they are files of their own, of those of the library and of the
 * context's device. */
static uint64_t sum_of_build(const tg_ctx *ctx) {
    const void *version = NULL;
    const char *(*function)(void) = tg_version;
    memcpy(&version, &function, sizeof version);
    const char *library = file_of(version), *device = file_of(tg_ctx_ops(ctx));
    uint64_t sum = sum_of_file("/proc/self/exe");
    if (library) sum = sum * 0x9E3779B97F4A7C15u + sum_of_file(library);
    if (device && (!library || strcmp(device, library) != 0)) sum = sum * 0x9E3779B97F4A7C15u + sum_of_file(device);
    return sum;
}

void facts_add_start(start_facts *f, const command *c, const void *options, const tg_ctx *ctx) {
    static const char *const variables[] = {"TG_MPI_NODES", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE",
                                            "CUBLAS_WORKSPACE_CONFIG"};
    facts_add(f, FACT_BUILD, "the version of tapegrad", tg_version());
    facts_add_sum(f, FACT_BUILD, "the checksum of the program's files", sum_of_build(ctx));
    facts_add(f, FACT_BUILD, "the set of kernels", tg_ctx_isa(ctx));
    add_options(f, c, options);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        facts_add(f, FACT_ENVIRONMENT, variables[i], value ? value : "");
    }
}

/* ---- The comparison ---- */

/* Returns the string at *at, and moves *at to the next string. Returns "" at the end. */
static const char *next(const char **at, const char *end) {
    const char *text = *at;
    if (text >= end) return "";
    *at += strlen(text) + 1;
    return text;
}

static const char *or_none(const char *value) { return *value ? value : "not given"; }

/* Compares this rank's list (mine, n bytes) with rank 0's. Returns false after printing the first difference. */
static bool compare(const char *mine, size_t n, const char *theirs, size_t m) {
    static const char *const remedies[] = {
        [FACT_OPTION] = "start all ranks with the same options",
        [FACT_BUILD] = "start all ranks from the same build, on processors of one kind",
        [FACT_ENVIRONMENT] = "start all ranks with the same environment",
        [FACT_FILE] = "let all ranks read the same files",
    };
    const char *end = mine + n, *their_end = theirs + m;
    while (mine < end && theirs < their_end) {
        const char *kind = next(&mine, end), *name = next(&mine, end), *value = next(&mine, end);
        const char *their_kind = next(&theirs, their_end), *their_name = next(&theirs, their_end);
        const char *their_value = next(&theirs, their_end);
        if (strcmp(kind, their_kind) != 0 || strcmp(name, their_name) != 0) break;
        if (!strcmp(value, their_value)) continue;
        unsigned k = (unsigned)(kind[0] - '0');
        return fail("%s is %s on this rank, but %s on rank 0; %s", name, or_none(value), or_none(their_value),
                    remedies[k <= FACT_FILE ? k : FACT_BUILD]),
               false;
    }
    if (mine >= end && theirs >= their_end) return true;
    return fail("this rank has other options than rank 0; start all ranks from the same build"), false;
}

static bool no_memory(void) { return fail("no memory to compare the ranks' options"), false; }

/* Sends rank 0's list to all ranks. Returns a copy of it, of *n bytes, which the caller frees; NULL on all ranks if one
 * of them has no memory, after that rank has printed it, or after an error of the context. */
static char *share(const start_facts *f, tg_ctx *ctx, tg_comm *world, size_t *n) {
    int64_t bytes = (int64_t)f->n;
    if (!broadcast_from_rank_0(ctx, world, &bytes, 1)) return NULL;
    *n = (size_t)bytes;
    int words = (int)((bytes + 7) / 8);
    int64_t *text = f->failed ? NULL : calloc((size_t)words + 1, sizeof *text);
    double without = !text && !no_memory();
    sum_over_ranks(ctx, world, &without, 1);
    if (text && is_chief(world)) memcpy(text, f->text, f->n);
    if (check(ctx) && without == 0 && broadcast_from_rank_0(ctx, world, text, words)) return (char *)text;
    free(text);
    return NULL;
}

/* Compares the lists of ranks that are processes. */
static bool processes_agree(const start_facts *f, tg_ctx *ctx, tg_comm *world) {
    size_t n = 0;
    char *theirs = share(f, ctx, world, &n);
    if (!theirs) return false;
    double differing = !compare(f->text, f->n, theirs, n);
    free(theirs);
    sum_over_ranks(ctx, world, &differing, 1);
    return check(ctx) && differing == 0;
}

bool facts_agree(start_facts *f, tg_ctx *ctx, tg_comm *world) {
    bool apart = tg_comm_size(world) > 1 && strcmp(tg_comm_transport(world), "threads") != 0;
    bool good = apart ? processes_agree(f, ctx, world) : !f->failed || no_memory();
    free(f->text);
    *f = (start_facts){0};
    return good;
}
