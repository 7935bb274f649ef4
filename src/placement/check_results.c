/* Check mode: compares the inputs and results of ops over each axis on which their placement says that they are the
 * same on every rank, except for the axes of data parallelism. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/comm.h>

#include "placement/check.h"
#include "placement/rule.h"
#include "tape/call.h"

enum { MAX_COMPARED = 16 }; /* greatest number of tensors of a call that are compared */

/* Lists the inputs and then the outputs of a call that belong to a tape, and that by their placement are equal on every
 * rank of the axis. Returns the length of the list. Leaves out
 * - leaves of the context, which have been compared at their first use;
 * - tensors whose bytes are discarded: an op that reads no bytes, such as a view, may have them as inputs;
 * - tensors that cannot be hashed (tg_placement_comparable), and gradients that are one rank's share of a sum. */
static int equal_results(const tg_call *c, int axis, tg_tensor *x[MAX_COMPARED]) {
    int n = 0;
    for (int i = 0; i < c->n_in + c->n_out && n < MAX_COMPARED; i++) {
        tg_tensor *one = i < c->n_in ? c->input[i] : c->out[i - c->n_in];
        if (!one || !one->tape || !tg_placement_comparable(one) || one->flags & TG_F_PARTIAL) continue;
        if (one->storage->state == TG_DISCARDED) continue;
        if (tg_placement_claimed(one) >> axis & 1) x[n++] = one;
    }
    return n;
}

enum { MAX_NUMBERS = 64 }; /* how many of the numbers in a call's params are compared at most */

/* A number among the params of an op, at one index of an array or of a single field. */
typedef struct param_number {
    const tg_field *field;
    int index;
} param_number;

/* Reads the number at address `at`. Sets *bits to the bits of a double, or to the value of an integer. Returns false
 * for a field that holds something else, such as a pointer. */
static bool read_number(const tg_field *f, const char *at, int64_t *bits) {
    int i;
    switch (f->kind) {
    case TG_FIELD_BOOL: *bits = *(const bool *)(const void *)at; return true;
    case TG_FIELD_INT:
    case TG_FIELD_ENUM:
    case TG_FIELD_DTYPE: memcpy(&i, at, sizeof i); *bits = i; return true;
    case TG_FIELD_INT64:
    case TG_FIELD_UINT64:
    case TG_FIELD_SIZE:
    case TG_FIELD_DOUBLE: memcpy(bits, at, sizeof *bits); return true;
    default: return false;
    }
}

/* Lists the numbers of the call's params. Returns how many there are. */
static int list_numbers(const tg_call *c, param_number of[MAX_NUMBERS], int64_t bits[MAX_NUMBERS]) {
    int n = 0;
    for (int i = 0; c->params && i < c->op->n_fields; i++) {
        const tg_field *f = &c->op->fields[i];
        for (int k = 0; k < f->count && n < MAX_NUMBERS; k++) {
            const char *at = (const char *)c->params + f->offset + (size_t)k * (f->bytes / (size_t)f->count);
            if (read_number(f, at, &bits[n])) of[n++] = (param_number){f, k};
        }
    }
    return n;
}

static const char *number_text(const tg_field *f, int64_t bits, char *text, size_t n) {
    double v;
    memcpy(&v, &bits, sizeof v);
    if (f->kind == TG_FIELD_DOUBLE)
        snprintf(text, n, "%.9g", v);
    else if (f->kind == TG_FIELD_UINT64 || f->kind == TG_FIELD_SIZE)
        snprintf(text, n, "%llu", (unsigned long long)bits);
    else
        snprintf(text, n, "%lld", (long long)bits);
    return text;
}

/* Finds the first rank whose params differ from those of rank 0, and their first number that differs. Writes the
 * number's name and both values to text, such as " (start is 2 on rank 0, 3 on rank 1)"; "" if there is no such rank.
 * Collective. */
