/* Calls of ops by name, with named arguments: what a binding for another language needs to offer every op without code
 * for each of them. tg_op (op.h) describes the arguments; `tapegrad ops --json` prints the descriptions. */
#ifndef TAPEGRAD_OP_CALL_H
#define TAPEGRAD_OP_CALL_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_value_kind {
    TG_VALUE_DEFAULT, /* nothing: the argument has its default; an optional input is absent */
    TG_VALUE_BOOL,
    TG_VALUE_INT,
    TG_VALUE_DOUBLE,
    TG_VALUE_TEXT,
    TG_VALUE_LIST,    /* n integers */
    TG_VALUE_TENSOR,  /* an input of the op */
    TG_VALUE_POINTER, /* a tg_comm, or a struct such as tg_placement */
} tg_value_kind;

/* A named argument. The value is the member of the union that belongs to the kind. An argument takes these values:
 *
 * - a bool: BOOL.
 * - an integer: INT, or a DOUBLE without a fraction. The value must fit.
 * - a double: DOUBLE, or an INT that a double can represent.
 * - a dtype or an enum: TEXT, its name, such as "f32" or "mean"; or INT, its value in C.
 * - a text: TEXT.
 * - a shape, a list of dims, an array or a list of integers: LIST, or INT for one integer. An array takes one integer
 *   for all of its elements. A list of dims also takes TEXT "all".
 * - a tensor: TENSOR.
 * - a pointer or a struct: POINTER, which must not be NULL. The library cannot check what it points to.
 *
 * Texts, lists and what pointers point to are the caller's, and must live until the call has returned. */
typedef struct tg_value {
    const char *name;
    tg_value_kind kind;
    int n; /* LIST: the number of integers */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *text;
        const int64_t *list;
        tg_tensor *tensor;
        const void *pointer;
    };
} tg_value;

enum { TG_OP_VALUES = 32 }; /* the greatest number of values of one call */

/* Records the op of the library with this name, and sets out[0] to out[n_out - 1] to its outputs.
 *
 * in[] has the first n_in inputs, in the order of tg_op.inputs. The others are given by name, as values of kind
 * TG_VALUE_TENSOR, or are optional and absent. The op's name is tg_op.name, or that of its C function without "tg_".
 * n_out is the number of outputs (tg_op_output_count).
 *
 * Fails with TG_ERR_ARGUMENT if there is no such op or argument (the message has the nearest name), if an argument is
 * given twice, is missing, or has a value that it does not take; and like tg_apply. out[] then has inert tensors. */
TG_API tg_status tg_op_call(tg_tape *t, const char *name, tg_tensor *const *in, int n_in, const tg_value *values,
                            int n_values, tg_tensor **out, int n_out);

/* An op and the arguments that are given to it by name. tg_op_bind looks the names up once, for calls that give the
 * same arguments again and again. It is the caller's, holds no memory, and belongs to no context. */
typedef struct tg_op_binding {
    size_t size; /* sizeof(tg_op_binding) */
    const tg_op *op;
    int n;
    int16_t at[TG_OP_VALUES]; /* for each name: i for tg_op.fields[i], or -1 - i for input i */
} tg_op_binding;

#define TG_OP_BINDING() ((tg_op_binding){.size = sizeof(tg_op_binding)})

/* Looks up the names of n arguments of op, which tg_op_find or the program supplies, and fills *b. Fails with
 * TG_ERR_ARGUMENT if op is NULL or has no such argument, or if a name occurs twice. */
TG_API tg_status tg_op_bind(tg_ctx *ctx, const tg_op *op, const char *const *names, int n, tg_op_binding *b);
/* tg_op_call with the op and names of b. There are b->n values in the order of the names; their own names are not
 * read. */
TG_API tg_status tg_op_call_bound(tg_tape *t, const tg_op_binding *b, tg_tensor *const *in, int n_in,
                                  const tg_value *values, tg_tensor **out, int n_out);
/* Returns the number of outputs that a call with these values has, before it runs. Returns -1 after recording an error
 * if a value is not one that the argument takes, or if only the op itself can tell (TG_ERR_UNSUPPORTED;
 * tg_op.outputs_of). */
TG_API int tg_op_output_count(tg_ctx *ctx, const tg_op_binding *b, const tg_value *values);

#ifdef __cplusplus
}
#endif

#endif
