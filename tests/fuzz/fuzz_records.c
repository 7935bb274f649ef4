/* Takes any bytes as two recorded steps, with the required end: they are refused with a reason, or compared, and each
 * equals itself. tools/common/record.c and tools/commands/diff.c are compiled in; their output is captured. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "common/record.h"

#define HEAD_LINE "{\"tapegrad_record\":1,\"step\":1,\"rank\":0,\"ranks\":1,\"kept\":2}\n"
#define OP(pass, name, in, out)                                                                                       \
    "{\"pass\":\"" pass "\",\"op\":\"" name "\",\"number\":0,\"site\":\"a.c:1\",\"in\":[" in "],\"out\":[" out "]}\n"
#define TENSOR(dtype, shape, hash, values)                                                                            \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"name\":\"w\",\"hash\":\"0123456789abcd" hash                  \
    "\",\"every\":1,\"values\":\"" values "\"}"

const char *const fuzz_words[] = {
    "\"pass\":", "\"forward\"", "\"backward\"", "\"op\":", "\"in\":[", "\"out\":[", "\"site\":", "\"number\":",
    "\"dtype\":", "\"f32\"", "\"bf16\"", "\"f64\"", "\"i64\"", "\"u8\"", "\"bool\"", "\"shape\":[", "\"hash\":",
    "\"every\":", "\"values\":", "\"name\":", "\"tapegrad_record\":1", "null", "true", "{", "}", "[", "]", ",", "\n",
    "9223372036854775807", "4294967296", "7f", "7fc0", "ff", NULL};

/* An input: the position at which the second file begins (2 bytes, in bytes of lines), and the lines of both. */
enum { HEAD = 2 };

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const char *const seeds[][2] = {
        {HEAD_LINE OP("forward", "neg", TENSOR("u8", "1", "00", "07"), TENSOR("u8", "1", "01", "09")),
         HEAD_LINE OP("forward", "neg", TENSOR("u8", "1", "00", "07"), TENSOR("u8", "1", "02", "0a"))},
        {HEAD_LINE OP("forward", "neg", TENSOR("i32", "1", "00", "07000000"), TENSOR("bf16", "", "01", "7fc0"))
             OP("backward", "neg", "null", TENSOR("f16", "2", "02", "7bff0000")),
         HEAD_LINE OP("forward", "neg", TENSOR("i32", "1", "00", "07000000"), TENSOR("bf16", "", "03", "7f80"))
             OP("backward", "neg", "null", TENSOR("f16", "2", "04", "fbff0080"))},
        {HEAD_LINE OP("backward", "exp", "", TENSOR("f32", "0,3", "00", "")),
         HEAD_LINE OP("backward", "exp", "", TENSOR("f32", "0,3", "00", ""))},
        {HEAD_LINE OP("backward", "exp", "", TENSOR("f64", "2,1", "00", "000000000000f07f000000000000f03f")),
         HEAD_LINE OP("backward", "exp", "", TENSOR("f64", "2,1", "01", "000000000000f0ff000000000000f83f"))},
        {HEAD_LINE, HEAD_LINE},
    };
    if (i >= (int)COUNT(seeds)) return 0;
    size_t first = strlen(seeds[i][0]), second = strlen(seeds[i][1]);
    if (HEAD + first + second > max) return 0;
    out[0] = (uint8_t)first, out[1] = (uint8_t)(first >> 8);
    memcpy(out + HEAD, seeds[i][0], first);
    memcpy(out + HEAD + first, seeds[i][1], second);
    return HEAD + first + second;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    if (size > HEAD && fuzz_below(&state, 2)) { /* changes a digit, so that lines stay complete */
        for (size_t i = HEAD + fuzz_below(&state, size - HEAD); i < size; i++)
            if (data[i] >= '0' && data[i] <= '9') {
                data[i] = (uint8_t)"0123456789abcdef"[fuzz_below(&state, 16)];
                return size;
            }
    }
    return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
}

/* ---- Output of the program's files ---- */

static char said[4096];

int fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return 1;
}

int usage_error(const command *c, const char *format, ...) {
    fuzz_fail(__FILE__, __LINE__, c->name, "the command line is right: %s", format);
}

bool options_parse(const command *c, void *into, parsed *p, int argc, char **argv) {
    int files = 0;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-') p->operand[files++] = argv[i];
        for (int k = 0; argv[i][0] == '-' && k < c->n_options; k++)
            if (!strcmp(c->options[k].name, argv[i] + 2)) *(bool *)((char *)into + c->options[k].at) = true;
    }
    return true;
}

FILE *open_regular(const char *path) { return fopen(path, "rbe"); }

int print_json(json_t *json) {
    char *text = json_dumps(json, JSON_ENCODE_ANY);
    fuzz_must(text, "what is to be printed is no JSON");
    free(text);
    json_decref(json);
    return 0;
}

/* ---- Two files ---- */

/* Writes a file with the correct last line, so that damage is found in the lines and not by their hash. */
static void put(int fd, const uint8_t *lines, size_t n) {
    char end[80];
    uint64_t hash = 0;
    int64_t count = -1;
    for (size_t at = 0, length; at < n; at += length, count++) {
        const uint8_t *stop = memchr(lines + at, '\n', n - at);
        length = stop ? (size_t)(stop - lines) + 1 - at : n - at;
        hash = record_hash(hash, lines + at, length);
    }
    int k = snprintf(end, sizeof end, "{\"end\":%" PRId64 ",\"check\":\"%016" PRIx64 "\"}\n", count, hash);
    fuzz_must(ftruncate(fd, 0) == 0 && pwrite(fd, lines, n, 0) == (ssize_t)n, "no room");
    fuzz_must(pwrite(fd, end, (size_t)k, (off_t)n) == k, "no room");
}

static int compare(char *a, char *b, const char *how) {
    char flag[16], *args[] = {a, b, flag};
    snprintf(flag, sizeof flag, "%s", how ? how : "");
    *said = 0;
    int status = run_diff(how ? 3 : 2, args);
    fuzz_must(status >= 0 && status <= 2, "status %d", status);
    fuzz_must(status != 2 || *said, "refused without a word");
    return status;
}

static int open_memory(char path[32]) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_must(fd >= 0, "no memory for a file");
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd[2], out, nowhere;
    static char path[2][32];
    if (size < HEAD || size > FUZZ_MAX) return 0;
    if (!nowhere) {
        for (int i = 0; i < 2; i++) fd[i] = open_memory(path[i]);
        out = dup(STDOUT_FILENO);
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    }
    size_t first = data[0] | (size_t)data[1] << 8;
    if (first > size - HEAD) first = size - HEAD;
    put(fd[0], data + HEAD, first);
    put(fd[1], data + HEAD + first, size - HEAD - first);
    dup2(nowhere, STDOUT_FILENO);
    int status = compare(path[0], path[1], NULL), all = compare(path[0], path[1], "--all");
    fuzz_must(status == all, "status %d, and with --all %d", status, all);
    fuzz_must(compare(path[0], path[1], "--json") == status, "with --json another status than %d", status);
    if (status != 2) fuzz_must(compare(path[0], path[0], "--all") == 0, "a file differs from itself");
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    return 0;
}
