/* tg_print: the values of a tensor as NumPy prints an array. Reads the elements that are shown into an array on the
 * host, which is the whole tensor, or, of a summary, the ends of each dim. */
#include <tapegrad/print.h>

#include <string.h>

#include "base/options.h"
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/context.h"
#include "debug/number_text.h"

/* The elements that are shown, and how. */
typedef struct printed {
    tg_tensor *x;
    tg_print_opts o;
    bool summary;
    int64_t shape[TG_MAX_DIMS], numel; /* of the elements that are shown */
    char *elements;                    /* in row-major order */
    tg_number_format format;
    char *buf;
    size_t n, at;
    int column; /* number of characters in the current line */
    int spaces; /* how many of them are spaces that are still to be written, unless the line ends */
} printed;

/* ---- Reading ---- */

/* Returns how many elements of a cut dim are shown: `edge` at each end. */
static int64_t shown(const printed *p) { return 2 * (int64_t)p->o.edge; }

/* Returns whether the summary leaves out elements of dim d. */
static bool is_cut(const printed *p, int d) { return p->summary && p->x->shape[d] > shown(p); }

/* Copies one block of the tensor to its place in p->elements. A summary with k cut dims shows 2^k blocks. If bit d of
 * `ends` is set, the block lies at the end of the cut dim d; otherwise it begins at index 0 of dim d. */
static tg_status read_block(printed *p, uint32_t ends) {
    const tg_tensor *x = p->x;
    int64_t shape[TG_MAX_DIMS], from = x->offset, to = 0, step = 1, numel = 1, to_stride[TG_MAX_DIMS];
    size_t size = tg_dtype_size(x->dtype);
    for (int d = x->ndim - 1; d >= 0; d--) {
        shape[d] = is_cut(p, d) ? p->o.edge : x->shape[d];
        if (ends >> d & 1) from += (x->shape[d] - p->o.edge) * x->stride[d], to += p->o.edge * step;
        to_stride[d] = step;
        step *= p->shape[d];
        numel *= shape[d];
    }
    tg_tensor *block = tg_temp_new(x->ctx, x->dtype, x->ndim, shape, x->stride, tg_storage_ref(x->storage), from);
    char *bytes = block ? tg_host_alloc(x->ctx, (size_t)numel * size) : NULL;
    tg_status s = bytes ? tg_read(block, bytes, (size_t)numel * size) : x->ctx->run.status;
    for (int64_t i = 0; i < numel && s == TG_OK; i++) {
        int64_t at = to, rest = i;
        for (int d = x->ndim - 1; d >= 0; rest /= shape[d--]) at += rest % shape[d] * to_stride[d];
        memcpy(p->elements + (size_t)at * size, bytes + (size_t)i * size, size);
    }
    if (bytes) tg_host_free(x->ctx, bytes, (size_t)numel * size);
    tg_temp_free(block);
    return s;
}

static tg_status read_elements(printed *p) {
    for (uint32_t ends = 0; ends < 1u << p->x->ndim; ends++) {
        bool exists = true;
        for (int d = 0; d < p->x->ndim; d++) exists &= !(ends >> d & 1) || is_cut(p, d);
        if (exists) TG_TRY(read_block(p, ends));
    }
    return TG_OK;
}

/* ---- Writing ---- */

/* Appends text. Spaces at its end are not written before other characters follow in the same line. */
static void put(printed *p, const char *text) {
    int length = (int)strlen(text), end = length;
    while (end && text[end - 1] == ' ') end--;
    p->column += length;
    if (end) {
        tg_text(p->buf, p->n, &p->at, "%*s%.*s", p->spaces, "", end, text);
        p->spaces = 0;
    }
    p->spaces += length - end;
}

/* Writes `lines` line ends, and indents the next line by one space for each of the `brackets` that are open. */
static void new_line(printed *p, int lines, int brackets) {
    p->spaces = 0;
    for (int i = 0; i < lines; i++) put(p, "\n");
    p->column = 0;
    for (int i = 0; i < brackets; i++) put(p, " ");
}

