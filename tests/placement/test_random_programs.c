/* Random programs over the op table, on 2 to 4 ranks. Programs that the rule accepts give one rank's values, gradients,
 * tangents and second derivatives. The test also shows that it would find a rule that accepts too much: each refusal is
 * overruled in turn, and some program must then differ. TG_PROGRAMS=n sets the number of programs, TG_SEED=n other
 * seeds. */
#include "check_main.h"

#include <tapegrad/ranks.h>

#include "device_ranks.h"
#include "placement/random.h"
#include "placement/placing.h"

/* ---- Comparison with one rank ---- */

static void coordinates(const program *p, int rank, int *c) {
    c[0] = rank % p->size[0];
    c[1] = p->n_axes > 1 ? rank / p->size[0] : 0;
}

/* Returns what a root or its tangent denotes: the sum over the axes on which it is P or varies; on the others all
 * ranks have the same. */
static bool denoted(const job *j, const result *z, double (*of)[NODES], int k, double *sum) {
    const program *p = &z->program[0];
    const node *nd = &p->node[k];
    double first = of[0][k];
    *sum = 0;
    for (int r = 0; r < j->ranks; r++) {
        int c[AXES];
        bool counts = true;
        coordinates(p, r, c);
        for (int a = 0; a < p->n_axes; a++) counts &= nd->at[a].kind >= TG_VARYING || c[a] == 0;
        if (counts) *sum += of[r][k];
        bool same = true;
        for (int a = 0; a < p->n_axes; a++) same &= nd->at[a].kind < TG_VARYING;
        if (same && of[r][k] != first) return false;
    }
    return true;
}

/* got: results of every rank; ref: at every coordinate. */
static bool compare_leaf(const job *j, const result *z, double (*got)[NODES][LOCAL], double *const *ref, int k,
                         const char *what, char *says, size_t n) {
    const program *p = &z->program[0];
    const node *nd = &p->node[k];
    double most = 0;
    for (int s = 0; s < RANKS; s++)
        for (int64_t i = 0; ref[s] && i < random_numel(&nd->whole); i++) most = fmax(most, fabs(ref[s][i]));
    for (int r = 0; r < j->ranks; r++) {
        int c[AXES];
        coordinates(p, r, c);
        const double *want = ref[random_slot(p, nd, c)];
        for (int64_t i = 0; i < random_numel(&nd->local); i++) {
            double g = got[r][k][i], w = want[random_index(p, nd, c, i)];
            if (fabs(g - w) <= 1e-9 * (1 + most)) continue;
            snprintf(says, n, "leaf %d, rank %d, element %lld: %s gradient %.15g, one rank has %.15g", k, r,
                     (long long)i, what, g, w);
            return false;
        }
    }
    return true;
}

static bool compare_root(const job *j, const result *z, double (*of)[NODES], double want, int k, const char *what,
                         char *says, size_t n) {
    double got;
    if (denoted(j, z, of, k, &got) && fabs(got - want) <= 1e-9 * (1 + fabs(want))) return true;
    snprintf(says, n, "node %d: %s %.15g, one rank has %.15g", k, what, got, want);
    return false;
}

static bool compare(const job *j, result *z, const reference *ref, char *says, size_t n) {
    const program *p = &z->program[0];
    for (int k = 0; k < p->n; k++) {
        if (p->node[k].sink && !compare_root(j, z, z->root, ref->root[k], k, "its value", says, n)) return false;
        if (p->node[k].sink && !j->overruled &&
            !compare_root(j, z, z->tangent, ref->tangent[k], k, "its tangent", says, n))
            return false;
        if (p->node[k].op != OP_LEAF || !p->node[k].grad) continue;
        if (!compare_leaf(j, z, z->grad, ref->grad[k], k, "its", says, n)) return false;
        if (!j->overruled && !compare_leaf(j, z, z->second, ref->second[k], k, "its second", says, n)) return false;
    }
    return true;
}

typedef struct totals {
    int programs, accepted, refused, infinite, by_op[OP_COUNT];
} totals;

/* Returns whether a program gives the same on the ranks and on one. */
static bool check_program(const job *j, result *z, double *room, totals *sum, char *says, size_t n) {
    const program *p = &z->program[0];
    reference ref;
    for (int r = 1; r < j->ranks; r++)
        if (z->program[r].n != p->n || z->program[r].refused != p->refused) {
            snprintf(says, n, "ranks 0 and %d disagree on what is refused", r);
            return false;
        }
    sum->programs++;
    sum->accepted += p->accepted;
    sum->refused += p->refused;
    for (int k = 0; k < p->n; k++) sum->by_op[p->node[k].op]++;
    if (!random_reference(p, &ref, room, says, n)) return false;
    sum->infinite += !ref.finite;
    return !ref.finite || compare(j, z, &ref, says, n);
}

/* Runs a batch from program `first` on. Returns the number of the first program that differs or fails on some rank,
 * or -1. */
