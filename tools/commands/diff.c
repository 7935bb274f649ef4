/* tapegrad diff: compares two recorded steps op by op. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/record.h"
#include "common/text.h"

enum { EQUAL, DIFFERENT, REFUSED }; /* the exit statuses */

typedef struct diff_options {
    int64_t ulp;
    bool all, json;
} diff_options;

static const option rows[] = {
    {"ulp", OPTION_INT, offsetof(diff_options, ulp), "N",
     "count elements that differ by at most N units in the last place as equal", 0,
     LARGEST, false},
    {"all", OPTION_FLAG, offsetof(diff_options, all), "",
     "print every op that differs, not only the first one", .fixed = false},
    {"json", OPTION_FLAG, offsetof(diff_options, json), "", "print JSON", .fixed = false},
};

static const command diff_command = {
    .name = "diff",
    .usage = "FILE FILE [OPTION...]",
    .summary =
        "Compares two steps that tapegrad train --record has written. Prints the first op, in\n"
        "the order in which they ran, whose results or, in backward, whose gradients differ,\n"
        "and by how many units in the last place. The exit status is 0 if all ops are equal,\n"
        "1 if some differ, and 2 if the files cannot be compared, because they are no records\n"
        "or record different programs.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
    .operands = 2,
};

/* ---- Elements ---- */

typedef struct element {
    uint64_t place; /* position among all numbers of its dtype in rising order; 0 and -0 have the same position */
    double value;
} element;

