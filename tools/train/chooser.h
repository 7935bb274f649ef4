/* The parts of --time: what is asked, and the models that are considered (candidate.c, choose.c). */
#ifndef TAPEGRAD_TRAIN_CHOOSER_H
#define TAPEGRAD_TRAIN_CHOOSER_H

#include "train/choose.h"

/* What is expected of a model in the given time. */
typedef struct candidate {
    train_options o;
    tg_lm_config config;
    int64_t parameters;
    double seconds;              /* of a step */
    double tokens, epochs, loss; /* of the whole run */
    int64_t validations;         /* about how many the run makes */
    rank_bytes need;             /* memory of a step */
    bool cut;                    /* the memory has decided the number of micro-batches */
} candidate;

/* The result of trying a size. */
typedef enum verdict {
    MEASURED,
    FAILED,    /* after printing what is wrong */
    UNDIVIDED, /* the ranks cannot divide it */
    TOO_LONG,  /* its steps take too much of the time */
    TOO_LARGE, /* it does not fit into the memory */
} verdict;

typedef struct chooser {
    const parsed *p;
    const corpus_options *from;
    const json_t *plan;
    double seconds; /* the given time */
    int64_t tokens, val_tokens; /* for training, and for validation */
    double speed;   /* FLOP a second of the model that was measured last; 0: none was */
    bool masked;    /* some tokens are not predicted */
    rank_bytes room; /* the memory that the ranks can obtain */
    candidate large;   /* the model that was left out because of the memory; its config has 0 layers if none was */
    char refusal[512]; /* why the ranks cannot divide the size that was tried last */
} chooser;

static inline bool given(const chooser *c, const char *name) { return option_given(&train_command, c->p, name); }

/* ---- Models (candidate.c) ---- */

/* A size of the models that --time tries. */
typedef struct model_size {
    int64_t layers, hidden, heads, seq_len;
} model_size;

/* Returns size i, in growing order from 0; NULL: there are no more. */
const model_size *size_at(int i);
/* Takes a size, or, if s is NULL, that of the options, and counts the parameters. Unless --seq-len is given, halves the
 * sequences while they are longer than 16 tokens and than a twentieth of the data. Returns false after printing what is
 * wrong. */
bool candidate_take_size(const chooser *c, candidate *k, const model_size *s);
/* Chooses the sequences of a step for a run of so many tokens, unless they are given. */
void candidate_choose_batch(const chooser *c, candidate *k, double tokens);
/* Finds how much memory a step takes, and cuts the batch until the step fits. Returns MEASURED if it does. */
verdict candidate_fit(chooser *c, candidate *k);
/* Prints that the model needs too much memory. Returns false. */
bool candidate_refuse(const chooser *c, const candidate *k);

#endif