static int run_batch(job *j, int first, double *room, totals *sum, char *says, size_t n) {
    static const int ranks[] = {2, 3, 4, 4}, n_axes[] = {1, 1, 1, 2};
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 30);
    char error[1500] = "";
    j->first = first;
    j->ranks = ranks[first / BATCH % 4];
    j->n_axes = n_axes[first / BATCH % 4];
    memset(j->result, 0, sizeof j->result);
    pthread_barrier_init(&j->barrier, NULL, (unsigned)j->ranks);
    tg_status s = run_ranks(j->ranks, random_on_rank, j,
                               TG_RANKS(.config = config, .message = error, .message_size = sizeof error));
    pthread_barrier_destroy(&j->barrier);
    for (int i = 0; i < j->n; i++) {
        if (!j->result[i].done) snprintf(says, n, "%s: %s", tg_status_name(s), error);
        if (!j->result[i].done || !check_program(j, &j->result[i], room, sum, says, n)) return i;
    }
    return -1;
}

static int64_t number(const char *name, int64_t usual) {
    const char *s = getenv(name);
    return s ? strtoll(s, NULL, 0) : usual;
}

static void describe(const program *p) {
    for (int k = 0; k < p->n; k++) {
        const node *nd = &p->node[k];
        char shape[64], at[2][24];
        tg_shape_text((int)nd->local.ndim, nd->local.dim, shape, sizeof shape);
        for (int a = 0; a < AXES; a++) tg_placement_name(nd->at[a], at[a], sizeof at[a]);
        printf("  %2d %s(%d %d %d) args %d %d %d %s %s/%s order %d %d%s\n", k, random_op_names[nd->op], nd->input[0],
               nd->input[1], nd->input[2], nd->arg[0], nd->arg[1], nd->arg[2], shape, at[0], at[1], nd->at[0].order,
               nd->at[1].order, nd->grad ? " grad" : "");
    }
}

static job *job_new(const char *overruled) {
    job *j = calloc(1, sizeof *j);
    j->seed = (uint64_t)number("TG_SEED", 20240607);
    j->n = BATCH;
    j->overruled = overruled;
    return j;
}

START_TEST(accepted_programs_equal_one_rank) {
    job *j = job_new(NULL);
    double *room = calloc((size_t)2 * NODES * RANKS * ELEMENTS, sizeof *room);
    totals sum = {0};
    int n = (int)number("TG_PROGRAMS", getenv("TG_TEST_QUICK") ? 80 : 320);
    for (int first = 0; first < n; first += BATCH) {
        char says[1600];
        int wrong = run_batch(j, first, room, &sum, says, sizeof says);
        if (wrong < 0) continue;
        describe(&j->result[wrong].program[0]);
        ck_abort_msg("seed %llu, program %d, %d ranks, %d axes: %s", (unsigned long long)j->seed, first + wrong,
                     j->ranks, j->n_axes, says);
    }
    printf("seed %llu: %d programs, %d ops accepted, %d refused, %d programs not finite; not accepted once:",
           (unsigned long long)j->seed, sum.programs, sum.accepted, sum.refused, sum.infinite);
    for (int op = 1; op < OP_COUNT; op++)
        if (!sum.by_op[op]) printf(" %s", random_op_names[op]);
    printf("\n");
    free(room);
    free(j);
}
END_TEST

/* Texts of refusals, and the batch (with the usual seed and the current generator) that finds an error if the
 * refusal is overruled. If it finds none, the following batches are searched. */
static const struct {
    const char *says;
    int batch;
} refusals[] = {
    {"not linear in exactly", 0},
    {"a share of a sum would be combined", 0},
    {"would be only one rank's share of it", 0},
    {"the I tensor would differ between ranks", 0},
    {"would be whole on every rank", 0},
    {"would be added once on every rank", 3},
    {"not sharded alike along the dim that is summed", 1},
    {"one input has the whole of a dim", 0},
    {"does not broadcast a dim of size 1", 0},
    {"the shards differ in dim, layout or order", 3},
    {"the shards differ in size", 13},
    {"needs the whole of the dim", 0},
    {"have different roles", 0},
    {"would be joined after", 10},
    {"cut the chunks of the shard", 175},
    {"no counterpart in the new shape", 155},
    {"equal contiguous shards", 1},
    {"pieces of every rank's shard", 3},
};

/* If a refusal is overruled, some program differs from one rank. */
static bool finds(const char *refusal, int batch, double *room, int *found) {
    totals sum = {0};
    char says[1600];
    job *j = job_new(refusal);
    int wrong = -1;
    for (int i = 0; i < 400 && wrong < 0; i++) {
        *found = batch + i;
        wrong = run_batch(j, *found * BATCH, room, &sum, says, sizeof says);
        if (wrong >= 0 && !(j->result[wrong].overruled && strstr(says, "one rank"))) wrong = -1;
    }
    free(j);
    return wrong >= 0;
}

START_TEST(a_broken_rule_is_found) {
    double *room = calloc((size_t)2 * NODES * RANKS * ELEMENTS, sizeof *room);
    for (int k = 0; k < TG_LEN(refusals); k++) {
        int found;
        ck_assert_msg(finds(refusals[k].says, refusals[k].batch, room, &found),
                      "nothing differs where it says \"%s\" and goes on", refusals[k].says);
        if (found != refusals[k].batch) printf("batch %d, not %d: %s\n", found, refusals[k].batch, refusals[k].says);
    }
    free(room);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {accepted_programs_equal_one_rank, a_broken_rule_is_found};
    return tg_check_main("random programs", tests, TG_LEN(tests));
}
