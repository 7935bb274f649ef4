/* Finds the line of the program that calls an op, for messages. */
#include "objects.h"

#if PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif

/* A cache of places from which ops were called, because looking up a line takes time in proportion to the length of its
 * function. A spot keeps its code object alive, so no other one can get its address. The GIL guards the table. */
typedef struct spot {
    PyCodeObject *code;
    int at; /* the instruction */
    int line;
    const char *file; /* NULL: a file of the package */
} spot;

enum { SPOTS = 1024 };
static spot spots[SPOTS];

/* Finds the place of a frame in the table, or asks Python and stores it there. Returns -1 with an exception. */
static int look_up(PyCodeObject *code, int at, PyFrameObject *frame, spot *out) {
    spot *s = &spots[((uintptr_t)code / sizeof(PyCodeObject) * 31 + (unsigned)at / 2) % SPOTS];
    *out = *s;
    if (s->code == code && s->at == at) return 0;
    PyObject *number = PyObject_CallOneArg(tgpy.file, code->co_filename); /* other threads may run meanwhile */
    const char *file = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (PyErr_Occurred()) return -1;
    *out = (spot){code, at, PyFrame_GetLineNumber(frame), file};
    PyCodeObject *old = s->code;
    Py_INCREF(code);
    *s = *out;
    Py_XDECREF(old);
    return 0;
}

static int note(PyFrameObject *frame) {
    spot found;
    PyCodeObject *code = PyFrame_GetCode(frame);
    int failed = look_up(code, PyFrame_GetLasti(frame), frame, &found);
    if (!failed && found.file) tgpy_site(found.file, found.line);
    Py_DECREF(code);
    return failed;
}

int tgpy_note_caller(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    return frame ? note(frame) : 0;
}

PyObject *tgpy_note_site(PyObject *module, PyObject *depth) {
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
