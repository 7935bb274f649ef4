/* Comparing, before ranks work together, what they must have in common: ranks that are processes each get their own
 * command line, files, build and environment, and a difference would silently make the results wrong. */
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
/* Compares the list with rank 0's, and frees it. Collective. If the list of any rank differs, returns false on all
 * ranks; the ranks whose lists differ have printed the first difference. Ranks that are threads of one process
 * cannot differ. */
bool facts_agree(start_facts *f, tg_ctx *ctx, tg_comm *world);

#endif
