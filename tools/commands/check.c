/* tapegrad check: reads all of a directory of saved state, of a model, of a checkpoint or of a run, and names what is
 * damaged. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static const command check_command = {
    .name = "check",
    .usage = "DIR",
    .summary = "Reads all of DIR, compares all checksums, and names what is damaged or missing. DIR\n"
               "is saved state of any number of ranks (index.json), a model (*.safetensors), a\n"
               "checkpoint of tapegrad train, which is both, or the --out of a run, whose\n"
               "checkpoints are read as well. Ends with 1 if anything is damaged.",
    .operands = 1,
};

/* What was read, and what was found. */
typedef struct findings {
    tg_ctx *ctx;
    int files, damaged;
} findings;

/* Prints the context's error, if it has one, and counts it. */
static void note(findings *f) {
    if (tg_ctx_status(f->ctx) == TG_OK) return;
    fail("%s", tg_ctx_message(f->ctx));
    tg_ctx_clear(f->ctx);
    f->damaged++;
}

/* ---- Files ---- */

/* Reads every tensor of a file, or of an index of several files. */
static void check_tensors(findings *f, const char *dir, const char *name) {
    char *path = path_in(dir, name);
    tg_safetensors *file = path ? tg_safetensors_open(f->ctx, path) : NULL;
    f->files++;
    note(f);
    for (int i = 0; i < tg_safetensors_count(file); i++) {
        tg_drop(tg_safetensors_load(file, tg_safetensors_at(file, i)->name));
        note(f);
    }
    tg_safetensors_close(file);
    free(path);
}

/* Files that belong to saved state are read with its index. */
static int is_model_file(const struct dirent *e) {
    return !fnmatch("*.safetensors", e->d_name, 0) && fnmatch("rank-*.safetensors", e->d_name, 0) &&
           fnmatch("state-*.safetensors", e->d_name, 0);
}

static void check_model(findings *f, const char *dir) {
    struct dirent **found = NULL;
    int n = scandir(dir, &found, is_model_file, alphasort);
    for (int i = 0; i < n; i++) {
        check_tensors(f, dir, found[i]->d_name);
        free(found[i]);
    }
    free(found);
    if (!is_there(dir, "model.safetensors.index.json")) return;
    char *path = path_in(dir, "model.safetensors.index.json");
    if (path) tg_safetensors_close(tg_safetensors_open(f->ctx, path));
    f->files++;
    note(f);
    free(path);
}

/* Reads saved state, and prints each line of the report. */
static void check_state(findings *f, const char *dir) {
    enum { REPORT = 1 << 20 };
    char *report = malloc(REPORT);
    int damaged = 0;
    if (!report) {
        fail("no memory for the report");
        f->damaged++;
        return;
    }
    tg_shards_verify(f->ctx, dir, report, REPORT, &damaged);
    for (char *line = report, *end; damaged && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        fail("%s", line);
    }
    f->files++;
    f->damaged += damaged;
    note(f);
    free(report);
}

/* ---- Directories ---- */

/* checkpoint: it is one of a run, so it must have a state.json. */
static void check_files(findings *f, const char *dir, bool checkpoint) {
    check_model(f, dir);
    if (is_there(dir, "index.json") || is_there(dir, "state-00000.safetensors")) check_state(f, dir);
    if (!checkpoint && !is_there(dir, "state.json")) return;
    f->files++;
    f->damaged += !checkpoint_headers_are_whole(dir);
}

static int is_checkpoint(const struct dirent *e) { return !strncmp(e->d_name, "step-", 5); }

/* Checks the checkpoints of a run. */
static void check_checkpoints(findings *f, const char *dir) {
    struct dirent **found = NULL;
    char *checkpoints = path_in(dir, "checkpoints");
    int n = checkpoints ? scandir(checkpoints, &found, is_checkpoint, alphasort) : 0;
    if (!checkpoints || (n < 0 && errno != ENOENT)) {
        if (checkpoints) fail("cannot read the directory '%s': %s", checkpoints, strerror(errno));
        f->damaged++;
    }
    for (int i = 0; i < n; i++) {
        char *path = path_in(checkpoints, found[i]->d_name);
        if (path) check_files(f, path, true);
        free(path);
        free(found[i]);
    }
    free(found);
    free(checkpoints);
}

int run_check(int argc, char **argv) {
    parsed p;
    if (!options_parse(&check_command, NULL, &p, argc, argv)) return p.status;
    const char *dir = p.operand[0];
    if (!dir) return usage_error(&check_command, "expected a DIR to check");
    if (!check_directory(dir)) return 1;
    findings f = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1))};
    check_files(&f, dir, false);
    check_checkpoints(&f, dir);
    note(&f);
    tg_ctx_free(f.ctx);
    if (!f.files) return fail("'%s' has neither saved state nor a model", dir);
    if (!f.damaged) printf("'%s' is whole\n", dir);
    return f.damaged > 0;
}
