/* tapegrad ops: prints the table of ops. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/extend.h>

#include "commands/ops_json.h"
#include "common/program.h"

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
    .summary = "Prints every op: its name, formula and arguments, and its family, which decides how\n"
               "its dimensions may be sharded. Arguments in brackets may be left out.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

const char *family_name(tg_family f) {
    static const char *const names[] = {
        "strict", "pointwise", "scale",  "additive", "factors", "quotient", "select", "matmul",    "linear",
        "sum",    "mean",      "reduce", "softmax",  "shape",   "take",     "loss",   "attention", "custom",
    };
    _Static_assert(sizeof names / sizeof names[0] == TG_FAMILY_CUSTOM + 1, "a family has no name");
    return (unsigned)f <= TG_FAMILY_CUSTOM ? names[f] : "?";
}

/* Appends a name to a list of names. Those that may be left out stand in brackets. */
static void append(char *buf, size_t size, const char *name, int n, bool optional) {
    size_t at = strlen(buf);
    snprintf(buf + at, size - at, "%s%s%.*s%s", at ? ", " : "", optional ? "[" : "", n, name, optional ? "]" : "");
}

/* Writes the inputs of op and then its other arguments, such as "x, w, [b]" or "x, dim, [keepdim]". Returns buf. */
static const char *arguments_text(const tg_op *op, char *buf, size_t size) {
    int i = 0;
    buf[0] = 0;
    for (const char *w = op->inputs; w && *w; i++) {
        int n = (int)strcspn(w, " ");
        append(buf, size, w, n, op->optional >> i & 1);
        w += n + (w[n] == ' ');
    }
    for (i = 0; i < op->n_fields; i++)
        append(buf, size, op->fields[i].name, (int)strlen(op->fields[i].name), !op->fields[i].required);
    return buf;
}

static const char *notes(const tg_op *op) {
    if (op->compose) return "composed";
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
    "\n"
    "The function `tg_matmul` records the operation `matmul`, and so on. `ops.h`, `mappings.h`, `megatron.h`,\n"
    "`placement.h`, `tensor_parallel.h` and `context_parallel.h` in `include/tapegrad/` declare these functions.\n"
    "Where the table has a second name in parentheses, the function has that name. `unshard`, `on_root` and\n"
    "`as_local` have no functions; they are recorded by the gradients of other operations.\n"
    "\n"
    "The arguments are those of a call by name ([embedding.md](embedding.md#bindings)): first the inputs, which are\n"
    "tensors, then numbers and other values. Those in brackets may be left out. `x..` is a list of tensors.\n"
    "`tapegrad ops --json` prints all arguments with their kinds, defaults and meanings.\n"
    "\n"
    "The family of an operation decides how the dims of its inputs may be sharded over ranks\n"
    "([placements.md](placements.md)). The last column says `composed` if the operation is recorded as several other\n"
    "operations, which also compute its gradient if it has one; `in place` if it overwrites its first input; and `no\n"
    "gradient` if no gradient flows through it.\n"
    "\n"
    "Devices `cpu` and `cuda` run all operations, except that `cuda` refuses `attention` with heads of more than 256\n"
    "elements (TG_ERR_SHAPE). Every device refuses `linear_cross_entropy` with class weights (TG_ERR_UNSUPPORTED). A\n"
    "device that a program adds (`tapegrad/device.h`) may lack some functions. Operations that need them are then\n"
    "composed of functions that every device has. Two groups cannot be composed and fail with TG_ERR_UNSUPPORTED:\n"
    "`sort`, `topk` and `median`, and with them `argsort`, `scatter_prod`, `scatter_max` and `scatter_min`, which\n"
    "use `sort`; and, if the host cannot read the device's memory, `attention` with a window, lengths or packed\n"
    "sequences.\n"
    "\n";

static void print_markdown(void) {
    char arguments[256];
    fputs(introduction, stdout);
    printf("| op | formula | arguments | family | note |\n| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        printf("| `%s`", op->name);
        if (op->alias) printf(" (`%s`)", op->alias);
        fputs(" | ", stdout);
        print_cell(op->formula);
        printf(" | %s | %s | %s |\n", arguments_text(op, arguments, sizeof arguments), family_name(op->family),
               notes(op));
    }
}

static void print_text(void) {
    char arguments[256];
    printf("%-22s %-10s %-24s %s\n", "op", "family", "arguments", "formula");
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        const char *note = notes(op);
        printf("%-22s %-10s %-24s %s%s%s%s\n", op->name, family_name(op->family),
               arguments_text(op, arguments, sizeof arguments), op->formula, *note ? " (" : "", note, *note ? ")" : "");
    }
    printf("%d ops\n", tg_op_count());
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
