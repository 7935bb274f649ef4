/* How a process finds out which launcher has started it, from environment variables: each launcher, one within another,
 * contradictions, and Slurm's lists. tests/train/launchers.sh starts ranks under the launchers themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_main.h"
#include "comm/world/world.h"

/* ---- Environments ---- */

/* All variables that are read. */
static const char *const variables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_STEP_RESV_PORTS",
    "SLURM_RESTART_COUNT",
    "TAPEGRAD_PORT",
    "TAPEGRAD_TRANSPORT",
    "TAPEGRAD_FD",
    "TAPEGRAD_RANK",
    "TAPEGRAD_SIZE",
};

/* Sets the variables of a text such as "RANK=1 WORLD_SIZE=2", and no other ones that are read. */
static void environment(const char *text) {
    char copy[1024], *next = copy;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strsep(&next, " "));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        setenv(word, value, 1);
    }
}

static const char torchrun[] =
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 "
    "TORCHELASTIC_RUN_ID=7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True";
static const char by_hand[] = "RANK=3 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
static const char mpirun[] = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                             "OMPI_COMM_WORLD_LOCAL_SIZE=2";
static const char hydra[] = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";
static const char srun[] = "SLURM_STEP_ID=0 SLURM_JOB_ID=3 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=9 "
                           "SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1 "
                           "SLURM_STEP_NODELIST=gpu[007-009,012]";

/* ---- What is recognized ---- */

typedef struct recognized {
    const char *environment, *more, *text;
    const char *job; /* NULL: not looked at */
} recognized;

static const recognized cases[] = {
    {"", "", "one rank, started by no launcher", NULL},
    {torchrun, "",
     "rank 3 of 4, number 1 of 2 on this node, started by torchrun, over TCP: the ranks meet at node1, port "
     "29501 to 29516",
     "torchrun 7 2"},
    {by_hand, "", "rank 3 of 4, started by torchrun, over TCP: the ranks meet at 10.0.0.1, port 29500 to 29515", NULL},
    {torchrun, "TAPEGRAD_PORT=4000",
     "rank 3 of 4, number 1 of 2 on this node, started by torchrun, over TCP: the ranks meet "
     "at node1, port 4000 to 4015",
     NULL},
    {"RANK=0 WORLD_SIZE=1", "", "rank 0 of 1, started by torchrun, alone", NULL},
    {mpirun, "", "rank 1 of 2, number 1 of 2 on this node, started by mpirun, over MPI", NULL},
    {hydra, "", "rank 1 of 2, number 0 of 1 on this node, started by mpirun, over MPI", NULL},
    {mpirun, "TAPEGRAD_TRANSPORT=tcp MASTER_ADDR=a MASTER_PORT=5",
     "rank 1 of 2, number 1 of 2 on this node, started by "
     "mpirun, over TCP: the ranks meet at a, port 5 to 20",
     NULL},
    {srun, "",
     "rank 5 of 7, number 1 of 2 on this node, started by srun, over TCP: the ranks meet at gpu007, port 21968 to "
     "21983",
     "slurm 3.0 0"},
    {srun, "MASTER_PORT=29500",
     "rank 5 of 7, number 1 of 2 on this node, started by srun, over TCP: the ranks meet at "
     "gpu007, port 29500 to 29515",
     NULL},
    {srun, "SLURM_STEP_RESV_PORTS=12000-12001 MASTER_ADDR=head",
     "rank 5 of 7, number 1 of 2 on this node, started by srun, "
     "over TCP: the ranks meet at head, port 12000",
     NULL},
    {srun, "WORLD_SIZE=7 MASTER_PORT=29500",
     "rank 5 of 7, number 1 of 2 on this node, started by srun, over TCP: the ranks "
     "meet at gpu007, port 29500 to 29515",
     NULL},
    {srun, "SLURM_NODEID=3 SLURM_LOCALID=0 SLURM_PROCID=6 TAPEGRAD_TRANSPORT=mpi",
     "rank 6 of 7, number 0 of 1 on this node, "
     "started by srun, over MPI",
     NULL},
    /* A batch script is no rank, though it has the number of tasks. */
    {"SLURM_JOB_ID=3 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", "", "one rank, started by no launcher", NULL},
    /* One launcher within another. */
    {srun, torchrun,
     "rank 3 of 4, number 1 of 2 on this node, started by torchrun, over TCP: the ranks meet at node1, port "
     "29501 to 29516",
     NULL},
    {srun, mpirun, "rank 1 of 2, number 1 of 2 on this node, started by mpirun, over MPI", NULL},
    {srun, "PMI_RANK=5 PMI_SIZE=7 TAPEGRAD_TRANSPORT=tcp",
     "rank 5 of 7, number 1 of 2 on this node, started by srun, over "
     "TCP: the ranks meet at gpu007, port 21968 to 21983",
     NULL},
};

