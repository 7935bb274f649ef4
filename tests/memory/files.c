/* The directory in which a case writes its files, and what an undisturbed run leaves there. */
#define _GNU_SOURCE
#include "memory/files.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[200], dir[220];
static file_set found;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type;
    return at->level ? remove(path) : 0;
}

static uint64_t digest_of(const char *path) {
    uint64_t h = 1469598103934665603u;
    FILE *f = fopen(path, "rb");
    for (int c; f && (c = getc(f)) != EOF;) h = (h ^ (unsigned char)c) * 1099511628211u;
    if (f) fclose(f);
    return h;
}

static int find_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)at;
    /* A checkpoint that could not be removed has a hidden name (checkpoint.h). */
    if (type != FTW_F || found.n == MANY_FILES || strstr(path, "/.step-")) return 0;
    snprintf(found.of[found.n].name, sizeof found.of->name, "%s", path + strlen(dir) + 1);
    found.of[found.n++].digest = digest_of(path);
    return 0;
}

static void find_all(const char *in) {
    found.n = 0;
    nftw(in, find_one, 8, FTW_PHYS);
}

void files_open(void) {
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/tapegrad-memory-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(root)) exit(EXIT_FAILURE);
    snprintf(dir, sizeof dir, "%s/run", root);
    mkdir(dir, 0700);
}

void files_close(void) {
    files_clear(root);
    rmdir(root);
}

void files_clear(const char *in) {
    nftw(in, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *files_new(void) {
    files_clear(dir);
    return dir;
}

static bool has(const file_set *s, int i) {
    for (int k = 0; k < s->n; k++)
        if (!strcmp(s->of[k].name, found.of[i].name) && s->of[k].digest == found.of[i].digest) return true;
    return false;
}

void files_add(file_set *s, const char *in) {
    find_all(in);
    for (int i = 0; i < found.n && s->n < MANY_FILES; i++)
        if (!has(s, i)) s->of[s->n++] = found.of[i];
}

const char *files_other(const file_set *s, const char *in) {
    find_all(in);
    for (int i = 0; i < found.n; i++)
        if (!has(s, i)) return found.of[i].name;
    return NULL;
}

int files_descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
