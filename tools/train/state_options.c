/* The options of a run that goes on: those of its checkpoint, and those of this call of the program. */
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/state.h"

/* If an option was not given, sets it to the saved value. If it was given and is fixed, it must equal the saved value.
 * If it was given and is not fixed, it may differ, and a difference is printed, except that of a list of words. */
static bool merge_option(const option *row, bool given, const char *saved, train_options *o) {
    char number[4096];
    const char *now = option_value(row, o, number, sizeof number), *was = *saved ? saved : "none";
    if (!given) {
        const char *expected = *saved ? option_set(row, o, saved) : NULL;
        return !expected || (fail("the checkpoint's --%s is '%s', expected %s%s%s", row->name, saved, expected,
                                  row->kind == OPTION_CHOICE ? " " : "", row->kind == OPTION_CHOICE ? row->values : ""),
                             false);
    }
    if (strcmp(now, saved) == 0) return true;
    if (row->fixed)
        return fail("--%s is %s, but the run in --out was begun with %s; leave --%s out, or begin another run",
                    row->name, now, was, row->name),
               false;
    if (row->kind != OPTION_LIST) say("--%s is %s from now on; it was %s\n", row->name, now, was);
    return true;
}

/* Returns whether the file can be read. With --data-format megatron the path FILE stands for FILE.bin and FILE.idx. */
static bool is_readable(const char *path) {
    char index[4096];
    snprintf(index, sizeof index, "%s.idx", path);
    return access(path, R_OK) == 0 || access(index, R_OK) == 0;
}

static bool refuse_path(const char *name, const char *path, const char *origin) {
    if (!is_relative(path))
        fail("the checkpoint's --%s is '%s', which cannot be opened (%s); give --%s FILE", name, path, strerror(ENOENT),
             name);
    else if (origin)
        fail("the checkpoint's --%s is '%s', given in the directory '%s'; there is no such file there, nor in the "
             "current directory: give --%s FILE",
             name, path, origin, name);
    else
        fail("the checkpoint's --%s is '%s', given in a directory that the checkpoint does not name; there is no such "
             "file in the current directory: give --%s FILE",
             name, path, name);
    return false;
}

static bool is_current(const char *directory) {
    char *here = getcwd(NULL, 0);
    bool same = here && !strcmp(here, directory);
    free(here);
    return same;
}

/* Returns whether a path leads to a file, or a pattern to several. */
static bool leads_somewhere(const char *path) {
    glob_t found = {0};
    if (is_readable(path)) return true;
    bool some = strpbrk(path, "*?[") && glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    return some;
}

char *path_from(const char *origin, const char *path) {
    bool moved = origin && is_relative(path) && !is_current(origin);
    char *there = moved ? path_in(origin, path) : NULL;
    if (there && leads_somewhere(there)) return there;
    free(there);
    return NULL;
}

/* Replaces a relative path of the checkpoint's options by a path that is valid now (path_from). The old path was
 * relative to the directory in which the run was started. The new path belongs to `state`. */
static bool resolve_path(const char *name, json_t *state, const char **path) {
    const char *origin = json_string_value(json_object_get(state, "directory"));
    if (!*path || (!is_relative(*path) && is_readable(*path))) return true;
    char *there = path_from(origin, *path);
    bool found = there != NULL;
    if (found) {
        char key[32];
        snprintf(key, sizeof key, "path of --%s", name);
        json_object_set_new(state, key, json_string(there));
        *path = json_string_value(json_object_get(state, key));
    }
    free(there);
    return found || is_readable(*path) || refuse_path(name, *path, origin);
}

/* Replaces several words, separated by line breaks, by words that are valid now, as resolve_path does. Words that lead
 * nowhere, such as weights, are left as they are. */
static bool resolve_words(const char *name, json_t *state, const char **words) {
    const char *origin = json_string_value(json_object_get(state, "directory"));
    char *copy = strdup(*words), *rest = copy, *text = NULL, key[32];
    size_t n = 0;
    FILE *out = copy ? open_memstream(&text, &n) : NULL;
    for (char *word; out && (word = strsep(&rest, "\n"));) {
        char *path = path_from(origin, word);
        fprintf(out, "%s%s", word > copy ? "\n" : "", path ? path : word);
        free(path);
    }
    bool good = out && fclose(out) == 0;
    snprintf(key, sizeof key, "path of --%s", name);
    if (good && !json_object_set_new(state, key, json_string(text)))
        *words = json_string_value(json_object_get(state, key));
    free(text);
    free(copy);
    return good || (fail("no memory for the words of --%s", name), false);
}

/* Resolves the paths of --data or --val-data, if they are the checkpoint's. Standard input, and all paths of a run that
 * has token files, are left as they are. */
static bool resolve_data(const char *name, const parsed *p, json_t *state, const train_options *o, const char **path) {
    char plan[4096];
    snprintf(plan, sizeof plan, "%s/data/data.json", o->out);
    bool input = *path && !strcmp(*path, "-");
    if (option_given(&train_command, p, name) || !*path || input || access(plan, F_OK) == 0) return true;
    return (strpbrk(*path, "\n*?[") ? resolve_words : resolve_path)(name, state, path);
}

/* Returns the text of a saved option; "" if it is not there. Runs of earlier versions, which had no --pad-documents,
 * padded all documents that they kept apart, and go on with that. */
static const char *saved_text(const json_t *options, const char *name) {
    const char *text = json_string_value(json_object_get(options, name));
    const char *across = json_string_value(json_object_get(options, "attend-across"));
    if (text || strcmp(name, "pad-documents") != 0) return text ? text : "";
    return across && !strcmp(across, "false") ? "true" : "false";
}

/* Sets o->origin, if the words of --data are the checkpoint's and are left as they were in another directory. */
static void keep_origin(const parsed *p, const json_t *state, train_options *o) {
    const char *origin = json_string_value(json_object_get(state, "directory of --data"));
    if (!origin) origin = json_string_value(json_object_get(state, "directory"));
    bool moved = origin && has_relative(o->data) && !is_current(origin);
    if (moved && !option_given(&train_command, p, "data")) o->origin = origin;
}

bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state) {
    if (!state_load(dir, state)) return false;
    const json_t *options = json_object_get(*state, "options");
    for (int i = 0; i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        if (state_leaves_out(row->name) || strcmp(row->name, "out") == 0) continue;
        bool given = option_given(&train_command, p, row->name);
        if (given && !p->given[i]) continue; /* given by its other name */
        if (!merge_option(row, given, saved_text(options, row->name), o)) return false;
    }
    bool order = option_given(&train_command, p, "order");
    bool good = resolve_data("data", p, *state, o, &o->data) && resolve_data("val-data", p, *state, o, &o->val_data) &&
                (!o->lora || resolve_path("init", *state, &o->init)) &&
                (order || resolve_path("order", *state, &o->order));
    if (good) keep_origin(p, *state, o);
    return good;
}