static double half_value(unsigned h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static double float_value(uint64_t bits, tg_dtype d) {
    uint32_t word = (uint32_t)(d == TG_BF16 ? bits << 16 : bits);
    float f;
    double v;
    memcpy(&f, &word, sizeof f);
    memcpy(&v, &bits, sizeof v);
    return d == TG_F64 ? v : d == TG_F16 ? half_value((unsigned)bits) : (double)f;
}

static element element_of(const recorded *x, int64_t i) {
    uint8_t bytes[8];
    uint64_t bits;
    int width = tg_dtype_bits(x->dtype);
    recorded_element(x, i, bytes);
    memcpy(&bits, bytes, sizeof bits);
    uint64_t top = (uint64_t)1 << (width - 1), rest = bits & (top - 1);
    if (x->dtype == TG_F32 || x->dtype == TG_F64 || x->dtype == TG_BF16 || x->dtype == TG_F16)
        return (element){bits & top ? top - rest : top + rest, float_value(bits, x->dtype)};
    if (x->dtype != TG_I64 && x->dtype != TG_I32 && x->dtype != TG_I16 && x->dtype != TG_I8)
        return (element){bits, (double)bits};
    int64_t whole = (int64_t)((bits ^ top) - top);
    return (element){(uint64_t)whole + ((uint64_t)1 << 63), (double)whole};
}

/* Returns the distance in units in the last place: UINT64_MAX between a NaN and a number, 0 between two NaNs. */
static uint64_t distance(element a, element b) {
    if (isnan(a.value) || isnan(b.value)) return isnan(a.value) && isnan(b.value) ? 0 : UINT64_MAX;
    return a.place < b.place ? b.place - a.place : a.place - b.place;
}

/* ---- Tensors ---- */

typedef struct difference {
    bool differs;     /* by more than --ulp or, if that is 0, in any byte */
    int64_t elements; /* number of recorded elements that differ */
    uint64_t most;    /* their largest distance, in units in the last place */
    int64_t at;       /* index in row-major order of the element with that distance; -1: no recorded element differs */
    double a, b;      /* that element in the two runs */
} difference;

static bool same_kind(const recorded *a, const recorded *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && a->every == b->every && a->hashed == b->hashed &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

static difference compare(const recorded *a, const recorded *b, uint64_t ulp) {
    difference d = {.at = -1};
    if (a->hash == b->hash) return d;
    for (int64_t i = 0; i < a->kept; i++) {
        element x = element_of(a, i), y = element_of(b, i);
        uint64_t far = distance(x, y);
        if (far == 0 && (isnan(x.value) || signbit(x.value) == signbit(y.value))) continue;
        d.elements++;
        if (d.at >= 0 && far <= d.most) continue;
        d.most = far;
        d.at = i * a->every;
        d.a = x.value;
        d.b = y.value;
    }
    d.differs = ulp == 0 || d.most > ulp;
    return d;
}

/* ---- Whether the two runs can be compared ---- */

static const char *text_of(const json_t *op, const char *key) { return json_string_value(json_object_get(op, key)); }

static bool is_backward(const json_t *op) { return !strcmp(text_of(op, "pass"), "backward"); }

static int refuse_damaged(const record_file *r) {
    fail("'%s': op %" PRId64 " has a tensor whose description is malformed", r->path, r->at - 1);
    return REFUSED;
}

static int refuse_programs(const record_file *a, const json_t *x, const json_t *y, const char *what) {
    fail("the runs are of different programs: op %" PRId64 " is %s (%s, %s) in one and %s (%s, %s) in the other: %s",
         a->at - 1, text_of(x, "op"), text_of(x, "pass"), text_of(x, "site"), text_of(y, "op"), text_of(y, "pass"),
         text_of(y, "site"), what);
    return REFUSED;
}

/* Checks that the tensors in the list "in" or "out" of two ops have the same kinds. Returns EQUAL or REFUSED. */
static int check_tensors(const record_file *a, const record_file *b, const json_t *x, const json_t *y,
                         const char *list) {
    const json_t *of_x = json_object_get(x, list), *of_y = json_object_get(y, list);
    if (json_array_size(of_x) != json_array_size(of_y))
        return refuse_programs(a, x, y, "the numbers of their tensors differ");
    for (size_t i = 0; i < json_array_size(of_x); i++) {
        recorded p, q;
        char was[200], is[200], what[500];
        if (!recorded_of(json_array_get(of_x, i), &p)) return refuse_damaged(a);
        if (!recorded_of(json_array_get(of_y, i), &q)) return refuse_damaged(b);
        if (same_kind(&p, &q)) continue;
        recorded_text(&p, was, sizeof was);
        recorded_text(&q, is, sizeof is);
        snprintf(what, sizeof what, "%s %zu is %s, and %s%s", !strcmp(list, "in") ? "input" : "result", i, was, is,
                 strcmp(was, is)        ? ""
                 : p.hashed != q.hashed ? ", whose bytes only one of them has"
                                        : " with other elements recorded");
        return refuse_programs(a, x, y, what);
    }
    return EQUAL;
}

static int check_ops(const record_file *a, const record_file *b, const json_t *x, const json_t *y) {
    if (strcmp(text_of(x, "op"), text_of(y, "op")) != 0 || is_backward(x) != is_backward(y))
        return refuse_programs(a, x, y, "the ops differ");
    int status = check_tensors(a, b, x, y, "in");
    return status ? status : check_tensors(a, b, x, y, "out");
}

/* Calls fn for each pair of ops with the same index, until it returns another status than EQUAL. Returns the last
 * status. */
static int each_pair(record_file *a, record_file *b, void *user,
                     int (*fn)(void *user, const record_file *a, const record_file *b, const json_t *x,
                               const json_t *y)) {
    int status = EQUAL;
    record_rewind(a);
    record_rewind(b);
    while (status == EQUAL && a->at < a->ops && b->at < b->ops) {
        json_t *x = record_next(a), *y = x ? record_next(b) : NULL;
        status = x && y ? fn(user, a, b, x, y) : REFUSED;
        json_decref(x);
        json_decref(y);
    }
    return status;
}

static int check_pair(void *user, const record_file *a, const record_file *b, const json_t *x, const json_t *y) {
    (void)user;
    return check_ops(a, b, x, y);
}

static int check_programs(record_file *a, record_file *b) {
    int status = each_pair(a, b, NULL, check_pair);
    if (status || a->ops == b->ops) return status;
    fail("the runs are of different programs: one has %" PRId64 " ops and the other %" PRId64
         "; the first %" PRId64 " are alike",
         a->ops, b->ops, a->ops < b->ops ? a->ops : b->ops);
    return REFUSED;
}

/* ---- What differs ---- */

typedef struct comparison {
    const diff_options *o;
    int64_t ops, differing; /* number of ops; number of ops that differ */
    int64_t printed;        /* index of the last op whose line was printed; -1: none */
    int64_t farthest;       /* index of the op with the largest distance; -1: no recorded element differs */
    uint64_t most;          /* that distance */
    int64_t near, unseen;   /* tensors that differ but count as equal; tensors without bytes in either run */
    json_t *list;           /* the differences, with --json; else NULL */
} comparison;

static void distance_text(const difference *d, tg_dtype dtype, char *buf, size_t n) {
    bool real = dtype == TG_F32 || dtype == TG_F64 || dtype == TG_BF16 || dtype == TG_F16;
    if (d->most == UINT64_MAX)
        snprintf(buf, n, "a NaN in one of them");
    else if (real)
        snprintf(buf, n, "%" PRIu64 " ulp", d->most);
    else
        snprintf(buf, n, "%" PRIu64, d->most);
}

static void place_text(const recorded *x, int64_t at, char *buf, size_t n) {
    int64_t index[TG_MAX_DIMS];
    size_t used = (size_t)snprintf(buf, n, "[");
    for (int i = x->ndim - 1; i >= 0; i--) {
        index[i] = at % x->shape[i];
        at /= x->shape[i];
    }
    for (int i = 0; i < x->ndim; i++)
        used += (size_t)snprintf(buf + used, n - used, "%s%" PRId64, i ? ", " : "", index[i]);
    snprintf(buf + used, n - used, "]");
}

static void print_tensor(const recorded *x, size_t i, bool backward, const difference *d) {
    char what[200], far[64], place[200];
    recorded_text(x, what, sizeof what);
    printf("  %s %zu, %s: ", backward ? "gradient of input" : "result", i, what);
    if (d->at < 0 && x->every == 1) {
        printf("differs only in the bits of NaNs\n");
        return;
    }
    if (d->at < 0) {
        printf("differs, but in none of the %" PRId64 " elements that are recorded\n", x->kept);
        return;
    }
    distance_text(d, x->dtype, far, sizeof far);
    place_text(x, d->at, place, sizeof place);
    printf("%" PRId64 " of %" PRId64 " elements differ%s, the most by %s, at %s: %.9g and %.9g\n", d->elements, x->kept,
           x->every > 1 ? " of those that are recorded" : "", far, place, d->a, d->b);
}

/* For the first op that differs, prints which of its inputs differ, too. */
static void print_inputs(const json_t *x, const json_t *y, bool backward) {
    const json_t *of_x = json_object_get(x, "in"), *of_y = json_object_get(y, "in");
    const char *what = backward ? "the gradient of result" : "input";
    int differ = 0;
    for (size_t i = 0; i < json_array_size(of_x); i++) {
        recorded p, q;
        char text[200];
        recorded_of(json_array_get(of_x, i), &p);
        recorded_of(json_array_get(of_y, i), &q);
        if (!p.hashed || p.hash == q.hash) continue;
        recorded_text(&p, text, sizeof text);
        printf("  %s %zu, %s, differs already\n", what, i, text);
        differ++;
    }
    if (!differ) printf("  %s are equal\n", backward ? "the gradients of its results" : "its inputs");
}

static void print_op(const comparison *c, const json_t *x, int64_t at) {
    char op[128], site[512];
    printf("%sop %" PRId64 " of %" PRId64 ", %s%s (%s):\n", c->differing == 1 ? "the first that differs is " : "", at,
           c->ops, is_backward(x) ? "the backward of " : "", text_escape(op, sizeof op, text_of(x, "op")),
           text_escape(site, sizeof site, text_of(x, "site")));
}

static void list_tensor(const comparison *c, const json_t *x, int64_t at, size_t i, const difference *d) {
    json_t *row = json_pack("{s:I, s:s, s:s, s:s, s:I, s:I, s:I}", "index", (json_int_t)at, "op", text_of(x, "op"),
                            "pass", text_of(x, "pass"), "site", text_of(x, "site"), "tensor", (json_int_t)i, "elements",
                            (json_int_t)d->elements, "at", (json_int_t)d->at);
    if (d->most < UINT64_MAX / 2) json_object_set_new(row, "ulp", json_integer((json_int_t)d->most));
    json_array_append_new(c->list, row);
}

/* Compares the results of two ops, and prints or lists their differences. */
static int compare_pair(void *user, const record_file *a, const record_file *b, const json_t *x, const json_t *y) {
    comparison *c = user;
    const json_t *of_x = json_object_get(x, "out"), *of_y = json_object_get(y, "out");
    int64_t at = a->at - 1, before = c->differing;
    (void)b;
    for (size_t i = 0; i < json_array_size(of_x); i++) {
        recorded p, q;
        recorded_of(json_array_get(of_x, i), &p);
        recorded_of(json_array_get(of_y, i), &q);
        difference d = compare(&p, &q, (uint64_t)c->o->ulp);
        if (d.elements && (c->farthest < 0 || d.most > c->most)) c->farthest = at, c->most = d.most;
        c->near += p.hash != q.hash && !d.differs;
        c->unseen += p.dtype && !p.hashed;
        if (!d.differs) continue;
        if (c->differing == before) c->differing++;
        bool shown = c->o->all || c->differing == 1;
        if (shown && c->list) list_tensor(c, x, at, i, &d);
        if (!shown || c->list) continue;
        if (c->printed != at) print_op(c, x, at);
        c->printed = at;
        print_tensor(&p, i, is_backward(x), &d);
    }
    if (c->differing == 1 && before == 0 && !c->list) print_inputs(x, y, is_backward(x));
    return EQUAL;
}

/* For runs that count as equal, prints how many tensors differ within --ulp, and how many were not compared. */
static void print_remarks(const comparison *c) {
    if (c->near)
        printf("%" PRId64 " tensors differ in their bytes, by no more than --ulp in the elements that are recorded\n",
               c->near);
    if (c->unseen)
        printf("%" PRId64 " tensors had no bytes in either run and were not compared\n", c->unseen);
}

/* Prints the result. Returns the exit status. */
static int print_result(const comparison *c) {
    char within[80] = "";
    if (c->farthest >= 0 && c->o->ulp) snprintf(within, sizeof within, " within %" PRIu64 " ulp", c->most);
    if (c->list)
        return print_json(json_pack("{s:I, s:I, s:I, s:I, s:O}", "ops", (json_int_t)c->ops, "differing",
                                    (json_int_t)c->differing, "near", (json_int_t)c->near, "unseen",
                                    (json_int_t)c->unseen, "differences", c->list))
                   ? REFUSED
                   : c->differing > 0;
    if (!c->differing) {
        printf("the runs are equal%s: %" PRId64 " ops, forward and backward\n", within, c->ops);
        print_remarks(c);
        return EQUAL;
    }
    printf("%" PRId64 " of the %" PRId64 " ops differ", c->differing, c->ops);
    if (c->farthest >= 0 && c->most < UINT64_MAX)
        printf(", the most by %" PRIu64 " ulp, in op %" PRId64, c->most, c->farthest);
    else if (c->farthest >= 0)
        printf("; op %" PRId64 " has a NaN in one of them", c->farthest);
    printf("\n");
    return DIFFERENT;
}

static int diff(const diff_options *o, record_file *a, record_file *b, const char *const path[2]) {
    if (!record_open(a, path[0]) || !record_open(b, path[1])) return REFUSED;
    int status = check_programs(a, b);
    if (status) return status;
    comparison c = {.o = o, .ops = a->ops, .printed = -1, .farthest = -1, .list = o->json ? json_array() : NULL};
    status = each_pair(a, b, &c, compare_pair);
    if (status == EQUAL) status = print_result(&c);
    json_decref(c.list);
    return status;
}

int run_diff(int argc, char **argv) {
    diff_options o = {0};
    record_file a = {0}, b = {0};
    parsed p;
    if (!options_parse(&diff_command, &o, &p, argc, argv)) return p.status;
    if (!p.operand[1]) return usage_error(&diff_command, "expected two FILEs that tapegrad train --record has written");
    int status = diff(&o, &a, &b, p.operand);
    record_close(&a);
    record_close(&b);
    return status;
}
