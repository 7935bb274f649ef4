/* Calls of ops by name, and bindings of named arguments. */
#include "misuse/misuse.h"

#include <tapegrad/op_call.h>

#define BOOLEAN(name_, v_)                                                                                             \
    { .name = name_, .kind = TG_VALUE_BOOL, .boolean = (v_) }
#define INTEGER(name_, v_)                                                                                             \
    { .name = name_, .kind = TG_VALUE_INT, .integer = (v_) }
#define NUMBER(name_, v_)                                                                                              \
    { .name = name_, .kind = TG_VALUE_DOUBLE, .number = (v_) }
#define TEXT(name_, v_)                                                                                                \
    { .name = name_, .kind = TG_VALUE_TEXT, .text = (v_) }
#define TENSOR(name_, v_)                                                                                              \
    { .name = name_, .kind = TG_VALUE_TENSOR, .tensor = (v_) }

static tg_status calls(tg_tape *t, const char *op, tg_tensor *const *in, int n_in, const tg_value *v, int n) {
    tg_tensor *y = NULL;
    tg_status s = tg_op_call(t, op, in, n_in, v, n, &y, 1);
    return s != TG_OK && misuse_inert(y) ? s : TG_OK;
}
/* A call with these named values. */
#define CALL(op, in, n_in, ...)                                                                                        \
    calls(b->t, op, in, n_in, (const tg_value[]){__VA_ARGS__},                                                         \
          (int)(sizeof((const tg_value[]){__VA_ARGS__}) / sizeof(tg_value)))

