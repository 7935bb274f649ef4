/* OpBase: an op as a function, and as a method of tensors. A form of calls is a number of positional arguments and a
 * tuple of names. If Op has added the form (_learn), all inputs are tensors or None, and all arguments are numbers or
 * sequences of integers, a call is one call of bridge.h. All other calls are left to Op._call. */
#include "objects.h"

#include <stddef.h>
#include <structmember.h>

enum { INPUTS = 8, VALUES = 8, OUTPUTS = 4, INTEGERS = 16 }; /* limits of such calls */

typedef struct form {
    struct form *next;
    Py_ssize_t n;                 /* number of positional arguments */
    PyObject *names;              /* a tuple: the named arguments */
    const tg_op_binding *binding; /* lasts as long as the op */
    int n_in, n_values, n_out;
    int in[INPUTS];    /* for each input the index of its argument, of all arguments in their order; -1: absent */
    int value[VALUES]; /* for each value of the binding the index of its argument */
} form;

typedef struct op {
    PyObject head;
    vectorcallfunc call;
    form *forms;
} op;

/* ---- Forms ---- */

static bool same_names(PyObject *a, PyObject *b) {
    Py_ssize_t n = b ? PyTuple_GET_SIZE(b) : 0;
    if (a == b) return true;
    if (PyTuple_GET_SIZE(a) != n) return false;
    for (Py_ssize_t i = 0; i < n; i++) /* the names of a call are interned */
        if (PyTuple_GET_ITEM(a, i) != PyTuple_GET_ITEM(b, i)) return false;
    return true;
}

static const form *find(const op *o, Py_ssize_t n, PyObject *names) {
    for (const form *f = o->forms; f; f = f->next)
        if (f->n == n && same_names(f->names, names)) return f;
    return NULL;
}

/* Reads a tuple of indices, in which None becomes -1. Returns their number; -1 if there are more than `limit`, or with
 * an exception. */
static int read_places(PyObject *places, int *out, int limit) {
    Py_ssize_t n = PyTuple_GET_SIZE(places);
    if (n > limit) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *place = PyTuple_GET_ITEM(places, i);
        out[i] = place == Py_None ? -1 : (int)PyLong_AsLong(place);
    }
    return PyErr_Occurred() ? -1 : (int)n;
}

/* _learn(n, names, inputs, values, n_out, binding): adds a form. inputs and values are indices of arguments. Does
 * nothing if the form exceeds the limits; its calls are then left to Op._call. */
static PyObject *learn(PyObject *self, PyObject *args) {
    form *f = PyMem_Calloc(1, sizeof *f);
    PyObject *inputs, *values, *binding;
    if (!f) return PyErr_NoMemory();
    if (PyArg_ParseTuple(args, "nO!O!O!iO", &f->n, &PyTuple_Type, &f->names, &PyTuple_Type, &inputs, &PyTuple_Type,
                         &values, &f->n_out, &binding)) {
        f->binding = PyLong_AsVoidPtr(binding);
        f->n_in = read_places(inputs, f->in, INPUTS);
        f->n_values = read_places(values, f->value, VALUES);
    }
    if (PyErr_Occurred() || f->n_in < 0 || f->n_values < 0 || f->n_out > OUTPUTS) {
        PyMem_Free(f);
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    Py_INCREF(f->names);
    f->next = ((op *)self)->forms;
    ((op *)self)->forms = f;
    Py_RETURN_NONE;
}

/* ---- Calls ---- */

/* A call in C: its operands and its results. */
typedef struct call {
    PyObject *first; /* the first input that is a tensor */
    tgpy_box *in[INPUTS], *out[OUTPUTS];
    int n_in;
    tg_value values[VALUES];
    int64_t integers[INTEGERS]; /* of values that are sequences */
    int n_integers;
} call;

static bool read_inputs(call *c, const form *f, PyObject *const *args) {
    for (int i = 0; i < f->n_in; i++) {
        PyObject *x = f->in[i] < 0 ? Py_None : args[f->in[i]];
        c->in[i] = NULL;
        if (x == Py_None) continue;
        if (!tgpy_is_tensor(x)) return false;
        c->in[i] = tgpy_box_of(x);
        c->n_in = i + 1;
        if (!c->first) c->first = x;
    }
    return c->first;
}

/* Returns whether an object is an int of 64 bits, and sets *out to it. */
static bool read_integer(PyObject *o, int64_t *out) {
    int overflow = 0;
    if (!PyLong_CheckExact(o)) return false;
    *out = PyLong_AsLongLongAndOverflow(o, &overflow);
    return !overflow;
}

static bool read_sequence(call *c, tg_value *v, PyObject *o) {
    Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    int64_t *list = c->integers + c->n_integers;
    if (c->n_integers + n > INTEGERS) return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_integer(PySequence_Fast_GET_ITEM(o, i), list + i)) return false;
    v->kind = TG_VALUE_LIST;
    v->list = list;
    v->n = (int)n;
    c->n_integers += (int)n;
    return true;
}