/* Sets the environment `first`, then the variables of `more`. */
static void environments(const char *first, const char *more) {
    char both[2048];
    snprintf(both, sizeof both, "%s %s", first, more);
    environment(both);
}

START_TEST(each_launcher_is_recognized) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tg_world_info info = TG_WORLD_INFO();
        char message[512], text[512];
        environments(cases[i].environment, cases[i].more);
        ck_assert_msg(tg_world_query(&info, message, sizeof message) == TG_OK, "%s: %s", cases[i].text, message);
        ck_assert_str_eq(message, "");
        size_t n = tg_world_text(&info, text, sizeof text);
        ck_assert_str_eq(text, cases[i].text);
        ck_assert_uint_eq(n, strlen(text));
        if (cases[i].job) ck_assert_str_eq(info.job, cases[i].job);
    }
    environment("");
}
END_TEST

START_TEST(a_text_is_cut_to_its_buffer) {
    tg_world_info info = TG_WORLD_INFO();
    char text[8];
    environment("");
    ck_assert_int_eq(tg_world_query(&info, NULL, 0), TG_OK);
    ck_assert_uint_eq(tg_world_text(&info, text, sizeof text), strlen("one rank, started by no launcher"));
    ck_assert_str_eq(text, "one ran");
    ck_assert_uint_eq(tg_world_text(&info, NULL, 0), strlen("one rank, started by no launcher"));
}
END_TEST

/* ---- Contradictions ---- */

typedef struct contradiction {
    const char *environment, *more, *message;
} contradiction;

static const contradiction contradictions[] = {
    {"WORLD_SIZE=4", "", "WORLD_SIZE is \"4\", but RANK is not set; torchrun sets both"},
    {"OMPI_COMM_WORLD_SIZE=4", "",
     "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not; mpirun sets both"},
    {"RANK=4", "", "RANK is \"4\", but WORLD_SIZE is not set; torchrun sets both"},
    {"RANK=one", "WORLD_SIZE=2", "RANK is \"one\", expected a number from 0 on"},
    {"RANK=-1", "WORLD_SIZE=2", "RANK is \"-1\", expected a number from 0 on"},
    {"RANK=0", "WORLD_SIZE=0", "WORLD_SIZE is \"0\", expected a number from 1 on"},
    {"RANK=0", "WORLD_SIZE=99999999999", "WORLD_SIZE is \"99999999999\", expected a number from 1 on"},
    {"RANK=2", "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
     "torchrun has started this process as rank 2 of 2, expected a rank below 2"},
    {"RANK=1", "WORLD_SIZE=2",
     "torchrun has started this process as rank 1 of 2, but MASTER_ADDR is not set; set it to "
     "the node of rank 0"},
    {"RANK=1", "WORLD_SIZE=2 MASTER_ADDR=a",
     "MASTER_ADDR is \"a\", but MASTER_PORT is not set; set it to a free port of that node"},
    {"RANK=1", "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=x", "MASTER_PORT is \"x\", expected a number from 1 on"},
    {"RANK=1", "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65530",
     "the ranks would meet on port 65530 or one of the 15 after it, expected ports up to 65535; set TAPEGRAD_PORT"},
    {"RANK=1", "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=2147483647 TORCHELASTIC_USE_AGENT_STORE=True",
     "the ranks would meet on port 2147483647 or one of the 15 after it, expected ports up to 65535; set "
     "TAPEGRAD_PORT"},
    {torchrun, "LOCAL_RANK=2",
     "torchrun has started this process as number 2 of 2 on its node, of 4 ranks in all; expected "
     "a number below 2, and at most 4 ranks on the node"},
    {torchrun, "TAPEGRAD_TRANSPORT=udp", "TAPEGRAD_TRANSPORT is \"udp\", expected \"tcp\" or \"mpi\""},
    {srun, "WORLD_SIZE=8", "WORLD_SIZE is 8, but srun has started 7 ranks; unset it, or start as many"},
    {srun, "SLURM_PROCID=9", "srun has started this process as rank 9 of 7, expected a rank below 7"},
    {srun, "SLURM_STEP_NODELIST=[oops",
     "SLURM_STEP_NODELIST is \"[oops\", whose first node cannot be read; set MASTER_ADDR to the node of rank 0"},
    {"SLURM_STEP_ID=0", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=rack[0-1]node[0-3]",
     "SLURM_JOB_NODELIST is \"rack[0-1]node[0-3]\", whose first node cannot be read; set MASTER_ADDR to the node of "
     "rank 0"},
    {"SLURM_STEP_ID=0", "SLURM_PROCID=1 SLURM_NTASKS=2",
     "neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; set MASTER_ADDR to the node of rank 0"},
    {srun, "SLURM_STEP_RESV_PORTS=70000-70001",
     "the ranks would meet on port 70000, expected ports up to 65535; set TAPEGRAD_PORT"},
    {"SLURM_STEP_ID=0", "SLURM_PROCID=1",
     "SLURM_PROCID is 1, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set; srun sets them"},
    {mpirun, "WORLD_SIZE=3", "WORLD_SIZE is 3, but mpirun has started 2 ranks; unset it, or start as many"},
    {mpirun, "TAPEGRAD_TRANSPORT=tcp",
     "mpirun has started this process as rank 1 of 2, but MASTER_ADDR is not set; set it to the node of rank 0"},
};

