/* Recorded steps: the results of each op of a training step, forward and backward, in the order in which they ran.
 * `tapegrad train --record` writes them, and `tapegrad diff` compares them.
 *
 * A file is lines of JSON: a header, a line for each op, and an end with the number of ops and a hash of the lines
 * before it. The file holds a hash of all bytes of each tensor and, for results and gradients, every n-th element in
 * hexadecimal. */
#ifndef TAPEGRAD_RECORD_H
#define TAPEGRAD_RECORD_H

#include <stdio.h>

#include "common/program.h"

enum { RECORD_FORMAT = 1 };

/* Returns the hash h, continued over n bytes at p. Pass h = 0 to begin a hash. */
uint64_t record_hash(uint64_t h, const void *p, size_t n);
/* Returns the distance between the recorded elements of a tensor of n elements, of which at most `kept` are recorded
 * (0: all). A distance above 1 is odd, so that the recorded elements are spread over all columns. */
int64_t record_distance(int64_t n, int64_t kept);

/* ---- Writing (train/recorder.c). Functions that return bool return false after printing what is wrong. ---- */

typedef struct recorder recorder;

/* Begins the file `path`, or path.RANK if there are several ranks, under a temporary name; recorder_end renames it.
 * kept: the most elements to record of each tensor; 0: all. NULL after printing what is wrong. */
recorder *recorder_open(const char *path, int64_t kept, tg_ctx *ctx, tg_comm *world);
/* Records the ops that the tape runs from now on, as those of step number `step`. */
void recorder_begin(recorder *r, tg_tape *t, int64_t step);
/* Ends the recording and completes the file. */
bool recorder_end(recorder *r, tg_tape *t);
/* Frees the recorder, and removes a file that was not completed. NULL is ignored. */
void recorder_free(recorder *r);

/* ---- Reading (record.c) ---- */

typedef struct record_file {
    const char *path;
    FILE *f;
    json_t *head;    /* the header */
    int64_t ops, at; /* number of ops; index of the next one */
    char *line;      /* the line that was read last, and its capacity */
    size_t capacity;
} record_file;

/* A recorded tensor. Its strings belong to the JSON object that it was read from. */
typedef struct recorded {
    const char *name; /* "": it has none */
    tg_dtype dtype;
    int ndim;
    int64_t shape[TG_MAX_DIMS], numel;
    uint64_t hash;
    bool hashed;         /* the hash was recorded: the tensor had bytes */
    int64_t every, kept; /* distance and number of the recorded elements; kept 0: none */
    const char *hex;     /* their bytes in hexadecimal */
} recorded;

/* Opens the file, checks all of it, and goes to its first op. False after printing what is wrong; record_close must
 * then be called too. */
bool record_open(record_file *r, const char *path);
/* Goes back to the first op. */
void record_rewind(record_file *r);
/* Returns the next op, which the caller frees. NULL after the last one, or after printing what is wrong. */
json_t *record_next(record_file *r);
void record_close(record_file *r);
/* Parses the description of a tensor. Returns false if it is malformed. null, which stands for no tensor, is well
 * formed and gives dtype 0. */
bool recorded_of(const json_t *tensor, recorded *out);
/* Describes the tensor, such as "w f32[2, 3]", with control characters in the name escaped. Returns the length. */
size_t recorded_text(const recorded *x, char *buf, size_t n);
/* Copies the bytes of recorded element i, from 0 to kept - 1, to out, and zeros after them. */
void recorded_element(const recorded *x, int64_t i, uint8_t out[8]);

#endif
