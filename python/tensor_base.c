/* TensorBase: each object owns a box, and each of its operators is one call of bridge.h. Functions of tensor.py handle
 * errors, and operands that are neither tensors nor numbers. */
#include "objects.h"

#include <stddef.h>
#include <structmember.h>

typedef struct tensor {
    PyObject head;
    PyObject *weak; /* the list of weak references */
    tgpy_box *box;
} tensor;

static PyTypeObject *base;

bool tgpy_is_tensor(PyObject *o) { return PyObject_TypeCheck(o, base); }
tgpy_box *tgpy_box_of(PyObject *x) { return ((tensor *)x)->box; }

/* ---- Objects ---- */

/* Returns an object of the type that owns the box. Drops the box if there is no memory. */
static PyObject *new_of(PyTypeObject *type, tgpy_box *box) {
    PyObject *x = type->tp_alloc(type, 0);
    if (x)
        ((tensor *)x)->box = box;
    else
        tgpy_box_drop(box);
    return x;
}

PyObject *tgpy_result(PyObject *x, tgpy_box *box) {
    return box ? new_of(tgpy.tensor, box) : PyObject_CallOneArg(tgpy.fail, x);
}

static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)args, (void)named;
    return PyErr_Format(PyExc_TypeError, "%s() makes no tensor; tapegrad.tensor(data) does", type->tp_name);
}

/* Drops a box, which may be NULL. Releases the GIL only to free the context, which may wait for threads that need the
 * GIL. */
