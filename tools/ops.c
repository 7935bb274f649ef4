/* tapegrad ops: the op table. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/extend.h>

#include "program.h"

typedef struct ops_options {
    bool json, markdown;
} ops_options;

static const option rows[] = {
    {"json", OPTION_FLAG, offsetof(ops_options, json), "", "as JSON", .fixed = false},
    {"markdown", OPTION_FLAG, offsetof(ops_options, markdown), "", "as a table in Markdown", .fixed = false},
};

static const command ops_command = {
    .name = "ops",
    .usage = "[--json | --markdown]",
    .summary = "Prints every op: name, formula, inputs, and the family that says how its dims may be sharded.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

static const char *family_name(tg_family f) {
    static const char *const names[] = {
        "strict", "pointwise", "scale",  "additive", "factors", "quotient", "select", "matmul",    "linear",
        "sum",    "mean",      "reduce", "softmax",  "shape",   "take",     "loss",   "attention", "custom",
    };
    _Static_assert(sizeof names / sizeof names[0] == TG_FAMILY_CUSTOM + 1, "a family has no name");
    return (unsigned)f <= TG_FAMILY_CUSTOM ? names[f] : "?";
}

/* "2", "2 or 3" where trailing ones are optional, "1 or more". */
static const char *inputs_text(const tg_op *op, char *buf, size_t n) {
    int optional = 0;
    for (int i = 0; i < op->n_in; i++) optional += op->optional >> i & 1;
    if (op->n_in < 0)
        snprintf(buf, n, "%d or more", -op->n_in);
    else if (optional)
        snprintf(buf, n, "%d to %d", op->n_in - optional, op->n_in);
    else
        snprintf(buf, n, "%d", op->n_in);
    return buf;
}

static const char *notes(const tg_op *op) {
    if (op->inplace) return op->backward ? "in place" : "in place, no gradient";
    return op->backward ? "" : "no gradient";
}

/* Markdown takes a bar for the end of a cell. */
static void print_cell(const char *text) {
    for (; *text; text++) {
        if (*text == '|') putchar('\\');
        putchar(*text);
    }
}

/* What no column tells: refusals by a device, and for what is given. */
static const char refusals[] =
    "Devices `cpu` and `cuda` run all of them: `cuda` has every slot that ops compute with. It refuses `attention`\n"
    "with heads of more than 256 elements (TG_ERR_SHAPE). `linear_cross_entropy` with class weights is refused\n"
    "everywhere (TG_ERR_UNSUPPORTED). What another device lacks is composed of the slots that each has, but for\n"
    "`sort`, `topk` and `median`, and where the host does not read its memory `attention` with a window, lengths or\n"
    "packed sequences: these are TG_ERR_UNSUPPORTED there.\n\n";

static void print_markdown(void) {
    char inputs[32];
    fputs(refusals, stdout);
    printf("| op | formula | inputs | family | |\n| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        printf("| `%s` | ", op->name);
        print_cell(op->formula);
        printf(" | %s | %s | %s |\n", inputs_text(op, inputs, sizeof inputs), family_name(op->family), notes(op));
    }
}

static void print_text(void) {
    char inputs[32];
    printf("%-22s %-10s %-10s %s\n", "op", "inputs", "family", "formula");
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        const char *note = notes(op);
        printf("%-22s %-10s %-10s %s%s%s%s\n", op->name, inputs_text(op, inputs, sizeof inputs),
               family_name(op->family), op->formula, *note ? " (" : "", note, *note ? ")" : "");
    }
    printf("%d ops\n", tg_op_count());
}

static json_t *ops_json(void) {
    json_t *all = json_array();
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        json_array_append_new(all, json_pack("{s:s, s:s, s:i, s:i, s:s, s:b, s:b, s:i}", "name", op->name, "formula",
                                             op->formula, "inputs", op->n_in, "outputs", op->n_out, "family",
                                             family_name(op->family), "differentiable", op->backward != NULL,
                                             "in_place", op->inplace, "samples", op->n_samples));
    }
    return all;
}

int run_ops(int argc, char **argv) {
    ops_options o = {0};
    parsed p;
    if (!options_parse(&ops_command, &o, &p, argc, argv)) return p.status;
    if (o.json && o.markdown) return usage_error(&ops_command, "expected one of --json and --markdown");
    if (o.json) return print_json(ops_json());
    if (o.markdown)
        print_markdown();
    else
        print_text();
    return 0;
}