/* Writes a word of the innermost dim. If it would reach beyond column `end` and is not the first one in its line,
 * begins a new line first. */
static void put_word(printed *p, const char *word, int end) {
    if (p->column + (int)strlen(word) > end && p->column > p->x->ndim) new_line(p, 1, p->x->ndim);
    put(p, word);
}

/* Writes the elements of the last dim, from p->elements[at] on, in brackets. */
static void put_row(printed *p, int64_t at) {
    int d = p->x->ndim - 1, end = p->o.width - p->x->ndim;
    char word[TG_NUMBER_TEXT];
    put(p, "[");
    for (int64_t i = 0; i < p->shape[d]; i++) {
        if (i) put(p, " ");
        if (is_cut(p, d) && i == p->o.edge) {
            put_word(p, "...", end);
            put(p, " ");
        }
        tg_number_text(&p->format, p->elements, at + i, word);
        put_word(p, word, end);
    }
    put(p, "]");
}

/* Writes dims d and later, in brackets: the `step` elements from p->elements[at] on. */
static void put_dims(printed *p, int d, int64_t at, int64_t step) {
    if (d == p->x->ndim - 1) {
        put_row(p, at);
        return;
    }
    put(p, "[");
    step /= p->shape[d];
    for (int64_t i = 0; i < p->shape[d]; i++) {
        if (i) new_line(p, p->x->ndim - 1 - d, d + 1);
        if (is_cut(p, d) && i == p->o.edge) {
            put(p, "...");
            new_line(p, p->x->ndim - 1 - d, d + 1);
        }
        put_dims(p, d + 1, at + i * step, step);
    }
    put(p, "]");
}

static void put_all(printed *p) {
    char word[TG_NUMBER_TEXT], what[256];
    if (p->x->ndim && !p->numel) {
        put(p, "[]");
    } else if (!p->x->ndim) {
        tg_scalar_text(p->x->dtype, p->elements, word);
        put(p, word);
    } else {
        p->format = tg_number_format_for(p->x->dtype, p->elements, p->numel, p->o.precision);
        put_dims(p, 0, 0, p->numel);
    }
    tg_describe(p->x, what, sizeof what);
    if (!p->o.values_only) tg_text(p->buf, p->n, &p->at, "%s%s", p->x->ndim ? "\n" : " ", what);
}

/* ---- tg_print ---- */

static tg_status choose(printed *p, const tg_print_opts *given) {
    tg_ctx *ctx = p->x->ctx;
    TG_TRY(tg_options(ctx, &p->o, &tg_print_opts_struct, given, "tg_print: the options"));
    if (p->o.precision < 0 || p->o.threshold < 0 || p->o.edge < 1 || p->o.width < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_print: precision is %d, threshold %lld, edge %d and width %d; expected 0 or more of the "
                       "first two, and 1 or more of the others",
                       p->o.precision, (long long)p->o.threshold, p->o.edge, p->o.width);
    p->summary = p->x->numel > p->o.threshold;
    p->numel = 1;
    for (int d = 0; d < p->x->ndim; d++) {
        p->shape[d] = is_cut(p, d) ? shown(p) : p->x->shape[d];
        p->numel *= p->shape[d];
    }
    return TG_OK;
}

size_t tg_print(tg_tensor *x, char *buf, size_t n, const tg_print_opts *opts) {
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    if (!x || !tg_ok(x->ctx) || tg_check(x->ctx, x, "tg_print") != TG_OK) return 0;
    if (tg_refuse_partial(x, "tg_print") != TG_OK) return 0; /* the handles of blocks do not have the flag */
    printed p = {.x = x, .buf = buf, .n = n};
    if (choose(&p, opts) != TG_OK) return 0;
    size_t bytes = (size_t)p.numel * tg_dtype_size(x->dtype);
    p.elements = bytes ? tg_host_alloc(x->ctx, bytes) : NULL;
    if ((bytes && !p.elements) || (bytes && read_elements(&p) != TG_OK))
        p.at = 0;
    else
        put_all(&p);
    if (p.elements) tg_host_free(x->ctx, p.elements, bytes);
    return p.at;
}
