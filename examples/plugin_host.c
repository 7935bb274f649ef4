/* plugin_host PLUGIN: loads a shared object with an op that this program does not know, shows what arguments it takes,
 * and calls it by name. plugin.c is such an object. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/extend.h>

static const tg_op *load(const char *path) {
    void *object = dlopen(path, RTLD_NOW);
    const tg_op *op = object ? dlsym(object, "plugin_op") : NULL;
    if (!op) fprintf(stderr, "%s\n", dlerror());
    return op;
}

static void describe(const tg_op *op) {
    printf("%s(%s) = %s\n", op->name, op->inputs, op->formula);
    for (int i = 0; i < op->n_fields; i++) printf("  %s: %s\n", op->fields[i].name, op->fields[i].doc);
}

/* Calls op on x with the argument cap, and prints the result and the gradient of its sum. */
static void call(tg_tape *t, const tg_op *op, tg_tensor *x, double cap) {
    tg_op_binding b = TG_OP_BINDING();
    tg_value value = {.kind = TG_VALUE_DOUBLE, .number = cap};
    tg_tensor *y, *g;
    double values[3], slopes[3];
    if (tg_op_bind(tg_tape_ctx(t), op, (const char *[]){"cap"}, 1, &b) != TG_OK) return;
    if (tg_op_call_bound(t, &b, &x, 1, &value, &y, 1) != TG_OK) return;
    tg_read_f64(y, values, 3);
    tg_tensor *sum = tg_sum(t, y, TG_ALL_DIMS, false);
    if (tg_grad(t, &sum, 1, &x, 1, &g, NULL) != TG_OK || tg_read_f64(g, slopes, 3) != TG_OK) return;
    for (int i = 0; i < 3; i++) printf("%7.3f  slope %.3f\n", values[i], slopes[i]);
}

int main(int argc, char **argv) {
    const tg_op *op = argc == 2 ? load(argv[1]) : NULL;
    if (!op) return EXIT_FAILURE;
    describe(op);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_from_host(ctx, TG_F32, TG_SHAPE(3), (float[]){-50, 1, 50});
    tg_set_requires_grad(x, true);
    call(t, op, x, 10);
    bool works = tg_ctx_status(ctx) == TG_OK;
    if (!works) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    call(t, op, x, -1); /* the plugin refuses it */
    printf("%.*s\n", 50, tg_ctx_message(ctx));
    works = works && tg_ctx_status(ctx) == TG_ERR_ARGUMENT;
    tg_ctx_free(ctx);
    return works ? EXIT_SUCCESS : EXIT_FAILURE;
}