static tg_status describe_numbers(const tg_call *c, tg_comm *comm, char *text, size_t size) {
    param_number of[MAX_NUMBERS];
    int64_t bits[MAX_NUMBERS], wrong, first, other;
    char one[40], two[40], index[16] = "";
    int n = list_numbers(c, of, bits);
    *text = 0;
    if (!n) return TG_OK;
    TG_TRY(tg_placement_find_other(c->ctx, comm, bits, n, &wrong, &first, &other));
    if (wrong < 0) return TG_OK;
    const param_number *p = &of[wrong % n];
    if (p->field->count > 1) snprintf(index, sizeof index, "[%d]", p->index);
    snprintf(text, size, " (%s%s is %s on rank 0, %s on rank %lld)", p->field->name, index,
             number_text(p->field, first, one, sizeof one), number_text(p->field, other, two, sizeof two),
             (long long)(wrong / n));
    return TG_OK;
}

/* Fails because x, an input or result of c, is not the same on all ranks of the axis, and says why. Collective. */
static tg_status results_differ(tg_call *c, tg_tensor *x, int axis) {
    tg_comm *comm = tg_grid_of(c->ctx)->comm[axis];
    char what[160], is[24], element[128], numbers[160];
    bool result = false;
    int rank;
    for (int i = 0; i < c->n_out; i++) result |= c->out[i] == x;
    TG_TRY(tg_placement_describe_difference(x, comm, &rank, element, sizeof element));
    TG_TRY(describe_numbers(c, comm, numbers, sizeof numbers));
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, (tg_axis)axis), is, sizeof is);
    if (!result)
        return tg_call_fail(c, TG_ERR_PLACEMENT,
                            "its input %s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s; give the "
                            "ops that made it the same numbers on every rank, or declare the true placement of what it "
                            "was made from (tg_place, tg_assume_placement)",
                            what, is, tg_axis_name((tg_axis)axis), rank, element);
    return tg_call_fail(c, TG_ERR_PLACEMENT,
                        "its result %s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s. Its inputs "
                        "are the same, so the ranks gave it different numbers%s, or drew from streams with different "
                        "seeds; give every rank the same numbers, or pass them as a tensor that is V",
                        what, is, tg_axis_name((tg_axis)axis), rank, element, numbers);
}

/* Returns whether the inputs and results of this call are compared. Not compared are ops that convert placements, ops
 * whose slot `infer` has set the placements of their outputs, collectives, ops that write into inputs, and ops of a
 * backward, of a derivative or of the second run of a recomputation. Ops that record no node (among them the ops inside
 * an op's forward) are left out too, because one rank may use them alone. If the context has axes of experts, nothing
 * is compared, because a result does not say whether it is placed on the grid of the experts or on the other one. */
bool tg_placement_compares_results(const tg_call *c) {
    const tg_call_impl *im = c->internal;
    const tg_tape *t = c->tape;
    if (!c->ctx->check || !tg_grid_of(c->ctx)->owner || c->ctx->run.recording) return false;
    if (tg_grid_axes(c->ctx) & TG_EXPERT_AXES) return false;
    if (im->placed || (im->rules && im->rules->n_conversions)) return false;
    if (c->op->collective || c->op->inplace || c->op->writes) return false;
    return c->needs && !t->in_backward && !t->derives && !t->grad_graph && !t->tangents && !t->again;
}

tg_status tg_placement_compare_results(tg_call *c) {
    tg_tensor *x[MAX_COMPARED];
    int64_t mine[MAX_COMPARED], wrong;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(tg_grid_axes(c->ctx) & ~TG_DATA_PARALLEL_AXES & 1u << a)) continue;
        int n = equal_results(c, a, x);
        for (int i = 0; i < n; i++) TG_TRY(tg_placement_hash(x[i], &mine[i]));
        if (!n) continue;
        TG_TRY(tg_placement_find_other(c->ctx, tg_grid_of(c->ctx)->comm[a], mine, n, &wrong, NULL, NULL));
        if (wrong >= 0) return results_differ(c, x[wrong % n], a);
    }
    return TG_OK;
}