START_TEST(long_addresses_are_refused) {
    static const char *const by[] = {by_hand, srun};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
        tg_world_info info = TG_WORLD_INFO();
        char more[320], message[512];
        snprintf(more, sizeof more, "MASTER_ADDR=%0256d", 1);
        environments(by[i], more);
        ck_assert_int_eq(tg_world_query(&info, message, sizeof message), TG_ERR_ARGUMENT);
        ck_assert_str_eq(message, "MASTER_ADDR has 256 characters, expected at most 255; set it to the node of rank 0");
        snprintf(more, sizeof more, "MASTER_ADDR=%0255d", 1);
        environments(by[i], more);
        ck_assert_int_eq(tg_world_query(&info, message, sizeof message), TG_OK);
        ck_assert_uint_eq(strlen(info.host), 255);
    }
    environment("");
}
END_TEST

START_TEST(contradictions_are_refused) {
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        tg_world_info info = TG_WORLD_INFO();
        char message[512], expected[600];
        environments(contradictions[i].environment, contradictions[i].more);
        ck_assert_msg(tg_world_query(&info, message, sizeof message) == TG_ERR_ARGUMENT, "%s",
                      contradictions[i].message);
        ck_assert_str_eq(message, contradictions[i].message);
        ck_assert_int_eq(tg_world_query(&info, NULL, 0), TG_ERR_ARGUMENT);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
        tg_comm_free(tg_comm_world_new(ctx, NULL));
        snprintf(expected, sizeof expected, "tg_comm_world_new: %s", message);
        ck_assert(strstr(tg_ctx_message(ctx), expected) == tg_ctx_message(ctx));
        tg_ctx_free(ctx);
    }
    environment("");
}
END_TEST

/* ---- Slurm's lists ---- */

START_TEST(the_first_host_of_a_list) {
    static const char *const lists[][2] = {
        {"vm", "vm"},
        {"a,b", "a"},
        {"node[3]", "node3"},
        {"node[03-07,12],x", "node03"},
        {"n[1,2]-ib,z", "n1-ib"},
        {"[5-6]", "5"},
        {"rack1-node[0010-0011]", "rack1-node0010"},
    };
    static const char *const wrong[] = {"", "[", "n[", "n[]", "n[1", "n[a-b]", "r[1-2]n[3-4]"};
    char host[32];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ck_assert_msg(tg_slurm_first_host(lists[i][0], host, sizeof host), "%s", lists[i][0]);
        ck_assert_str_eq(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(!tg_slurm_first_host(wrong[i], host, sizeof host), "%s", wrong[i]);
    ck_assert(!tg_slurm_first_host("node[03-07]", host, 6));
    ck_assert(tg_slurm_first_host("node[03-07]", host, 7));
}
END_TEST

START_TEST(the_tasks_of_a_node_in_a_list) {
    static const int tasks[] = {2, 2, 2, 1, 4, 4, 0};
    for (int i = 0; i < 7; i++) ck_assert_int_eq(tg_slurm_tasks_of("2(x3),1,4(x2)", i), tasks[i]);
    ck_assert_int_eq(tg_slurm_tasks_of("8", 0), 8);
    ck_assert_int_eq(tg_slurm_tasks_of("", 0), 0);
    ck_assert_int_eq(tg_slurm_tasks_of("x", 0), 0);
    ck_assert_int_eq(tg_slurm_tasks_of("2(x", 1), 0);
}
END_TEST

/* ---- The communicator ---- */

START_TEST(a_process_without_a_launcher_is_alone) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    environment("");
    tg_comm *c = tg_comm_world_new(ctx, NULL);
    ck_assert_str_eq(tg_comm_transport(c), "self");
    tg_comm_free(c);
    environment("RANK=0 WORLD_SIZE=1");
    c = tg_comm_world_new(ctx, NULL);
    ck_assert_str_eq(tg_comm_transport(c), "self");
    tg_comm_free(c);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
    environment("");
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        each_launcher_is_recognized, a_text_is_cut_to_its_buffer,   contradictions_are_refused,
        the_first_host_of_a_list,    the_tasks_of_a_node_in_a_list, a_process_without_a_launcher_is_alone,
        long_addresses_are_refused,
    };
    return tg_check_main("world", tests, sizeof tests / sizeof *tests);
}
