/* The extension module tapegrad._tensor. It has TensorBase, the class below Tensor: each object owns a box, and each of
 * its operators is one call of bridge.h. This saves an op of one element what a method in Python and two calls of
 * cffi cost. Operands that are neither tensors nor numbers are left to functions of tensor.py, as errors are. The
 * module is in the same shared object as _capi. */
#include "tensor_base.h"

#include "bridge.h"

#include <stddef.h>
#include <structmember.h>
#if PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif

typedef struct tensor {
    PyObject head;
    PyObject *weak; /* the list of weak references */
    tgpy_box *box;
} tensor;

/* What setup() has been given by tensor.py. */
static struct {
    PyTypeObject *base, *tensor;
    PyObject *box_type; /* cffi's object for `tgpy_box *` */
    PyObject *fail;     /* fail(x) raises the error of the context of x */
    PyObject *mixed;    /* mixed(name, a, b): an operator of which one operand is no tensor */
    PyObject *like;     /* like(other, x): other as a tensor of the context of x, or NotImplemented */
    PyObject *file;     /* file(name): the address of the name of a source file as text, 0 for a file of the package */
} py;

static bool is_tensor(PyObject *o) { return PyObject_TypeCheck(o, py.base); }
static tgpy_box *box_of(PyObject *o) { return ((tensor *)o)->box; }

/* ---- Objects ---- */

static PyObject *new_of(PyTypeObject *type, tgpy_box *box) {
    PyObject *x = type->tp_alloc(type, 0);
    if (x)
        ((tensor *)x)->box = box;
    else
        tgpy_box_drop(box);
    return x;
}

static PyObject *result(PyObject *x, tgpy_box *box) {
    return box ? new_of(py.tensor, box) : PyObject_CallOneArg(py.fail, x);
}

static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)args, (void)named;
    return PyErr_Format(PyExc_TypeError, "%s() makes no tensor; tapegrad.tensor(data) does", type->tp_name);
}