static bool read_value(call *c, tg_value *v, PyObject *o) {
    *v = (tg_value){.kind = TG_VALUE_DEFAULT};
    if (o == Py_None) return true;
    if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) return read_sequence(c, v, o);
    if (PyBool_Check(o)) {
        v->kind = TG_VALUE_BOOL;
        v->boolean = o == Py_True;
        return true;
    }
    if (PyFloat_CheckExact(o)) {
        v->kind = TG_VALUE_DOUBLE;
        v->number = PyFloat_AS_DOUBLE(o);
        return true;
    }
    v->kind = TG_VALUE_INT;
    return read_integer(o, &v->integer);
}

static PyObject *results(const form *f, call *c) {
    if (f->n_out == 1) return tgpy_result(c->first, c->out[0]);
    PyObject *all = PyTuple_New(f->n_out);
    for (int i = 0; i < f->n_out; i++) {
        PyObject *y = all ? tgpy_result(c->first, c->out[i]) : NULL;
        if (y)
            PyTuple_SET_ITEM(all, i, y);
        else
            Py_CLEAR(all);
    }
    return all;
}

/* Makes a call of a form. Returns NULL without an exception if its arguments are of kinds that are left to Op._call. */
static PyObject *made(const form *f, PyObject *const *args) {
    call c = {0};
    if (!read_inputs(&c, f, args)) return NULL;
    for (int i = 0; i < f->n_values; i++)
        if (!read_value(&c, &c.values[i], args[f->value[i]])) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tg_status s = tgpy_call(tgpy_world_of(tgpy_box_of(c.first)), f->binding, c.in, c.n_in, c.values, c.out, f->n_out);
    PyEval_RestoreThread(thread);
    return s ? tgpy_result(c.first, NULL) : results(f, &c);
}

/* Calls self._call(args, named). */
static PyObject *left_to_python(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
    PyObject *positions = PyTuple_New(n), *named = PyDict_New(), *y = NULL;
    for (Py_ssize_t i = 0; positions && i < n; i++) {
        Py_INCREF(args[i]);
        PyTuple_SET_ITEM(positions, i, args[i]);
    }
    Py_ssize_t n_named = named && names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < n_named; i++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[n + i])) Py_CLEAR(named);
    if (positions && named) y = PyObject_CallMethod(self, "_call", "OO", positions, named);
    Py_XDECREF(positions);
    Py_XDECREF(named);
    return y;
}

static PyObject *vectorcall(PyObject *self, PyObject *const *args, size_t n_and_flags, PyObject *names) {
    Py_ssize_t n = PyVectorcall_NARGS(n_and_flags);
    if (tgpy_note_caller()) return NULL;
    const form *f = find((op *)self, n, names);
    PyObject *y = f ? made(f, args) : NULL;
    return y || PyErr_Occurred() ? y : left_to_python(self, args, n, names);
}

/* ---- The class ---- */

static PyObject *new_op(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)args, (void)named;
    PyObject *self = type->tp_alloc(type, 0);
    if (self) ((op *)self)->call = vectorcall;
    return self;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    for (form *f = ((op *)self)->forms, *next; f; f = next) {
        next = f->next;
        Py_DECREF(f->names);
        PyMem_Free(f);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *bound(PyObject *self, PyObject *x, PyObject *owner) {
    (void)owner;
    if (x && x != Py_None) return PyMethod_New(self, x);
    Py_INCREF(self);
    return self;
}

/* The flags let Python call objects of the class by `call`, and call methods without making a method object. Before
 * 3.12 subclasses did not inherit them, so they are set for each subclass. */
static PyObject *init_subclass(PyObject *type, PyObject *unused) {
    (void)unused;
    ((PyTypeObject *)type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    PyType_Modified((PyTypeObject *)type);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_learn", learn, METH_VARARGS, "_learn(n, names, inputs, values, n_out, binding): adds a form of calls."},
    {"__init_subclass__", init_subclass, METH_NOARGS | METH_CLASS, NULL},
    {0},
};
static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(op, call), READONLY, NULL}, {0}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Calls an op in C."}, {Py_tp_new, new_op},
    {Py_tp_dealloc, dealloc},         {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bound},         {Py_tp_methods, methods},
    {Py_tp_members, members},         {0},
};
static PyType_Spec spec = {
    "tapegrad._objects.OpBase",
    sizeof(op),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    slots,
};

PyObject *tgpy_op_base(void) { return PyType_FromSpec(&spec); }
