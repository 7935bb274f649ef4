/* What the stages of a pipeline hold and send in a training step. */
#ifndef TAPEGRAD_INSPECT_STAGES_H
#define TAPEGRAD_INSPECT_STAGES_H

#include "train/train.h"

/* The figures of a stage, measured on its first rank. */
typedef struct stage_row {
    int64_t layers, parameters;
    int64_t copies; /* of the parameters, those that the first stage has too */
    tg_memory_info memory;
    tg_pipe_report plan;
    tg_comm_info sent;
} stage_row;

/* The stages, an array of --pp rows. */
typedef struct stage_table {
    stage_row *row;
    int n;
    tg_pipe_report plan; /* of all stages */
} stage_table;

/* Measures a step of each stage. Returns false after printing what is wrong; stage_table_free may be called in any
 * case. */
bool stage_table_measure(stage_table *t, const train_options *o, const tg_lm_config *config);
void stage_table_free(stage_table *t);
json_t *stage_table_json(const stage_table *t);
void stage_table_print(const stage_table *t, const train_options *o);

#endif
