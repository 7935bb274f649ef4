/* seal CHECKPOINT: recomputes the checksums of a checkpoint whose files a test has changed: those of the files'
 * headers, in the files and in state.json, and that of state.json itself. So tests reach the code after the checks. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <tapegrad/io.h>

enum { MOST = 1 << 20, DIGITS = 16 };

typedef struct file {
    FILE *f;
    char text[MOST];
    size_t n; /* length; for a file of tensors that of its header */
} file;

static bool open_file(file *s, const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    s->f = fopen(path, "r+");
    s->n = s->f ? fread(s->text, 1, MOST, s->f) : 0;
    return s->n > 0 || (fprintf(stderr, "seal: cannot read '%s'\n", path), false);
}

static bool close_file(file *s) {
    rewind(s->f);
    bool good = fwrite(s->text, 1, s->n, s->f) == s->n;
    return !fclose(s->f) && good;
}

/* Returns the digits after that key; NULL: there are none. */
static char *digits(file *s, const char *key) {
    char *at = memmem(s->text, s->n, key, strlen(key));
    return at ? at + strlen(key) : (fprintf(stderr, "seal: no %s\n", key), NULL);
}

static void put(char *at, uint64_t sum) {
    char text[DIGITS + 1];
    snprintf(text, sizeof text, "%016" PRIx64, sum);
    memcpy(at, text, DIGITS);
}

/* Computes a checksum in which its own digits count as zeros. */
static bool seal(file *s, const char *key) {
    char *at = digits(s, key);
    if (!at) return false;
    memset(at, '0', DIGITS);
    put(at, tg_checksum(s->text, s->n));
    return true;
}

static bool seal_tensors(const char *dir, const char *name, file *state) {
    static file s;
    uint64_t header;
    char key[64], *at;
    if (!open_file(&s, dir, name)) return false;
    memcpy(&header, s.text, sizeof header);
    if (header < s.n - sizeof header) s.n = sizeof header + (size_t)header;
    snprintf(key, sizeof key, "\"%s\": \"", name);
    if (!seal(&s, "\"tapegrad.xxh64.header\":\"") || !(at = digits(state, key))) return false;
    put(at, tg_checksum(s.text, s.n));
    return close_file(&s);
}

/* The index of the state: its own checksum, and that of the whole file in state.json. */
static bool seal_index(const char *dir, const char *name, file *state) {
    static file s;
    char key[64], *at;
    snprintf(key, sizeof key, "\"%s\": \"", name);
    if (!open_file(&s, dir, name) || !seal(&s, "\"xxh64\":\"") || !(at = digits(state, key))) return false;
    put(at, tg_checksum(s.text, s.n));
    return close_file(&s);
}

int main(int argc, char **argv) {
    static file state;
    const char *dir = argc == 2 ? argv[1] : ".";
    return !(open_file(&state, dir, "state.json") && seal_tensors(dir, "model.safetensors", &state) &&
             seal_index(dir, "index.json", &state) && seal(&state, "\"xxh64\": \"") &&
             close_file(&state));
}
