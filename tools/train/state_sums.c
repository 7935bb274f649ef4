/* Checksums of the files of a checkpoint (state.h). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model_files.h"
#include "train/state.h"

void state_put_sum(char out[STATE_DIGITS + 1], uint64_t sum) { snprintf(out, STATE_DIGITS + 1, "%016" PRIx64, sum); }

/* Returns the name of the checkpoint's config: that of the model, or with --lora that of the adapters. */
static const char *config_name(const char *dir) {
    return is_there(dir, "adapter_config.json") ? "adapter_config.json" : "config.json";
}

bool state_sum_config(const char *dir, char out[STATE_DIGITS + 1]) {
    size_t n = 0;
    char *path = path_in(dir, config_name(dir)), *text = path ? read_whole(path, &n) : NULL;
    if (text) state_put_sum(out, tg_checksum(text, n));
    free(path);
    free(text);
    return text != NULL;
}

/* Writes as text the checksum of a tensor file's header, or of the whole file if it is JSON. */
static bool sum_header(const char *dir, const char *name, char out[STATE_DIGITS + 1]) {
    char *path = path_in(dir, name);
    bool json = strlen(name) > 5 && !strcmp(name + strlen(name) - 5, ".json");
    FILE *f = path && !json ? open_regular(path) : NULL;
    size_t n = 0;
    char *header = json && path ? read_whole(path, &n) : f ? read_tensors_header(f, &n) : NULL;
    bool good = header != NULL;
    if (f && !good) fail("'%s' is damaged: its header is not whole", path);
    state_put_sum(out, header ? tg_checksum(header, n) : 0);
    free(header);
    if (f) fclose(f);
    free(path);
    return good;
}

/* Returns whether a checkpoint keeps a checksum (sum_header) of the file. It does for all files with tensors, and for
 * the indexes of the weights and of the state. */
static int has_sum(const struct dirent *e) {
    return !fnmatch("model*.safetensors", e->d_name, 0) || !fnmatch("rank-*.safetensors", e->d_name, 0) ||
           !strcmp(e->d_name, "adapter_model.safetensors") || !strcmp(e->d_name, "model.safetensors.index.json") ||
           !strcmp(e->d_name, "index.json");
}

json_t *state_sum_headers(const char *dir) {
    struct dirent **found = NULL;
    char sum[STATE_DIGITS + 1];
    int n = scandir(dir, &found, has_sum, alphasort);
    bool good = n >= 0 || (fail("cannot read the directory '%s': %s", dir, strerror(errno)), false);
    json_t *headers = json_object();
    for (int i = 0; i < n; i++) {
        good = good && sum_header(dir, found[i]->d_name, sum);
        if (good) json_object_set_new(headers, found[i]->d_name, json_string(sum));
        free(found[i]);
    }
    free(found);
    if (good) return headers;
    json_decref(headers);
    return NULL;
}

bool state_check_headers(const char *dir, json_t *state) {
    char sum[STATE_DIGITS + 1];
    const char *name;
    json_t *expected;
    json_object_foreach(json_object_get(state, "headers_xxh64"), name, expected) {
        const char *text = json_string_value(expected);
        if (strchr(name, '/') || !text)
            return fail("'%s/state.json' is not the state of a run: '%.64s' is not a file with a checksum", dir, name),
                   false;
        if (!sum_header(dir, name, sum)) return false;
        if (strcmp(sum, text) != 0)
            return fail("'%s/%s' is damaged, or of another checkpoint: its header's checksum is %s, expected %s", dir,
                        name, sum, text),
                   false;
    }
    return true;
}

/* The checksum is computed with zeros in place of these digits. No string in the file can look like the key, because
 * its quotes would be escaped. */
char *state_find_sum(char *text, size_t n) {
    static const char key[] = "\"xxh64\": \"";
    char *at = memmem(text, n, key, sizeof key - 1);
    if (at) at += sizeof key - 1;
    return at && text + n - at > STATE_DIGITS && at[STATE_DIGITS] == '"' ? at : NULL;
}

bool state_check_sum(const char *path, char *text, size_t n) {
    char *digits = state_find_sum(text, n), expected[STATE_DIGITS + 1], sum[STATE_DIGITS + 1];
    if (!digits) return fail("'%s' has no checksum", path), false;
    snprintf(expected, sizeof expected, "%.*s", STATE_DIGITS, digits);
    memcpy(digits, STATE_NO_SUM, STATE_DIGITS);
    state_put_sum(sum, tg_checksum(text, n));
    return strcmp(sum, expected) == 0 ||
           (fail("'%s' is damaged: its checksum is %s, expected %s", path, sum, expected), false);
}

bool state_check_config(const char *dir, const json_t *state) {
    char sum[STATE_DIGITS + 1];
    const char *expected = json_string_value(json_object_get(state, "config_xxh64"));
    return state_sum_config(dir, sum) &&
           (!strcmp(sum, expected ? expected : "") ||
            (fail("'%s/%s' is damaged: its checksum is %s, expected %s", dir, config_name(dir), sum, expected), false));
}
