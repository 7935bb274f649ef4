/* What ranks must have in common when they start, compared before they work together: ranks that are processes get
 * their command lines, files, builds and environments one by one, and a difference would spoil the run silently. */
#ifndef TAPEGRAD_START_H
#define TAPEGRAD_START_H

#include "ranks.h"

typedef enum fact_kind { FACT_OPTION, FACT_BUILD, FACT_ENVIRONMENT, FACT_FILE } fact_kind;

/* A list of names with values. Zeroed: empty. */
typedef struct start_facts {
    char *text; /* kind, name and value of each, with a zero after every one */
    size_t n, room;
    bool failed; /* no memory */
} start_facts;

/* Adds a fact: its name as the message shows it, and its value, "" where there is none. */
void facts_add(start_facts *f, fact_kind kind, const char *name, const char *value);
/* Adds all options of a command, the build of the program and the variables of the environment that change numbers. */
void facts_add_start(start_facts *f, const command *c, const void *options, const tg_ctx *ctx);
/* Adds a checksum. */
void facts_add_sum(start_facts *f, fact_kind kind, const char *name, uint64_t sum);
/* Compares the list with rank 0's, and frees it. Collective. False on all ranks if one of them differs, which has
 * printed the first difference. Ranks that are threads of one process have all in common. */
bool facts_agree(start_facts *f, tg_ctx *ctx, tg_comm *world);

#endif
