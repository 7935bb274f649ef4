/* Reads the variables that srun sets for the processes of a step. A batch script has some of the same variables, but no
 * SLURM_STEP_ID; it is not a rank. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/world/world.h"

bool tg_slurm_is_here(void) { return tg_variable("SLURM_STEP_ID") && tg_variable("SLURM_PROCID"); }

/* ---- Lists ---- */

/* If the first host of the list has brackets, its name consists of what precedes them, the first number in them with
 * its leading zeros, and what follows them. */
bool tg_slurm_first_host(const char *list, char *host, size_t n) {
    size_t prefix = strcspn(list, "[,"), digits = 0, rest = 0;
    const char *number = list + prefix + 1, *after = "";
    if (list[prefix] == '[') {
        digits = strspn(number, "0123456789");
        after = strchr(number, ']');
        if (!digits || !after) return false;
        rest = strcspn(++after, "[,");
        if (after[rest] == '[') return false; /* two brackets in one name */
    }
    if (prefix + digits + rest == 0) return false;
    int length = snprintf(host, n, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, number, (int)rest, after);
    return length > 0 && (size_t)length < n;
}

int tg_slurm_tasks_of(const char *list, int node) {
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end;
        long tasks = strtol(at, &end, 10), times = 1;
        if (!strncmp(end, "(x", 2)) times = strtol(end + 2, &end, 10);
        if (*end == ')') end++;
        if (node < times) return (int)tasks;
        node -= (int)times;
        at = *end == ',' ? end + 1 : end;
    }
    return 0;
}

/* ---- The place where ranks meet ---- */

/* Returns the value of the first of the two variables that is set; NULL if neither is. */
static const char *either(const char *name, const char *other) {
    const char *value = tg_variable(name);
    return value ? value : tg_variable(other);
}

static void read_host(tg_world_query_state *q) {
    const char *name = tg_variable("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = tg_variable(name);
    tg_world_info *i = &q->info;
    if (tg_world_read_host(q)) return;
    if (!list)
        tg_world_refuse(
            q, "neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; set MASTER_ADDR to the node of rank 0");
    else if (!tg_slurm_first_host(list, i->host, sizeof i->host))
        tg_world_refuse(
            q, "%s is \"%s\", whose first node cannot be read; set MASTER_ADDR to the node of rank 0", name, list);
}

/* Returns the first of TG_WORLD_PORTS ports, which depends on the ids of the job and the step, so that two steps on one
 * node seldom get the same ports. They are below 32768, where Linux's default range of ephemeral ports begins. */
static int port_of_step(void) {
    enum { FIRST = 20000, SPAN = 12000 };
    const char *job = either("SLURM_JOB_ID", "SLURM_JOBID"), *step = tg_variable("SLURM_STEP_ID");
    uint64_t number = 41 * strtoull(job ? job : "0", NULL, 10) + 17 * strtoull(step ? step : "0", NULL, 10);
    return FIRST + (int)(number % (SPAN / TG_WORLD_PORTS)) * TG_WORLD_PORTS;
}

static void read_port(tg_world_query_state *q) {
    const char *reserved = tg_variable("SLURM_STEP_RESV_PORTS"); /* "12000-12001" */
    int first = reserved ? atoi(reserved) : 0;
    q->info.ports = TG_WORLD_PORTS;
    if (tg_variable_number(q, "MASTER_PORT", 1, &q->info.port)) return;
    q->info.port = first > 0 ? first : port_of_step();
    if (first > 0) q->info.ports = 1;
}

/* ---- All variables ---- */

void tg_slurm_read(tg_world_query_state *q) {
    tg_world_info *i = &q->info;
    const char *job = either("SLURM_JOB_ID", "SLURM_JOBID"), *tasks = tg_variable("SLURM_STEP_TASKS_PER_NODE");
    const char *restarts = tg_variable("SLURM_RESTART_COUNT");
    int node = 0;
    i->launcher = TG_LAUNCHER_SLURM;
    tg_variable_number(q, "SLURM_PROCID", 0, &i->rank);
    if (!tg_variable_number(q, "SLURM_STEP_NUM_TASKS", 1, &i->ranks) &&
        !tg_variable_number(q, "SLURM_NTASKS", 1, &i->ranks))
        tg_world_refuse(
            q, "SLURM_PROCID is %d, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set; srun sets them", i->rank);
    tg_variable_number(q, "SLURM_LOCALID", 0, &i->local_rank);
    tg_variable_number(q, "SLURM_NODEID", 0, &node);
    i->local_ranks = tasks ? tg_slurm_tasks_of(tasks, node) : 0;
    snprintf(i->job, sizeof i->job, "slurm %s.%s %s", job ? job : "", tg_variable("SLURM_STEP_ID"),
             restarts ? restarts : "0");
    if (i->ranks < 2) return;
    read_host(q);
    read_port(q);
}
