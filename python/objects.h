/* What the files of the extension module tapegrad._objects share. It has TensorBase and OpBase, the base classes in C
 * of Tensor and Op, so that an op is one call of bridge.h. With cffi alone it would be two calls, a method and a
 * finalizer in Python. The module is in the same shared object as _capi. */
#ifndef TAPEGRAD_PYTHON_OBJECTS_H
#define TAPEGRAD_PYTHON_OBJECTS_H

#include <Python.h>

#include "bridge.h"

/* What tensor.py has given to setup(). */
typedef struct tgpy_given {
    PyTypeObject *tensor; /* Tensor */
    PyObject *box_type;   /* cffi's object for `tgpy_box *` */
    PyObject *fail;       /* fail(x) raises the error of the context of x */
    PyObject *mixed;      /* mixed(name, a, b): an operator with one operand that is not a tensor */
    PyObject *like;       /* like(other, x): other as a tensor of the context of x, or NotImplemented */
    PyObject *file; /* file(name): the address of the name of a source file as text, 0 for a file of the package */
} tgpy_given;
extern tgpy_given tgpy;

/* Make the classes. Return new references, or NULL with an exception. */
PyObject *tgpy_tensor_base(void);
PyObject *tgpy_op_base(void);

/* ---- Tensors (tensor_base.c) ---- */

bool tgpy_is_tensor(PyObject *o);
tgpy_box *tgpy_box_of(PyObject *x); /* of a tensor */
/* Returns a Tensor that owns the box. If box is NULL, raises the error of the context of x. */
PyObject *tgpy_result(PyObject *x, tgpy_box *box);

/* ---- The line of the program (lines.c) ---- */

/* Notes the line that the running Python code is at as the place that messages name. Code of the package does not
 * change it: its callers have noted the program's line. Returns -1 with an exception. */
int tgpy_note_caller(void);
/* Notes the line of the caller that is `depth` callers above the running code. */
PyObject *tgpy_note_site(PyObject *module, PyObject *depth);

/* ---- Objects of cffi; the functions are in the generated module (cdef.py) ---- */

PyObject *tgpy_object_of(void *pointer, PyObject *type); /* a new reference; NULL with an exception */
void *tgpy_pointer_of(PyObject *object, PyObject *type); /* NULL with an exception if the object has another type */

#endif
