/* A recorded step: what each op of it made, forward and backward, in the order in which they ran. Written by
 * `tapegrad train --record`, compared by `tapegrad diff`.
 *
 * A file is lines of JSON: a head, a line for each op, an end with the number of ops and a hash of the lines before it.
 * Of a tensor a hash of all its bytes is kept, and of results and gradients every n-th element too, in hexadecimal. */
#ifndef TAPEGRAD_RECORD_H
#define TAPEGRAD_RECORD_H

#include <stdio.h>

#include "program.h"

enum { RECORD_FORMAT = 1 };

/* Goes on from h (0: begins) over the bytes. */
uint64_t record_hash(uint64_t h, const void *p, size_t n);
/* n elements are kept of `kept` at most (0: all), so far apart: an odd distance, that they are of all columns. */
int64_t record_distance(int64_t n, int64_t kept);

/* ---- Writing (train_record.c). Functions that return bool return false after printing what is wrong ---- */

typedef struct recorder recorder;

/* Begins FILE, or FILE.RANK where there are several ranks; it has its name when it is whole. */
recorder *recorder_open(const char *path, int64_t kept, tg_ctx *ctx, tg_comm *world);
/* Shows the tape's ops to it, of that step. */
void recorder_begin(recorder *r, tg_tape *t, int64_t step);
/* The step is over. */
bool recorder_end(recorder *r, tg_tape *t);
/* What was not ended goes. NULL is ignored. */
void recorder_free(recorder *r);

/* ---- Reading (record.c) ---- */

typedef struct record_file {
    const char *path;
    FILE *f;
    json_t *head;
    int64_t ops, at; /* at: of the next */
    char *line;
    size_t room;
} record_file;

typedef struct recorded {
    const char *name;
    tg_dtype dtype;
    int ndim;
    int64_t shape[TG_MAX_DIMS], numel;
    uint64_t hash;
    bool hashed;
    int64_t every, kept; /* elements are so far apart; how many there are, 0: none */
    const char *hex;
} recorded;

/* Checks the whole file, and goes to its first op. */
bool record_open(record_file *r, const char *path);
void record_rewind(record_file *r);
/* The next op, to be freed; NULL behind the last, and after printing what is wrong. */
json_t *record_next(record_file *r);
void record_close(record_file *r);
/* false: it is not as it should be. An absent one is good, and has dtype 0. */
bool recorded_of(const json_t *tensor, recorded *out);
size_t recorded_text(const recorded *x, char *buf, size_t n); /* "w f32[2, 3]" */
/* Element i of those that are kept. */
void recorded_element(const recorded *x, int64_t i, uint8_t out[8]);

#endif
