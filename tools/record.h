/* Recorded steps: the results of each op of a training step, forward and backward, in the order in which they ran.
 * `tapegrad train --record` writes them, and `tapegrad diff` compares them.
 *
 * A file is lines of JSON: a header, a line for each op, and an end with the number of ops and a hash of the lines
 * before it. The file holds a hash of all bytes of each tensor and, for results and gradients, every n-th element in
 * hexadecimal. */
#ifndef TAPEGRAD_RECORD_H
#define TAPEGRAD_RECORD_H

#include <stdio.h>

#include "program.h"

enum { RECORD_FORMAT = 1 };

/* Continues the hash h over the bytes; h 0 begins one. */
uint64_t record_hash(uint64_t h, const void *p, size_t n);
/* Returns the distance between the recorded elements of a tensor of n elements, so that at most `kept` are recorded
 * (0: all). It is odd, so that they are spread over all columns. */
int64_t record_distance(int64_t n, int64_t kept);

/* ---- Writing (train_record.c). Functions that return bool return false after printing what is wrong. ---- */

typedef struct recorder recorder;

/* Begins FILE, or FILE.RANK if there are several ranks. It gets its name when it is complete. */
recorder *recorder_open(const char *path, int64_t kept, tg_ctx *ctx, tg_comm *world);
/* Records the tape's ops from now on, those of that step. */
void recorder_begin(recorder *r, tg_tape *t, int64_t step);
/* Ends the recording and completes the file. */
bool recorder_end(recorder *r, tg_tape *t);
/* Frees the recorder, and removes a file that was not completed. NULL is ignored. */
void recorder_free(recorder *r);

/* ---- Reading (record.c) ---- */

typedef struct record_file {
    const char *path;
    FILE *f;
    json_t *head;
    int64_t ops, at; /* at: index of the next op */
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
    int64_t every, kept; /* distance and number of the elements; kept 0: none */
    const char *hex;
} recorded;

/* Opens the file, checks all of it, and goes to its first op. False after printing what is wrong. */
bool record_open(record_file *r, const char *path);
void record_rewind(record_file *r);
/* Returns the next op, to be freed; NULL after the last one, and after printing what is wrong. */
json_t *record_next(record_file *r);
void record_close(record_file *r);
/* Reads a tensor. False: it is malformed. An absent tensor is well formed, and has dtype 0. */
bool recorded_of(const json_t *tensor, recorded *out);
/* Writes "w f32[2, 3]", with control characters in the name escaped. */
size_t recorded_text(const recorded *x, char *buf, size_t n);
/* Copies element i of those that are recorded. */
void recorded_element(const recorded *x, int64_t i, uint8_t out[8]);

#endif