static void drop(tgpy_box *box) {
    tgpy_world *ended = box ? tgpy_box_end(box) : NULL;
    if (!ended) return;
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_world_end(ended);
    PyEval_RestoreThread(thread);
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (((tensor *)self)->weak) PyObject_ClearWeakRefs(self);
    drop(tgpy_box_of(self));
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *of(PyObject *type, PyObject *pointer) {
    tgpy_box *box = tgpy_pointer_of(pointer, tgpy.box_type);
    if (!box && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no tensor");
    return box ? new_of((PyTypeObject *)type, box) : NULL;
}

static void swap(PyObject *a, PyObject *b) {
    tgpy_box *box = tgpy_box_of(a);
    ((tensor *)a)->box = tgpy_box_of(b);
    ((tensor *)b)->box = box;
}

static PyObject *swap_with(PyObject *self, PyObject *other) {
    if (!tgpy_is_tensor(other)) return PyErr_Format(PyExc_TypeError, "only tensors can be swapped");
    swap(self, other);
    Py_RETURN_NONE;
}

static PyObject *get_box(PyObject *self, void *unused) {
    (void)unused;
    return tgpy_object_of(tgpy_box_of(self), tgpy.box_type);
}

/* Returns the tensor in C; NULL with an exception if it has ended. */
static tg_tensor *live(PyObject *self) {
    tg_tensor *x = tgpy_tensor(tgpy_box_of(self));
    if (x && tg_is_alive(x)) return x;
    if (x) tg_item(x); /* records the error with its reason */
    Py_XDECREF(tgpy_result(self, NULL));
    return NULL;
}

static PyObject *get_shape(PyObject *self, void *unused) {
    (void)unused;
    tg_tensor *x = live(self);
    PyObject *shape = x ? PyTuple_New(tg_ndim(x)) : NULL;
    for (int i = 0; shape && i < tg_ndim(x); i++) {
        PyObject *n = PyLong_FromLongLong(tg_dim(x, i));
        if (n)
            PyTuple_SET_ITEM(shape, i, n);
        else
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *get_dtype(PyObject *self, void *unused) {
    (void)unused;
    tg_tensor *x = live(self);
    return x ? PyUnicode_InternFromString(tg_dtype_name(tg_dtype_of(x))) : NULL;
}

static PyObject *get_ndim(PyObject *self, void *unused) {
    (void)unused;
    tg_tensor *x = live(self);
    return x ? PyLong_FromLong(tg_ndim(x)) : NULL;
}

/* ---- Operators ---- */

typedef tg_tensor *unary_op(tg_tape *, tg_tensor *);
typedef tg_tensor *binary_op(tg_tape *, tg_tensor *, tg_tensor *);
typedef tg_tensor *number_op(tg_tape *, tg_tensor *, double);

static PyObject *of_one(unary_op *op, PyObject *x) {
    if (tgpy_note_caller()) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_unary(op, tgpy_box_of(x));
    PyEval_RestoreThread(thread);
    return tgpy_result(x, box);
}

static PyObject *of_two(binary_op *op, PyObject *a, PyObject *b) {
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_binary(op, tgpy_box_of(a), tgpy_box_of(b));
    PyEval_RestoreThread(thread);
    return tgpy_result(a, box);
}

static PyObject *of_number(number_op *op, PyObject *x, PyObject *b) {
    double number = PyFloat_AsDouble(b);
    if (number == -1 && PyErr_Occurred()) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_with_number(op, tgpy_box_of(x), number);
    PyEval_RestoreThread(thread);
    return tgpy_result(x, box);
}

static bool is_number(PyObject *o) { return PyFloat_Check(o) || PyLong_Check(o); }

/* Returns whether the dtype of x is a float. */
static bool has_floats(PyObject *x) {
    switch (tg_dtype_of(tgpy_tensor(tgpy_box_of(x)))) {
#define X(NAME, name, bits, kind)                                                                                      \
    case TG_##NAME:                                                                                                    \
        return kind == 'f';
        TG_DTYPE_LIST(X)
#undef X
    default:
        return true; /* it has ended, which the op reports */
    }
}

/* Computes an operator of two operands, at least one of which is a tensor. with_number, which may be NULL, computes it
 * for a number as the right operand. */
static PyObject *operator(const char *name, binary_op *op, number_op *with_number, PyObject *a, PyObject *b) {
    if (tgpy_note_caller()) return NULL;
    if (tgpy_is_tensor(a) && tgpy_is_tensor(b)) return of_two(op, a, b);
    if (with_number && tgpy_is_tensor(a) && is_number(b) && has_floats(a)) return of_number(with_number, a, b);
    return PyObject_CallFunction(tgpy.mixed, "sOO", name, a, b);
}

/* Computes an operator in place. If the result is a new tensor, self takes its box. */
static PyObject *in_place(binary_op *op, PyObject *self, PyObject *b) {
    if (tgpy_note_caller()) return NULL;
    PyObject *other = PyObject_CallFunctionObjArgs(tgpy.like, b, self, NULL); /* returns a tensor as it is */
    if (!other || other == Py_NotImplemented) return other;
    PyObject *y = of_two(op, self, other);
    Py_DECREF(other);
    if (!y) return NULL;
    swap(self, y);
    Py_DECREF(y);
    Py_INCREF(self);
    return self;
}

/* The operators, as X(slot, name of the method, op, op with a number or NULL). */
#define BINARY(X)                                                                                                      \
    X(nb_add, "add", tg_add, tg_add_scalar)                                                                            \
    X(nb_subtract, "sub", tg_sub, NULL)                                                                                \
    X(nb_multiply, "mul", tg_mul, tg_scale)                                                                            \
    X(nb_true_divide, "truediv", tg_div, NULL)                                                                         \
    X(nb_remainder, "mod", tg_remainder, NULL)                                                                         \
    X(nb_floor_divide, "floordiv", tg_floor_divide, NULL)                                                              \
    X(nb_and, "and", tg_bitwise_and, NULL)                                                                             \
    X(nb_or, "or", tg_bitwise_or, NULL)                                                                                \
    X(nb_xor, "xor", tg_bitwise_xor, NULL)
#define UNARY(X) X(nb_negative, tg_neg) X(nb_absolute, tg_abs) X(nb_invert, tg_bitwise_not)
#define COMPARISONS(X)                                                                                                 \
    X(Py_LT, "lt", tg_lt)                                                                                              \
    X(Py_LE, "le", tg_le) X(Py_EQ, "eq", tg_eq) X(Py_NE, "ne", tg_ne) X(Py_GT, "gt", tg_gt) X(Py_GE, "ge", tg_ge)

#define X(slot, name, op, number)                                                                                      \
    static PyObject *slot(PyObject *a, PyObject *b) { return operator(name, op, number, a, b); }
BINARY(X)
#undef X
#define X(slot, op)                                                                                                    \
    static PyObject *slot(PyObject *x) { return of_one(op, x); }
UNARY(X)
#undef X

/* These are methods, because Python would also use the slots of in-place operators to concatenate sequences. */
static PyObject *add_in_place(PyObject *a, PyObject *b) { return in_place(tg_add_, a, b); }
static PyObject *sub_in_place(PyObject *a, PyObject *b) { return in_place(tg_sub_, a, b); }
static PyObject *mul_in_place(PyObject *a, PyObject *b) { return in_place(tg_mul_, a, b); }

static PyObject *nb_power(PyObject *a, PyObject *b, PyObject *modulus) {
    if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
    return operator("pow", tg_pow, tg_pow_scalar, a, b);
}

static PyObject *compare(PyObject *a, PyObject *b, int comparison) {
    switch (comparison) {
#define X(number, name, op)                                                                                            \
    case number:                                                                                                       \
        return operator(name, op, NULL, a, b);
        COMPARISONS(X)
#undef X
    default:
        Py_RETURN_NOTIMPLEMENTED;
    }
}

/* ---- The class ---- */

static PyMethodDef methods[] = {
    {"_of", of, METH_O | METH_CLASS, "An object of the class that owns a box."},
    {"__iadd__", add_in_place, METH_O, "Adds in place."},
    {"__isub__", sub_in_place, METH_O, "Subtracts in place."},
    {"__imul__", mul_in_place, METH_O, "Multiplies in place."},
    {"_swap", swap_with, METH_O, "Exchanges the boxes of two tensors."},
    {0},
};
static PyGetSetDef attributes[] = {
    {"_box", get_box, NULL, "The box, for functions of bridge.h.", NULL},
    {"shape", get_shape, NULL, "The sizes of the dims, as a tuple.", NULL},
    {"dtype", get_dtype, NULL, "The name of the dtype, such as \"f32\".", NULL},
    {"ndim", get_ndim, NULL, "Number of dims.", NULL},
    {0},
};
static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(tensor, weak), READONLY, NULL}, {0}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Owns a box of bridge.h, and has the operators of Tensor."},
    {Py_tp_new, refuse_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {Py_tp_richcompare, compare},
    {Py_nb_power, nb_power},
#define X(slot, ...) {Py_##slot, slot},
    BINARY(X) UNARY(X)
#undef X
        {0},
};
static PyType_Spec spec = {
    "tapegrad._objects.TensorBase", sizeof(tensor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots,
};

PyObject *tgpy_tensor_base(void) {
    PyObject *type = PyType_FromSpec(&spec);
    base = (PyTypeObject *)type;
    return type;
}
