/* Reads the output of `tapegrad inspect`, for tests that compare it with a real step. The environment variable TAPEGRAD
 * is the program's path. */
#ifndef TG_TEST_INSPECTED_H
#define TG_TEST_INSPECTED_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include <check.h>

/* Runs inspect with the options and returns its JSON, which the caller frees with json_decref. */
static inline json_t *inspected(const char *model, const char *shape) {
    char command[4096];
    const char *program = getenv("TAPEGRAD");
    ck_assert_msg(program, "TAPEGRAD, the path of the program, is not set");
    snprintf(command, sizeof command, "'%s' inspect %s %s --json", program, model, shape);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(f);
    json_error_t error;
    json_t *all = json_loadf(f, 0, &error);
    ck_assert_msg(pclose(f) == 0 && all, "%s: %s", command, error.text);
    return all;
}

static inline int64_t value_of(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    ck_assert_msg(json_is_integer(v), "there is no \"%s\"", key);
    return json_integer_value(v);
}

#endif
