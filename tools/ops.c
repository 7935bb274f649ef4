/* tapegrad ops: prints the table of ops. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/extend.h>

#include "program.h"

typedef struct ops_options {
    bool json, markdown;
} ops_options;

static const option rows[] = {
    {"json", OPTION_FLAG, offsetof(ops_options, json), "", "print JSON", .fixed = false},
    {"markdown", OPTION_FLAG, offsetof(ops_options, markdown), "", "print a table in Markdown", .fixed = false},
};

static const command ops_command = {
    .name = "ops",
    .usage = "[--json | --markdown]",
    .summary = "Prints every op: its name, formula and inputs, and its family, which decides how\n"
               "its dimensions may be sharded.",
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

/* Writes the number of inputs: "2", "2 to 3" if the last ones are optional, or "1 or more". Returns buf. */
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

/* Prints text with bars escaped, because a bar ends a cell in Markdown. */
static void print_cell(const char *text) {
    for (; *text; text++) {
        if (*text == '|') putchar('\\');
        putchar(*text);
    }
}

/* The text before the table in Markdown, docs/ops.md. It says what devices refuse, which no column shows. */
static const char introduction[] =
    "# Operations\n"
    "\n"
    "This page is the table of all operations; `tapegrad ops --markdown` prints it. Read it to find an operation.\n"
    "`ops.h`, `mappings.h`, `megatron.h` and `tensor_parallel.h` in `include/tapegrad/` declare the functions that\n"
    "record them. The family of an operation decides how the dims of its inputs may be sharded over ranks\n"
    "([placements.md](placements.md)).\n"
    "\n"
    "Devices `cpu` and `cuda` run all operations, except that `cuda` refuses `attention` with heads of more than 256\n"
    "elements (TG_ERR_SHAPE). Every device refuses `linear_cross_entropy` with class weights (TG_ERR_UNSUPPORTED). A\n"
    "device that a program adds (`tapegrad/device.h`) may lack some functions. Operations that need them are then\n"
    "composed of functions that every device has. Two groups cannot be composed and fail with TG_ERR_UNSUPPORTED:\n"
    "`sort`, `topk` and `median`; and, if the host cannot read the device's memory, `attention` with a window,\n"
    "lengths or packed sequences.\n"
    "\n";

static void print_markdown(void) {
    char inputs[32];
    fputs(introduction, stdout);
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
    if (o.json && o.markdown) return usage_error(&ops_command, "expected one of --json and --markdown, not both");
    if (o.json) return print_json(ops_json());
    if (o.markdown)
        print_markdown();
    else
        print_text();
    return 0;
}
