/* Calls ops by name, as a binding for another language does: a small language whose functions are the ops of the table.
 *
 * A line such as "p = softmax m dim=1" calls the op softmax on the variable m, and stores the result in p. The program
 * has no code for any op: it passes on names, and tells values apart by their form.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>

enum { VARIABLES = 16, VALUES = 8, NUMBERS = 8 };

typedef struct variable {
    char name[16];
    tg_tensor *value;
} variable;

typedef struct program {
    tg_tape *t;
    variable variables[VARIABLES];
    int n_variables;
} program;

/* One line, as tg_op_call takes it. */
typedef struct call {
    tg_tensor *input[VALUES];
    tg_value values[VALUES];
    int64_t lists[VALUES][NUMBERS];
    int n_in, n_values;
} call;

static tg_tensor *find(const program *p, const char *name) {
    for (int i = 0; i < p->n_variables; i++)
        if (strcmp(p->variables[i].name, name) == 0) return p->variables[i].value;
    return NULL;
}

/* Reads "2,3" as a list of integers, "2" as one, "0.5" as a number, true and false as bools, and the rest as text. The
 * library converts what it can, and refuses the rest. */
static tg_value value_of(const char *name, const char *text, int64_t *list) {
    tg_value v = {.name = name, .kind = TG_VALUE_TEXT, .text = text};
    char *end = (char *)text;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return (tg_value){.name = name, .kind = TG_VALUE_BOOL, .boolean = *text == 't'};
    for (const char *at = text; v.n < NUMBERS; at = end + 1) {
        list[v.n++] = strtoll(at, &end, 10);
        if (end == at || *end != ',') break;
    }
    if (*end == 0 && v.n > 1) return (tg_value){.name = name, .kind = TG_VALUE_LIST, .n = v.n, .list = list};
    if (*end == 0) return (tg_value){.name = name, .kind = TG_VALUE_INT, .integer = list[0]};
    double number = strtod(text, &end);
    if (*end == 0) return (tg_value){.name = name, .kind = TG_VALUE_DOUBLE, .number = number};
    return v;
}

/* Adds a word of a line: the name of a variable, or name=value. */
static void add_word(const program *p, call *c, char *word) {
    char *is = strchr(word, '=');
    if (!is) {
        if (c->n_in < VALUES) c->input[c->n_in++] = find(p, word);
        return;
    }
    *is = 0;
    tg_tensor *x = find(p, is + 1);
    if (c->n_values == VALUES) return;
    tg_value *v = &c->values[c->n_values];
    *v = x ? (tg_value){.name = word, .kind = TG_VALUE_TENSOR, .tensor = x}
           : value_of(word, is + 1, c->lists[c->n_values]);
    c->n_values++;
}

/* Runs "name = op words", and returns the status of the call. */
static tg_status run(program *p, char *line) {
    call c = {.n_in = 0};
    char *name = strtok(line, " "), *op = strtok(NULL, " =");
    for (char *word; (word = strtok(NULL, " "));) add_word(p, &c, word);
    tg_tensor *y;
    tg_status s = tg_op_call(p->t, op, c.input, c.n_in, c.values, c.n_values, &y, 1);
    if (s != TG_OK || p->n_variables == VARIABLES) return s;
    snprintf(p->variables[p->n_variables].name, sizeof p->variables[0].name, "%s", name);
    p->variables[p->n_variables++].value = y;
    return s;
}

static void print(const char *name, tg_tensor *x) {
    double v[16];
    int64_t n = tg_numel(x);
    if (n > 16 || tg_read_f64(x, v, n) != TG_OK) return;
    printf("%s:", name);
    for (int64_t i = 0; i < n; i++) printf(" %.3f", v[i]);
    puts("");
}

int main(void) {
    char lines[][64] = {
        "x = arange stop=6 dtype=f64", "m = reshape x shape=2,3", "p = softmax m dim=1",   "q = clamp p lo=0.1 hi=0.6",
        "s = sum q dims=all",          "e = softmax m dimm=1",    "e = softmax m dim=0.5",
    };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    program p = {.t = tg_tape_new(ctx)};
    int refused = 0;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (run(&p, lines[i]) == TG_OK) {
            print(p.variables[p.n_variables - 1].name, p.variables[p.n_variables - 1].value);
            continue;
        }
        printf("%.*s\n", (int)strcspn(tg_ctx_message(ctx), "("), tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        refused++;
    }
    tg_ctx_free(ctx);
    return refused == 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
