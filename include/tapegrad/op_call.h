/* Calls of ops by name, with named arguments. With them a library for another language can offer every op without code
 * for each one. tg_op (op.h) describes the arguments; `tapegrad ops --json` prints the descriptions. */
#ifndef TAPEGRAD_OP_CALL_H
#define TAPEGRAD_OP_CALL_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_value_kind {
    TG_VALUE_DEFAULT, /* no value: the argument has its default, and an optional input is absent */
    TG_VALUE_BOOL,
    TG_VALUE_INT,
    TG_VALUE_DOUBLE,
    TG_VALUE_TEXT,
    TG_VALUE_LIST,    /* n integers */
    TG_VALUE_TENSOR,  /* an input of the op */
    TG_VALUE_POINTER, /* a pointer to a tg_comm, or to a struct such as tg_placement */
} tg_value_kind;

/* A named argument. The value is the member of the union that belongs to the kind. Which kinds an argument takes
 * depends on its type:
 *
 * - a bool: BOOL.
 * - an integer: INT, or a DOUBLE without a fraction. The value must be in the range of the argument's C type.
 * - a double: DOUBLE, or an INT that a double represents exactly.
 * - a dtype: TEXT, its name, such as "f32"; or INT, its value in C.
 * - an enum: TEXT, the name of one of its values, such as "TG_LOSS_MEAN", or without the prefix and in capitals or
 *   small letters, such as "mean"; or INT, one of its values.
 * - a text: TEXT.
 * - a shape, a list of dims or a list of integers: LIST, or INT for a list of one integer. A list of dims also takes
 *   TEXT "all".
 * - an array: LIST with as many integers as the array has elements, or INT for the value of every element.
 * - a tensor: TENSOR, which must not be NULL.
 * - a pointer or a struct: POINTER, which must not be NULL. A struct is copied. The library cannot check what the
 *   pointer points to.
 *
 * Every argument that has a default, and every optional input, also takes DEFAULT.
 *
 * Texts, lists and structs are the caller's, and must live until the call has returned. A text or list for an op of the
 * program (tg_op_bind) must live as long as the node, unless infer replaces the pointer. A communicator must live until
 * the node of the call ends, because backward uses it too. */
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

/* Records the op of the library whose tg_op.name or tg_op.alias is `name`, and sets out[0] to out[n_out - 1] to its
 * outputs. n_out is the number of outputs (tg_op_output_count).
 *
 * in[] has the first n_in inputs, in the order of tg_op.inputs. The other inputs are given by name, as values of kind
 * TG_VALUE_TENSOR, or are optional and absent. An entry of in[] that is NULL is like an input that is not in in[]. If
 * the op takes any number of inputs (tg_op.n_in < 0), all of them are in in[]. values[] has n_values arguments in any
 * order, 0 to TG_OP_VALUES. An array may be NULL if its number is 0.
 *
 * Fails with TG_ERR_ARGUMENT if there is no such op or argument (the message has the nearest name), or if an argument
 * is given twice, is missing but has no default, or has a value that it does not take. Also fails with the errors of
 * tg_apply. On an error out[] has inert tensors. */
TG_API tg_status tg_op_call(tg_tape *t, const char *name, tg_tensor *const *in, int n_in, const tg_value *values,
                            int n_values, tg_tensor **out, int n_out);

/* An op and the names of arguments. tg_op_bind looks the names up once, for calls that give the same arguments again
 * and again. A binding owns no memory and needs no free. It belongs to no context: any number of contexts and threads
 * may use it. */
typedef struct tg_op_binding {
    size_t size; /* sizeof(tg_op_binding) */
    const tg_op *op;
    int n;
    int16_t at[TG_OP_VALUES]; /* for each name: i for tg_op.fields[i], or -1 - i for input i */
} tg_op_binding;

#define TG_OP_BINDING() ((tg_op_binding){.size = sizeof(tg_op_binding)}) /* initializes a binding for tg_op_bind */

/* Looks up the names of n arguments of op, 0 to TG_OP_VALUES, and fills *b, which TG_OP_BINDING() initializes. op is an
 * op of the library (tg_op_find) or of the program, and must live as long as b is used. The names are not kept.
 *
 * Fails with TG_ERR_ARGUMENT if op or b is NULL, if b was not initialized, if op has no such argument, if a name is
 * NULL or occurs twice, or if a required argument of tg_op.fields is missing. (Inputs may be missing: tg_op_call_bound
 * also takes them by position.) Fails with TG_ERR_UNSUPPORTED if the op has more than 1024 bytes of params or more than
 * 31 inputs; lists of inputs (tg_op.n_in < 0) may be longer. On an error *b is unchanged. */
TG_API tg_status tg_op_bind(tg_ctx *ctx, const tg_op *op, const char *const *names, int n, tg_op_binding *b);
/* Does what tg_op_call does, with the op and the names of b. values[] has b->n values in the order of the names. Their
 * member `name` is not read. */
TG_API tg_status tg_op_call_bound(tg_tape *t, const tg_op_binding *b, tg_tensor *const *in, int n_in,
                                  const tg_value *values, tg_tensor **out, int n_out);
/* Returns the number of outputs that a call with these values will have; 0 if they ask for a negative number, which the
 * call refuses. values[] is as for tg_op_call_bound; it is read only if the op has n_out < 0. Returns -1 on an error:
 * TG_ERR_ARGUMENT if tg_op_bind has not filled b or if an argument does not take its value, TG_ERR_UNSUPPORTED if only
 * the op itself can tell the number (tg_op.outputs_of is NULL). */
TG_API int tg_op_output_count(tg_ctx *ctx, const tg_op_binding *b, const tg_value *values);

#ifdef __cplusplus
}
#endif

#endif
