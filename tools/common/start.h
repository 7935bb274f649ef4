/* Compares, before ranks work together, the facts that must be equal on all of them: options, builds, environments and
 * checksums of files. Each rank that is a process has these of its own, and a difference would silently make the
 * results wrong. */
#ifndef TAPEGRAD_START_H
#define TAPEGRAD_START_H

#include "common/ranks.h"

typedef enum fact_kind { FACT_OPTION, FACT_BUILD, FACT_ENVIRONMENT, FACT_FILE } fact_kind;

/* A list of facts. All zeros: an empty list. */
typedef struct start_facts {
    char *text; /* kind, name and value of each fact, each ended by a zero byte */
    size_t n, capacity; /* bytes used, bytes allocated */
    bool failed;        /* there was no memory for a fact */
} start_facts;

/* Adds a fact. name: as an error message shows it. value: "" if the fact has none. */
void facts_add(start_facts *f, fact_kind kind, const char *name, const char *value);
/* Adds all options of a command, the build of the program, and the environment variables that change results. */
void facts_add_start(start_facts *f, const command *c, const void *options, const tg_ctx *ctx);
/* Adds a fact whose value is a checksum. */
void facts_add_sum(start_facts *f, fact_kind kind, const char *name, uint64_t sum);
/* Compares the list with rank 0's, and frees it. Collective. If the list of any rank differs, returns false on all
 * ranks, and each rank whose list differs has printed the first difference. If a rank has no memory, that rank prints
 * it, and all return false. Ranks that are threads of one process are not compared, because they cannot differ. Of
 * these only a rank without memory returns false. */
bool facts_agree(start_facts *f, tg_ctx *ctx, tg_comm *world);

#endif
