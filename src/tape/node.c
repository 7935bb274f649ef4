/* Queries about a node: its op, its tensors, its cost, and where it was recorded. */
#include "tape/tape.h"
#include "base/text.h"

const tg_op tg_leaf_op = {.size = sizeof(tg_op), .name = "leaf", .formula = "x", .n_in = 0, .n_out = 1};

int64_t tg_tape_nodes(const tg_tape *t) { return t && t->epoch ? t->n_nodes : 0; }

const tg_node *tg_tape_node(tg_tape *t, int64_t i) {
    if (!t || !t->epoch || i < 0 || i >= t->n_nodes) return NULL;
    if (!t->cursor || t->cursor_index > i) {
        t->cursor = t->first;
        t->cursor_index = 0;
    }
    for (; t->cursor_index < i; t->cursor_index++) t->cursor = t->cursor->next;
    return t->cursor;
}

const tg_node *tg_node_of(const tg_tensor *x) { return tg_is_alive(x) ? x->node : NULL; }
const tg_op *tg_node_op(const tg_node *n) { return n ? n->op : NULL; }
int tg_node_inputs(const tg_node *n) { return n ? n->n_in : 0; }
int tg_node_outputs(const tg_node *n) { return n ? n->n_out : 0; }
tg_tensor *tg_node_input(const tg_node *n, int i) { return n && i >= 0 && i < n->n_in ? tg_node_in(n)[i] : NULL; }
tg_tensor *tg_node_output(const tg_node *n, int i) { return n && i >= 0 && i < n->n_out ? tg_node_out(n)[i] : NULL; }
const void *tg_node_params(const tg_node *n) { return n ? tg_node_params_of(n) : NULL; }

int64_t tg_node_flops(const tg_node *n) {
    if (!n || n->flags & TG_N_LEAF) return 0;
    if (n->op->flops) return n->op->flops(n);
    if (!n->op->forward) return 0; /* an op without forward is a view */
    int64_t sum = 0;
    for (int i = 0; i < n->n_out; i++) sum += tg_node_out(n)[i]->numel;
    return sum;
}

static int64_t bytes_of(const tg_tensor *x) { return x ? x->numel * (int64_t)tg_dtype_size(x->dtype) : 0; }

/* Does not count inputs that belong to the context, such as parameters, because they stay allocated anyway. */
int64_t tg_node_saved_bytes(const tg_node *n) {
    if (!n || n->flags & (TG_N_LEAF | TG_N_CONSUMED)) return 0;
    int64_t sum = 0;
    for (int i = 0; i < n->n_in; i++)
        if (tg_bit(n->saves_in, i) && tg_node_in(n)[i] && tg_node_in(n)[i]->tape) sum += bytes_of(tg_node_in(n)[i]);
    for (int i = 0; i < n->n_out; i++)
        if (tg_bit(n->saves_out, i)) sum += bytes_of(tg_node_out(n)[i]);
    for (int i = 0; i < n->n_saved; i++) sum += bytes_of(tg_node_kept(n)[i]);
    return sum;
}

size_t tg_node_site(const tg_node *n, char *buf, size_t size) {
    size_t at = 0;
    if (!buf) size = 0;
    if (size) buf[0] = 0;
    if (!n || n->flags & TG_N_LEAF) return 0;
    at = tg_scope_path(n->scope, buf, size);
    if (at) tg_text(buf, size, &at, ", ");
    const void *site = tg_scope_site(n->scope, n->site);
    return at + tg_describe_site(tg_node_out(n)[0]->ctx, site, at < size ? buf + at : NULL, at < size ? size - at : 0);
}
