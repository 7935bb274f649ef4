/* tapegrad inspect --parameters: the paths of a model's parameters, which the patterns of `tapegrad train --freeze` and
 * --lr-of match, and their shapes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "commands/inspect_parameters.h"

/* Writes the lengths of all dimensions: "256 x 128". */
static void write_shape(char *out, size_t size, const tg_tensor *x) {
    size_t at = 0;
    out[0] = 0;
    for (int d = 0; d < tg_ndim(x) && at < size; d++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, d ? " x " : "", tg_dim(x, d));
}

static void print_rows(const tg_module *m) {
    char shape[160];
    const char *path;
    int n = tg_module_param_count(m), width = (int)strlen("parameter");
    for (int i = 0; i < n; i++) {
        tg_module_param(m, i, &path);
        if ((int)strlen(path) > width) width = (int)strlen(path);
    }
    printf("%-*s  %-16s %14s\n", width, "parameter", "shape", "elements");
    for (int i = 0; i < n; i++) {
        const tg_tensor *x = tg_module_param(m, i, &path);
        write_shape(shape, sizeof shape, x);
        printf("%-*s  %-16s %14" PRId64 "\n", width, path, shape, tg_numel(x));
    }
}

/* Returns the rows as JSON; NULL if there is no memory. */
static json_t *rows_json(const tg_module *m) {
    json_t *all = json_array();
    for (int i = 0; i < tg_module_param_count(m); i++) {
        const char *path;
        const tg_tensor *x = tg_module_param(m, i, &path);
        json_t *shape = json_array();
        int failed = 0;
        for (int d = 0; d < tg_ndim(x); d++) failed |= json_array_append_new(shape, json_integer(tg_dim(x, d)));
        json_t *row = json_pack("{s:s, s:o, s:I}", "path", path, "shape", shape, "elements", (json_int_t)tg_numel(x));
        if (failed | json_array_append_new(all, row)) return json_decref(all), NULL;
    }
    return all;
}

int print_parameters(const tg_lm_config *config, bool json) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_module *m = whole_model(ctx, config);
    int status = m ? 0 : 1;
    if (m && json) status = print_json(rows_json(m));
    if (m && !json) print_rows(m);
    tg_module_free(m);
    tg_ctx_free(ctx);
    return status;
}
