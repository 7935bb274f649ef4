/* tg_tape_dump: the tape as a table, as JSON, or as a graph in the language of Graphviz. */
#include <tapegrad/explain.h>

#include "base/text.h"
#include "tape/tape.h"

/* Describes up to four inputs or outputs of a node. */
static void shapes(const tg_node *n, bool outputs, char *buf, size_t size) {
    size_t at = 0;
    int count = outputs ? n->n_out : n->n_in;
    buf[0] = 0;
    for (int i = 0; i < count && i < 4; i++) {
        char one[160];
        const tg_tensor *x = outputs ? tg_node_out(n)[i] : tg_node_in(n)[i];
        if (x)
            tg_describe(x, one, sizeof one);
        tg_text(buf, size, &at, "%s%s", i ? ", " : "", x ? one : "absent");
    }
    if (count > 4) tg_text(buf, size, &at, ", %d more", count - 4);
}

static tg_node_extra times(const tg_node *n) {
    return n->flags & TG_N_TIMED ? *tg_node_extra_of(n) : (tg_node_extra){0};
}

static void text_row(const tg_node *n, int64_t i, char *buf, size_t size, size_t *at) {
    char in[512], out[512], site[256];
    shapes(n, false, in, sizeof in);
    shapes(n, true, out, sizeof out);
    tg_node_site(n, site, sizeof site);
    tg_node_extra e = times(n);
    tg_text(buf, size, at, "%6lld  %-20s %12lld %14lld %10.1f %10.1f  %s%s%s  %s\n", (long long)i, n->op->name,
            (long long)tg_node_saved_bytes(n), (long long)tg_node_flops(n), 1e6 * e.forward_s, 1e6 * e.backward_s, in,
            *in ? " -> " : "", out, site);
}

/* Returns the number by which the dump names a tensor: its serial number. A dropped tensor has no serial number any
 * more, so its address is used. No other tensor has this address while a node needs the dropped tensor. */
static unsigned long long id_of(const tg_tensor *x) {
    return x->serial >= TG_SERIAL_FIRST ? x->serial : (unsigned long long)(uintptr_t)x;
}

static void json_tensors(const tg_node *n, bool outputs, char *buf, size_t size, size_t *at) {
    int count = outputs ? n->n_out : n->n_in;
    tg_text(buf, size, at, "[");
    for (int i = 0; i < count; i++) {
        const tg_tensor *x = outputs ? tg_node_out(n)[i] : tg_node_in(n)[i];
        if (i) tg_text(buf, size, at, ", ");
        if (!x) {
            tg_text(buf, size, at, "null");
            continue;
        }
        tg_text(buf, size, at, "{\"id\": %llu, \"name\": ", id_of(x));
        tg_text_json(buf, size, at, tg_name(x));
        tg_text(buf, size, at, ", \"dtype\": \"%s\", \"shape\": ", tg_dtype_name(x->dtype));
        *at += tg_shape_text(x->ndim, x->shape, *at < size ? buf + *at : NULL, *at < size ? size - *at : 0);
        tg_text(buf, size, at, "}");
    }
    tg_text(buf, size, at, "]");
}

static void json_seconds(const char *name, double seconds, char *buf, size_t size, size_t *at) {
    tg_text(buf, size, at, ", \"%s\": %s", name, tg_decimal_of('g', 9, seconds).text);
}

static void json_row(const tg_node *n, int64_t i, char *buf, size_t size, size_t *at) {
    char site[256];
    tg_node_extra e = times(n);
    tg_text(buf, size, at, "%s\n  {\"index\": %lld, \"op\": ", i ? "," : "", (long long)i);
    tg_text_json(buf, size, at, n->op->name);
    tg_text(buf, size, at, ", \"inputs\": ");
    json_tensors(n, false, buf, size, at);
    tg_text(buf, size, at, ", \"outputs\": ");
    json_tensors(n, true, buf, size, at);
    tg_text(buf, size, at, ", \"saved_bytes\": %lld, \"flops\": %lld", (long long)tg_node_saved_bytes(n),
            (long long)tg_node_flops(n));
    json_seconds("forward_s", e.forward_s, buf, size, at);
    json_seconds("backward_s", e.backward_s, buf, size, at);
    tg_text(buf, size, at, ", \"site\": ");
    tg_node_site(n, site, sizeof site);
    tg_text_json(buf, size, at, site);
    tg_text(buf, size, at, "}");
}

/* ---- Graphviz: a box for each op, an ellipse for each leaf ---- */

/* Returns the number in the name of the graph's node for x. It is the number (id_of) of the first output of the op that
 * made x or, for a leaf, of x itself. */
static unsigned long long dot_id(const tg_tensor *x) {
    return id_of(x->node ? tg_node_out(x->node)[0] : x);
}

static void dot_tensor(const tg_tensor *x, char *buf, size_t size, size_t *at) {
    char what[160];
    tg_describe(x, what, sizeof what);
    tg_text(buf, size, at, "  n%llu [shape=ellipse, label=\"", dot_id(x));
    tg_text_escaped(buf, size, at, TG_DOT, what);
    tg_text(buf, size, at, "\"];\n");
}

static void dot_row(const tg_node *n, char *buf, size_t size, size_t *at) {
    char out[512];
    shapes(n, true, out, sizeof out);
    if (n->flags & TG_N_LEAF) return;
    tg_text(buf, size, at, "  n%llu [label=\"", dot_id(tg_node_out(n)[0]));
    tg_text_escaped(buf, size, at, TG_DOT, n->op->name);
    tg_text(buf, size, at, "\\n");
    tg_text_escaped(buf, size, at, TG_DOT, out);
    tg_text(buf, size, at, "\"];\n");
    for (int i = 0; i < n->n_in; i++) {
        const tg_tensor *x = tg_node_in(n)[i];
        if (!x) continue;
        if (!x->node) dot_tensor(x, buf, size, at);
        tg_text(buf, size, at, "  n%llu -> n%llu;\n", dot_id(x), dot_id(tg_node_out(n)[0]));
    }
}

/* ---- Public functions ---- */

static const char *const head[] = {
    [TG_TEXT] = "  node  op                  saved bytes          FLOPs forward us backward us  shapes, call site\n",
    [TG_JSON] = "[",
    [TG_DOT] = "digraph tape {\n  node [shape=box];\n",
};
static const char *const tail[] = {[TG_TEXT] = "", [TG_JSON] = "\n]\n", [TG_DOT] = "}\n"};

size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t size) {
    size_t at = 0;
    int64_t i = 0;
    if (!buf) size = 0;
    if (size) buf[0] = 0;
    if (!t || !t->epoch) return 0;
    if (format < TG_TEXT || format > TG_DOT) {
        tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_tape_dump: format %d, expected TG_TEXT, TG_JSON or TG_DOT", (int)format);
        return 0;
    }
    tg_text(buf, size, &at, "%s", head[format]);
    for (const tg_node *n = t->first; n; n = n->next, i++) {
        if (format == TG_JSON)
            json_row(n, i, buf, size, &at);
        else if (format == TG_DOT)
            dot_row(n, buf, size, &at);
        else
            text_row(n, i, buf, size, &at);
    }
    tg_text(buf, size, &at, "%s", tail[format]);
    return at;
}