static void names(misuse_world *b) {
    tg_tensor *const x[] = {b->x, b->x};
    FAILS(tg_op_call, ARGUMENT, "the tape is NULL", calls(NULL, "relu", x, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "the name of the op is NULL", calls(b->t, NULL, x, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "there is no op \"softmx\"; the nearest name is softmax",
          CALL("softmx", x, 1, INTEGER("dim", 0)));
    FAILS(tg_op_call, ARGUMENT, "there is no op \"\"; `tapegrad ops` lists all ops", calls(b->t, "", x, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "softmax: there is no argument \"dimm\"; the nearest is dim; the arguments are x, dim",
          CALL("softmax", x, 1, INTEGER("dimm", 0)));
    FAILS(tg_op_call, ARGUMENT, "relu: there is no argument \"slope\"; the arguments are x",
          CALL("relu", x, 1, NUMBER("slope", 0)));
    FAILS(tg_op_call, ARGUMENT, "the name of argument 0 is NULL", CALL("softmax", x, 1, INTEGER(NULL, 0)));
    FAILS(tg_op_call, ARGUMENT, "argument dim is given twice",
          CALL("softmax", x, 1, INTEGER("dim", 0), INTEGER("dim", 0)));
    FAILS(tg_op_call, ARGUMENT, "softmax: argument dim is missing; it has no default",
          calls(b->t, "softmax", x, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "concat: there is no argument \"x\"; the arguments are dim",
          CALL("concat", x, 1, TENSOR("x", b->x)));
    FAILS(tg_op_call, ARGUMENT, "the call has -1 named arguments", calls(b->t, "relu", x, 1, NULL, -1));
    FAILS(tg_op_call, ARGUMENT, "the call has 33 named arguments; expected 0 to 32",
          calls(b->t, "relu", x, 1, (const tg_value[TG_OP_VALUES + 1]){{0}}, TG_OP_VALUES + 1));
    FAILS(tg_op_call, ARGUMENT, "in an array that is not NULL", calls(b->t, "softmax", x, 1, NULL, 1));
}

static void inputs(misuse_world *b) {
    tg_tensor *const x[] = {b->x, b->x}, *const none[] = {NULL, b->x};
    FAILS(tg_op_call, ARGUMENT, "add: input b is missing", calls(b->t, "add", x, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "add: input a is missing", calls(b->t, "add", none, 2, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "add: input b is given twice", CALL("add", x, 2, TENSOR("b", b->x)));
    FAILS(tg_op_call, ARGUMENT, "argument b is NULL; expected a tensor", CALL("add", x, 1, TEXT("b", NULL)));
    FAILS(tg_op_call, ARGUMENT, "argument b is a tensor; expected a tensor", CALL("add", x, 1, TENSOR("b", NULL)));
    FAILS(tg_op_call, ARGUMENT, "argument b is not given; expected a tensor",
          CALL("add", x, 1, {.name = "b", .kind = TG_VALUE_DEFAULT}));
    FAILS(tg_op_call, ARGUMENT, "relu: the call has 2 inputs, expected 1", calls(b->t, "relu", x, 2, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "the array of inputs is NULL", calls(b->t, "relu", NULL, 1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "or has fewer than 0", calls(b->t, "relu", x, -1, NULL, 0));
    FAILS(tg_op_call, ARGUMENT, "sort: the call has room for 1 output, expected 2", calls(b->t, "sort", x, 1, NULL, 0));
    for (int i = 0; i < MISUSE_HANDLES - 1; i++) {
        const misuse_handle *h = &b->handle[i];
        tg_tensor *operand = i ? h->x : b->dropped;
        MISUSE_TWICE(tg_op_call, calls(h->tape, "relu", &operand, 1, NULL, 0) == h->status, h->ctx, h->status, h->says);
    }
}

static void values(misuse_world *b) {
    tg_tensor *const x[] = {b->x, b->x};
    FAILS(tg_op_call, ARGUMENT, "softmax: argument dim is 1.5; expected an integer of 32 bits",
          CALL("softmax", x, 1, NUMBER("dim", 1.5)));
    FAILS(tg_op_call, ARGUMENT, "argument dim is nan", CALL("softmax", x, 1, NUMBER("dim", NAN)));
    FAILS(tg_op_call, ARGUMENT, "argument dim is 2147483648", CALL("softmax", x, 1, INTEGER("dim", INT64_C(1) << 31)));
    FAILS(tg_op_call, ARGUMENT, "argument dim is true", CALL("softmax", x, 1, BOOLEAN("dim", true)));
    FAILS(tg_op_call, ARGUMENT, "argument dim is not given; expected an integer",
          CALL("softmax", x, 1, {.name = "dim", .kind = TG_VALUE_DEFAULT}));
    FAILS(tg_op_call, ARGUMENT, "argument dim is of the unknown kind 99",
          CALL("softmax", x, 1, {.name = "dim", .kind = (tg_value_kind)99}));
    FAILS(tg_op_call, ARGUMENT, "scale: argument a is \"two\"; expected a number",
          CALL("scale", x, 1, TEXT("a", "two")));
    FAILS(tg_op_call, ARGUMENT, "argument a is 9007199254740993; expected a number",
          CALL("scale", x, 1, INTEGER("a", (INT64_C(1) << 53) + 1)));
    FAILS(tg_op_call, ARGUMENT, "argument keepdim is 1; expected a bool", CALL("sum", x, 1, INTEGER("keepdim", 1)));
    FAILS(tg_op_call, ARGUMENT, "argument dims is \"last\"; expected a list of dims, or the text all",
          CALL("sum", x, 1, TEXT("dims", "last")));
    FAILS(tg_op_call, ARGUMENT, "argument dtype is \"float\"; expected the name of a dtype, such as f32",
          CALL("cast", x, 1, TEXT("dtype", "float")));
    FAILS(tg_op_call, ARGUMENT, "argument dtype is 99", CALL("cast", x, 1, INTEGER("dtype", 99)));
    FAILS(tg_op_call, ARGUMENT, "l1: argument reduction is \"avg\"; expected mean, sum, none or batch_mean",
          CALL("l1", x, 2, TEXT("reduction", "avg")));
    FAILS(tg_op_call, ARGUMENT, "argument reduction is 9", CALL("l1", x, 2, INTEGER("reduction", 9)));
    FAILS(tg_op_call, ARGUMENT, "argument shape is 2.5; expected a shape", CALL("reshape", x, 1, NUMBER("shape", 2.5)));
    FAILS(tg_op_call, ARGUMENT, "argument shape is []; expected a shape",
          CALL("reshape", x, 1, {.name = "shape", .kind = TG_VALUE_LIST, .n = 2}));
    FAILS(tg_op_call, ARGUMENT, "argument stride is [1, 2, 3]; expected one integer, or a list of 2",
          CALL("avg_pool2d", x, 1, INTEGER("h", 1), INTEGER("w", 1),
               {.name = "stride", .kind = TG_VALUE_LIST, .n = 3, .list = (const int64_t[]){1, 2, 3}}));
    FAILS(tg_op_call, ARGUMENT, "argument equation is NULL; expected a text",
          CALL("einsum", x, 2, TEXT("equation", NULL)));
    FAILS(tg_op_call, ARGUMENT, "all_reduce: argument c is NULL; expected a pointer to tg_comm",
          CALL("all_reduce", x, 1, {.name = "c", .kind = TG_VALUE_POINTER}));
    FAILS(tg_op_call, ARGUMENT, "sizes is NULL or n is less than 1",
          CALL("split", x, 1, {.name = "sizes", .kind = TG_VALUE_LIST}));
    FAILS(tg_op_call, ARGUMENT, "chunk: n is 0; it must be 1 or more", CALL("chunk", x, 1, INTEGER("n", 0)));
}

static void bindings(misuse_world *b) {
    const tg_op *softmax = tg_op_find("softmax"), *split = tg_op_find("split");
    const char *const dim[] = {"dim"}, *const sizes[] = {"sizes"};
    const tg_value wrong = NUMBER("sizes", 0.5);
    tg_tensor *y, *x = b->x;
    tg_op unknown = *split, old = *softmax, large = *softmax;
    tg_op_binding made = TG_OP_BINDING(), empty = TG_OP_BINDING(), small = {.size = 8};
    old.size -= 8;
    large.params_size = 4096;
    unknown.outputs_of = NULL;
    QUIET(tg_op_bind, tg_op_bind(NULL, softmax, dim, 1, &made) != TG_OK && !made.op);
    FAILS(tg_op_bind, ARGUMENT, "the op is NULL; tg_op_find returns NULL", tg_op_bind(b->ctx, NULL, dim, 1, &made));
    FAILS(tg_op_bind, ARGUMENT, "the binding is NULL", tg_op_bind(b->ctx, softmax, dim, 1, NULL));
    FAILS(tg_op_bind, ARGUMENT, "the binding", tg_op_bind(b->ctx, softmax, dim, 1, &small));
    FAILS(tg_op_bind, ARGUMENT, "the op", tg_op_bind(b->ctx, &old, dim, 1, &made));
    FAILS(tg_op_bind, ARGUMENT, "in an array that is not NULL", tg_op_bind(b->ctx, softmax, NULL, 1, &made));
    FAILS(tg_op_bind, UNSUPPORTED, "the op has 4096 bytes of params", tg_op_bind(b->ctx, &large, dim, 1, &made));
    QUIET(tg_op_call_bound, tg_op_call_bound(NULL, &made, NULL, 0, NULL, &y, 1) != TG_OK);
    FAILS(tg_op_call_bound, ARGUMENT, "the binding is NULL, or tg_op_bind has not filled it",
          tg_op_call_bound(b->t, NULL, &x, 1, NULL, &y, 1));
    FAILS(tg_op_call_bound, ARGUMENT, "tg_op_bind has not filled it",
          tg_op_call_bound(b->t, &empty, &x, 1, NULL, &y, 1));
    tg_op_bind(b->ctx, softmax, dim, 1, &made);
    FAILS(tg_op_call_bound, ARGUMENT, "the array of values is NULL", tg_op_call_bound(b->t, &made, &x, 1, NULL, &y, 1));
    QUIET(tg_op_output_count, tg_op_output_count(NULL, &made, NULL) == -1);
    GIVES(tg_op_output_count, ARGUMENT, "tg_op_bind has not filled it", tg_op_output_count(b->ctx, &empty, NULL) == -1);
    tg_op_bind(b->ctx, split, sizes, 1, &made);
    GIVES(tg_op_output_count, ARGUMENT, "split: argument sizes is 0.5",
          tg_op_output_count(b->ctx, &made, &wrong) == -1);
    made.op = &unknown;
    GIVES(tg_op_output_count, UNSUPPORTED, "only a call of the op tells how many outputs it has",
          tg_op_output_count(b->ctx, &made, &(tg_value)INTEGER("sizes", 6)) == -1);
}

void misuse_by_name(misuse_world *b) {
    names(b);
    inputs(b);
    values(b);
    bindings(b);
}
