/* The directory of a run: creates and locks it, removes what a killed run left unfinished, and checks whether a run may
 * begin or continue in it. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/companions.h"
#include "common/model_files.h"
#include "io/file.h"
#include "train/train.h"

/* Returns whether the name is that of a temporary file, which a run writes before it renames it. */
static bool is_temporary(const char *name) {
    static const char *const written[] = {
        "config.json",         "model*.safetensors",        "model.safetensors.index.json",
        "adapter_config.json", "adapter_model.safetensors", "loss.svg",
        "metrics.jsonl",       "run.html",                  "samples.jsonl",
        "best.json"};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, "%s.tmp-*", written[i]);
        if (fnmatch(pattern, name, 0) == 0) return true;
    }
    for (size_t i = 0; companion(i); i++) {
        size_t n = strlen(companion(i));
        if (strncmp(name, companion(i), n) == 0 && strncmp(name + n, ".tmp-", 5) == 0) return true;
    }
    return false;
}

/* Removes temporary files from a directory. It need not exist if `optional`. */
static bool remove_temporaries(const char *dir, bool optional) {
    DIR *names = opendir(dir);
    if (!names && optional && errno == ENOENT) return true;
    if (!names) return fail("cannot list the directory '%s': %s", dir, strerror(errno)), false;
    bool good = true;
    for (struct dirent *e; good && (e = readdir(names));) {
        char *path = is_temporary(e->d_name) ? path_in(dir, e->d_name) : NULL;
        if (path && unlink(path) != 0) good = (fail("cannot remove '%s': %s", path, strerror(errno)), false);
        free(path);
    }
    closedir(names);
    return good;
}

bool directory_open(run_directory *d, const char *path) {
    d->path = path;
    d->made = mkdir(path, 0777) == 0;
    if (!d->made && errno != EEXIST) return fail("cannot make the directory '%s': %s", path, strerror(errno)), false;
    d->files = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    if (d->made) tg_sync_directory_of(d->files, path);
    char *checkpoints = path_in(path, "checkpoints");
    if (!checkpoints) return false;
    d->made_checkpoints = access(checkpoints, F_OK) != 0;
    d->checkpoints = tg_checkpoints_open(d->files, checkpoints);
    free(checkpoints);
    d->held = check(d->files);
    if (!d->held) return false;
    char *best = path_in(path, "best");
    bool cleaned = best && remove_temporaries(path, false) && remove_temporaries(best, true);
    free(best);
    if (!cleaned) return false;
    d->newest = tg_checkpoints_newest(d->checkpoints);
    return check(d->files);
}

void directory_close(run_directory *d) {
    tg_checkpoints_close(d->checkpoints);
    if (d->files) tg_ctx_free(d->files);
}

bool directory_set_aside(const run_directory *d, int64_t done) {
    for (int64_t step; (step = newest_checkpoint(d->path)) > done;) {
        char from[4096], to[4096];
        int n = snprintf(from, sizeof from, "%s/checkpoints/step-%010" PRId64, d->path, step);
        for (int i = 0; i < 1000; i++) {
            snprintf(to, sizeof to, i ? "%s.unused-%d" : "%s.unused", from, i);
            if (access(to, F_OK) != 0) break;
        }
        if (n >= (int)sizeof from - 16 || rename(from, to) != 0)
            return fail("cannot rename '%s' to '%s': %s", from, to, strerror(errno)), false;
        say("set aside: '%s' is now '%s'\n", from, to);
    }
    return true;
}

void directory_remove_created(const run_directory *d) {
    if (!d->path) return;
    char *lock = path_in(d->path, "checkpoints/.lock"), *checkpoints = path_in(d->path, "checkpoints");
    char *metrics = path_in(d->path, "metrics.jsonl");
    struct stat of;
    bool held = d->held && metrics && lock && checkpoints; /* otherwise the files may belong to another run */
    if (held && stat(metrics, &of) == 0 && of.st_size == 0) unlink(metrics);
    if (held && d->made_checkpoints && newest_checkpoint(d->path) == 0) {
        unlink(lock);
        rmdir(checkpoints); /* fails if it is not empty */
    }
    if (d->made) rmdir(d->path);
    free(metrics);
    free(lock);
    free(checkpoints);
}

/* Returns the name of the file that a run writes last, if the directory has it: that of the config of a model or of
 * adapters. NULL: the run has not ended. */
static const char *last_file(const run_directory *d) {
    if (is_there(d->path, "config.json")) return "config.json";
    return is_there(d->path, "adapter_config.json") ? "adapter_config.json" : NULL;
}

/* Returns whether the run has ended and has no checkpoint. */
static bool is_done(const run_directory *d) { return d->newest < 0 && last_file(d); }

bool directory_unused(const run_directory *d) {
    const char *left = d->newest >= 0                       ? "checkpoints"
                       : is_there(d->path, "metrics.jsonl") ? "metrics.jsonl"
                                                            : last_file(d);
    if (!left) return true;
    fail("--out '%s' holds a run already (%s): %schoose another --out", d->path, left,
         is_done(d) ? "" : "add --resume to continue it, or ");
    return false;
}

bool directory_resumable(const run_directory *d) {
    if (!is_done(d)) return true;
    fail("--out '%s' holds a model but no checkpoint, so there is nothing to resume; begin another run from it by "
         "--init",
         d->path);
    return false;
}
