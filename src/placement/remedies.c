/* Remedies: the advice in the message of a refused op. Most refusals are caused by a leaf that tg_place did not
 * declare. So this file searches for such a leaf among the tensors from which the inputs were computed, and names the
 * leaf in the advice. */
#include "base/text.h"
#include "placement/rule.h"

#include <ctype.h>

enum { MAX_TENSORS = 512 }; /* greatest number of tensors that are searched for a leaf */

/* The axes on which ranks have different data. */
static const uint32_t data_axes = 1u << TG_DP | 1u << TG_CP | 1u << TG_EDP;

typedef bool (*is_cause_fn)(const tg_tensor *x, tg_axis axis);

/* The conditions on a leaf that causes a refusal, and on the results between that leaf and the refused op. */
typedef struct cause {
    is_cause_fn leaf, between;
    int left; /* number of tensors that may still be visited */
} cause;

static tg_placement at(const tg_tensor *x, tg_axis axis) {
    return x->place ? x->place->at[axis] : (tg_placement){.kind = TG_INVARIANT};
}

static bool varies(const tg_tensor *x, tg_axis axis) { return at(x, axis).kind == TG_VARYING; }

/* Returns whether x is I and needs a gradient. */
static bool is_invariant(const tg_tensor *x, tg_axis axis) {
    return at(x, axis).kind == TG_INVARIANT && x->flags & (TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE);
}

static bool is_opaque(const tg_tensor *x, tg_axis axis) { return varies(x, axis) && at(x, axis).layout == TG_OPAQUE; }

/* Returns whether the leaf is opaque because tg_place has not said what it is. */
static bool is_undeclared(const tg_tensor *x, tg_axis axis) {
    return is_opaque(x, axis) && !(x->ext && x->ext->placed >> axis & 1);
}

/* Returns the leaf that x is, or that x is a view of. x must have no node. Returns NULL if an op that recorded no node
 * has computed x, because then the leaves that the op used are not known. */
static const tg_tensor *leaf_of_bytes(const tg_tensor *x) {
    const tg_tensor *maker = x->flags & TG_F_LEAF || !x->storage ? x : tg_storage_maker(x->storage);
    return maker && maker->flags & TG_F_LEAF ? maker : NULL;
}

/* Returns the first leaf that satisfies of->leaf among those from which x was computed through tensors that satisfy
 * of->between. */
static const tg_tensor *find_leaf(const tg_tensor *x, tg_axis axis, cause *of) {
    if (!x || --of->left < 0 || !of->between(x, axis)) return NULL;
    const tg_tensor *leaf = x->node ? NULL : leaf_of_bytes(x);
    if (!x->node) return leaf && of->leaf(leaf, axis) ? leaf : NULL;
    for (int i = 0; i < x->node->n_in && !leaf; i++) leaf = find_leaf(tg_node_in(x->node)[i], axis, of);
    return leaf;
}

/* Returns the first such leaf among those from which the inputs of c were computed. Sets *input to the index of the
 * input that was computed from it. */
static const tg_tensor *leaf_of_inputs(const tg_call *c, tg_axis axis, cause of, int *input) {
    const tg_tensor *leaf = NULL;
    of.left = MAX_TENSORS;
    for (int i = 0; i < c->n_in && !leaf; i++) {
        leaf = find_leaf(c->input[i], axis, &of);
        *input = i;
    }
    return leaf;
}

/* Writes the axis as the caller's program writes it, such as "TG_TP". */
static void axis_text(tg_axis axis, char *buf, size_t n) {
    size_t end = 0;
    tg_text(buf, n, &end, "TG_%s", tg_axis_name(axis));
    for (; *buf; buf++) *buf = (char)toupper((unsigned char)*buf);
}

/* Returns whether x was computed, through tensors that vary, from one whose leaf is unknown: because too many tensors
 * would have to be searched, or because an op that recorded no node has computed the tensor. */
static bool has_unknown_leaf(const tg_tensor *x, tg_axis axis, int *left) {
    if (!x || !varies(x, axis)) return false;
    if (--*left < 0) return true;
    if (!x->node) return !leaf_of_bytes(x);
    bool found = false;
    for (int i = 0; i < x->node->n_in && !found; i++) found = has_unknown_leaf(tg_node_in(x->node)[i], axis, left);
    return found;
}

/* Returns the first input that is opaque and may come from a leaf that was not declared, or -1. */
static int opaque_input(const tg_call *c, tg_axis axis) {
    int left = MAX_TENSORS;
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && is_opaque(c->input[i], axis) && has_unknown_leaf(c->input[i], axis, &left)) return i;
    return -1;
}

void tg_placement_remedy(const tg_call *c, tg_axis axis, bool meets, const char *remedy, char *buf, size_t n) {
    char what[160], name[16];
    int input;
    size_t end = 0;
    axis_text(axis, name, sizeof name);
    bool data = meets && data_axes >> axis & 1;
    const cause of = data ? (cause){is_invariant, is_invariant, 0} : (cause){is_undeclared, varies, 0};
    const tg_tensor *leaf = leaf_of_inputs(c, axis, of, &input);
    if (leaf) tg_describe(leaf, what, sizeof what);
    if (leaf && data)
        tg_text(buf, n, &end,
                "declare the leaf that input %d comes from, %s, as R before its first use, tg_place(p, leaf, %s, "
                "TG_R), or all parameters of a module by tg_module_replicate; else ",
                input, what, name);
    else if (leaf || (input = opaque_input(c, axis)) >= 0)
        tg_text(buf, n, &end,
                "declare the leaf that input %d comes from%s%s, before its first use: tg_place(p, leaf, %s, TG_I) if "
                "every rank has the same, TG_SHARD(d) if each has its part of dim d; else ",
                input, leaf ? ", " : "", leaf ? what : "", name);
    tg_text(buf, n, &end, "%s", remedy);
}