/* The GIL is released only if the context has to be freed, which may wait for threads that need the GIL. */
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
    drop(box_of(self));
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *of(PyObject *type, PyObject *pointer) {
    tgpy_box *box = tgpy_pointer_of(pointer, py.box_type);
    if (!box && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no tensor");
    return box ? new_of((PyTypeObject *)type, box) : NULL;
}

static void swap(PyObject *a, PyObject *b) {
    tgpy_box *box = box_of(a);
    ((tensor *)a)->box = box_of(b);
    ((tensor *)b)->box = box;
}

static PyObject *swap_with(PyObject *self, PyObject *other) {
    if (!is_tensor(other)) return PyErr_Format(PyExc_TypeError, "only tensors can be swapped");
    swap(self, other);
    Py_RETURN_NONE;
}

static PyObject *get_box(PyObject *self, void *unused) {
    (void)unused;
    return tgpy_object_of(box_of(self), py.box_type);
}

/* ---- The line of the program ---- */

/* The last places from which ops were called, because looking up a line takes time in proportion to the length of its
 * function. A spot keeps its code object, whose address is therefore no other's. The GIL guards the table. */
typedef struct spot {
    PyCodeObject *code;
    int at; /* the instruction */
    int line;
    const char *file; /* NULL: of the package */
} spot;

enum { SPOTS = 1024 };
static spot spots[SPOTS];

static int fill(spot *s, PyCodeObject *code, int at, PyFrameObject *frame) {
    PyObject *number = PyObject_CallOneArg(py.file, code->co_filename);
    const char *file = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (PyErr_Occurred()) return -1;
    PyCodeObject *old = s->code;
    Py_INCREF(code);
    *s = (spot){code, at, PyFrame_GetLineNumber(frame), file};
    Py_XDECREF(old);
    return 0;
}

/* Notes the line that a frame is at as the place that messages name. A frame of the package does not change it: its
 * callers have noted the program's line. */
static int note(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    int at = PyFrame_GetLasti(frame);
    spot *s = &spots[((uintptr_t)code / sizeof(PyCodeObject) * 31 + (unsigned)at / 2) % SPOTS];
    int failed = s->code == code && s->at == at ? 0 : fill(s, code, at, frame);
    if (!failed && s->file) tgpy_site(s->file, s->line);
    Py_DECREF(code);
    return failed;
}

static int note_caller(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    return frame ? note(frame) : 0;
}

static PyObject *note_site(PyObject *module, PyObject *depth) {
    (void)module;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    for (long n = PyLong_AsLong(depth); n > 0 && frame; n--) {
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    if (frame) note(frame);
    Py_XDECREF(frame);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* ---- Operators ---- */

typedef tg_tensor *unary_op(tg_tape *, tg_tensor *);
typedef tg_tensor *binary_op(tg_tape *, tg_tensor *, tg_tensor *);
typedef tg_tensor *number_op(tg_tape *, tg_tensor *, double);

static PyObject *of_one(unary_op *op, PyObject *x) {
    if (note_caller()) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_unary(op, box_of(x));
    PyEval_RestoreThread(thread);
    return result(x, box);
}

static PyObject *of_two(binary_op *op, PyObject *a, PyObject *b) {
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_binary(op, box_of(a), box_of(b));
    PyEval_RestoreThread(thread);
    return result(a, box);
}

static PyObject *of_number(number_op *op, PyObject *x, PyObject *b) {
    double number = PyFloat_AsDouble(b);
    if (number == -1 && PyErr_Occurred()) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tgpy_box *box = tgpy_with_number(op, box_of(x), number);
    PyEval_RestoreThread(thread);
    return result(x, box);
}

static bool is_number(PyObject *o) { return PyFloat_Check(o) || PyLong_Check(o); }

static bool has_floats(PyObject *x) {
    switch (tg_dtype_of(tgpy_tensor(box_of(x)))) {
#define X(NAME, name, bits, kind)                                                                                      \
    case TG_##NAME:                                                                                                    \
        return kind == 'f';
        TG_DTYPE_LIST(X)
#undef X
    default:
        return true; /* it has ended, which the op reports */
    }
}

/* An operator of two operands, one of which at least is a tensor. with_number may be NULL; it takes a number as the
 * right operand. */
static PyObject *operator(const char *name, binary_op *op, number_op *with_number, PyObject *a, PyObject *b) {
    if (note_caller()) return NULL;
    if (is_tensor(a) && is_tensor(b)) return of_two(op, a, b);
    if (with_number && is_tensor(a) && is_number(b) && has_floats(a)) return of_number(with_number, a, b);
    return PyObject_CallFunction(py.mixed, "sOO", name, a, b);
}

static PyObject *in_place(binary_op *op, PyObject *self, PyObject *b) {
    if (note_caller()) return NULL;
    PyObject *other = PyObject_CallFunctionObjArgs(py.like, b, self, NULL); /* a tensor is itself */
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

/* Methods, because Python would also take slots for the concatenation of sequences, and its result for a sum. */
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

/* ---- The module ---- */

static PyMethodDef methods[] = {
    {"_of", of, METH_O | METH_CLASS, "An object of the class that owns a box."},
    {"__iadd__", add_in_place, METH_O, "Adds in place."},
    {"__isub__", sub_in_place, METH_O, "Subtracts in place."},
    {"__imul__", mul_in_place, METH_O, "Multiplies in place."},
    {"_swap", swap_with, METH_O, "Exchanges the boxes of two tensors."},
    {0},
};
static PyGetSetDef attributes[] = {{"_box", get_box, NULL, "The box, for functions of bridge.h.", NULL}, {0}};
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
    "tapegrad._tensor.TensorBase", sizeof(tensor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots,
};

static PyObject *setup(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OOOOO", &PyType_Type, &py.tensor, &py.box_type, &py.fail, &py.mixed, &py.like,
                          &py.file))
        return NULL;
    Py_INCREF(args); /* and with it all of them, as long as the process lives */
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "setup(Tensor, box_type, fail, mixed, like, file): what the operators need."},
    {"note_site", note_site, METH_O, "Notes the line n callers above the caller as the place that messages name."},
    {0},
};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "tapegrad._tensor", .m_doc = "The class below Tensor.",
    .m_size = -1,          .m_methods = functions,
};

PyMODINIT_FUNC PyInit__tensor(void) {
    PyObject *module = PyModule_Create(&definition), *base = PyType_FromSpec(&spec);
    py.base = (PyTypeObject *)base;
    if (module && base && !PyModule_AddObject(module, "TensorBase", base)) return module;
    Py_XDECREF(module);
    Py_XDECREF(base);
    return NULL;
}
