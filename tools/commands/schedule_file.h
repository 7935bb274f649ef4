/* Schedules of pipelines in files: a line for each stage, with the items that it computes, in their order. */
#ifndef TAPEGRAD_SCHEDULE_FILE_H
#define TAPEGRAD_SCHEDULE_FILE_H

#include <tapegrad/pipe.h>

typedef struct schedule_file {
    int stages, chunks, micros; /* chunks and micros: 1 more than the largest chunk and micro-batch in the file */
    tg_pipe_item *item;         /* the items of all stages, one stage after the other */
    const tg_pipe_item **list;  /* for each stage its first item */
    int *count;                 /* for each stage the number of its items */
} schedule_file;

/* Reads a schedule. Returns false after printing what is wrong, with the line. schedule_file_free may be called in both
 * cases. */
bool schedule_file_read(tg_ctx *ctx, const char *path, schedule_file *out);
void schedule_file_free(schedule_file *f);

#endif
