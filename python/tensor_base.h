/* How tensor_base.c reads and makes the objects with which cffi stands for pointers. The generated module defines these
 * functions (cdef.py), because only there has cffi declared what they call. `type` is cffi's object for the type. */
#ifndef TAPEGRAD_PYTHON_TENSOR_BASE_H
#define TAPEGRAD_PYTHON_TENSOR_BASE_H

#include <Python.h>

PyObject *tgpy_object_of(void *pointer, PyObject *type); /* a new reference; NULL with an exception */
void *tgpy_pointer_of(PyObject *object, PyObject *type); /* NULL with an exception if the object has another type */

#endif
