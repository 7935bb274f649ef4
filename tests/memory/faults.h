/* Programs that run out of memory: a table of cases, each of which builds something, runs it and frees it, and what
 * test_memory_faults.c does with a case. A new module, optimizer or file format is one more row in a file cases_*.c. */
#ifndef TG_TEST_MEMORY_FAULTS_H
#define TG_TEST_MEMORY_FAULTS_H

#include <string.h>

#include <tapegrad/backward.h>
#include <tapegrad/parallel.h>
#include <tapegrad/placement.h>
#include <tapegrad/tapegrad.h>

/* What a case runs in. */
typedef struct trial {
    tg_ctx *ctx;
    tg_tape *t;
    tg_comm *self;    /* of cases with a grid, as p is */
    tg_parallel *p;   /* of one rank */
    const char *dir;  /* a directory of the case's own, empty at first */
    const char *name; /* the variant that runs; NULL: the case has none */
    void *state;      /* `bytes` bytes, which are 0 when `open` is called */
    uint64_t digest;  /* of what `note` has noted */
} trial;

/* A case. Memory is missing while `open` and `step` run. Neither checks anything, because after an error all calls must
 * do nothing. */
typedef struct memory_case {
    const char *name;
    const char *(*variant)(int i); /* returns the name of variant i, NULL after the last; NULL: there is one, unnamed */
    size_t bytes;
    bool grid; /* the case uses p */
    bool once; /* a step that has failed cannot be repeated without another `open` */
    void (*open)(trial *r); /* may be NULL */
    void (*step)(trial *r);
    void (*note)(trial *r); /* adds the results of the step to the digest; may be NULL */
    void (*close)(trial *r); /* frees what `open` has made; may be NULL */
} memory_case;

typedef struct memory_cases {
    const memory_case *rows;
    int n;
} memory_cases;

/* The tables, one for each file cases_*.c. */
extern const memory_cases module_cases, model_cases, training_cases, parallel_cases, generation_cases, file_cases,
    data_cases, text_cases, tool_cases;

/* ---- What cases use ---- */

static inline void note_bytes(trial *r, const void *at, size_t n) {
    const unsigned char *byte = at;
    for (size_t i = 0; i < n; i++) r->digest = (r->digest ^ byte[i]) * 1099511628211u;
}

/* Notes the bytes of a tensor. */
void note(trial *r, tg_tensor *x);

/* Returns "<directory of the case>/<name>". The text is valid until the second call after this one. */
const char *in_dir(const trial *r, const char *name);

/* Makes a tensor of the context whose elements are different numbers between -1 and 1. */
tg_tensor *wave(trial *r, tg_dtype dtype, tg_shape shape, double phase);

/* Makes ids [rows, n] below `vocab`, of which each is followed by the id `step` above it. */
tg_tensor *some_ids(trial *r, int64_t rows, int64_t n, int64_t vocab, int64_t first, int64_t step);

#endif
