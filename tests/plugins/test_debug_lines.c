/* File and line in messages, from debug information that libdw reads. It stays open between the errors of a context,
 * but follows libraries that come and go. And messages without libdw. TG_FAKES names the folder of the build with
 * libcaller_*.so, which have debug information. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/tapegrad.h>

#include "check_main.h"

static struct {
    bool absent; /* libdw is not installed */
    int loads;   /* of libdw */
} libdw;

/* Takes the place of the loader's function for the library too. */
void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    if (path && strcmp(path, "libdw.so.1") == 0) {
        libdw.loads++;
        if (libdw.absent) return NULL;
    }
    return next(path, flags);
}

typedef struct world {
    tg_ctx *ctx;
    tg_tape *t;
} world;

static world begin(void) {
    world w = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1))};
    w.t = tg_tape_new(w.ctx);
    return w;
}

static void end(const world *w) {
    tg_tape_free(w->t);
    tg_ctx_free(w->ctx);
}

/* Loads caller_NAME.so, lets it make an error, checks that the message names this place, and unloads it. */
static void error_from(const world *w, const char *name, const char *place) {
    char path[512];
    void (*make_error)(tg_tape *);
    snprintf(path, sizeof path, "%s/libcaller_%s.so", getenv("TG_FAKES"), name);
    void *library = dlopen(path, RTLD_NOW);
    ck_assert_msg(library != NULL, "%s", dlerror());
    *(void **)&make_error = dlsym(library, "make_error");
    make_error(w->t);
    ck_assert_msg(strstr(tg_ctx_message(w->ctx), place) != NULL, "no '%s' in: %s", place, tg_ctx_message(w->ctx));
    tg_ctx_clear(w->ctx);
    ck_assert_int_eq(dlclose(library), 0);
}

static int open_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

START_TEST(libdw_is_loaded_at_the_first_error) {
    world w = begin();
    tg_sum(w.t, tg_full(w.t, TG_F32, TG_SHAPE(3), 1), TG_ALL_DIMS, false);
    ck_assert_int_eq(libdw.loads, 0);
    error_from(&w, "first", "called from first.c:100)");
    ck_assert_int_ge(libdw.loads, 1);
    end(&w);
}
END_TEST

/* The second library is mapped where the first one was. */
START_TEST(libraries_that_come_and_go_are_described) {
    world w = begin();
    for (int i = 0; i < 3; i++) {
        error_from(&w, "first", "called from first.c:100)");
        error_from(&w, "second", "called from second.c:2000)");
    }
    end(&w);
}
END_TEST

START_TEST(files_are_closed_with_the_context) {
    int before = open_files();
    for (int i = 0; i < 3; i++) {
        world w = begin();
        error_from(&w, "first", "called from first.c:100)");
        end(&w);
    }
    ck_assert_int_eq(open_files(), before);
}
END_TEST

START_TEST(without_libdw_messages_have_symbols) {
    world w = begin();
    libdw.absent = true;
    error_from(&w, "first", "called from make_error+0x");
    libdw.absent = false;
    error_from(&w, "first", "called from first.c:100)");
    end(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {libdw_is_loaded_at_the_first_error, libraries_that_come_and_go_are_described,
                                  files_are_closed_with_the_context, without_libdw_messages_have_symbols};
    return tg_check_main("debug lines", tests, sizeof tests / sizeof *tests);
}
