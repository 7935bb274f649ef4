/* Makes the extension module tapegrad._objects (objects.h). */
#include "objects.h"

tgpy_given tgpy;

static PyObject *setup(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OOOOO", &PyType_Type, &tgpy.tensor, &tgpy.box_type, &tgpy.fail, &tgpy.mixed,
                          &tgpy.like, &tgpy.file))
        return NULL;
    Py_INCREF(args); /* keeps all of them as long as the process lives */
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "setup(Tensor, box_type, fail, mixed, like, file): what the classes need."},
    {"note_site", tgpy_note_site, METH_O, "Notes the line n callers above the caller as the place that messages name."},
    {0},
};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "tapegrad._objects", .m_doc = "The classes below Tensor and Op.",
    .m_size = -1,          .m_methods = functions,
};

static int add(PyObject *module, const char *name, PyObject *type) {
    if (type && !PyModule_AddObject(module, name, type)) return 0;
    Py_XDECREF(type);
    return -1;
}

PyMODINIT_FUNC PyInit__objects(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && !add(module, "TensorBase", tgpy_tensor_base()) && !add(module, "OpBase", tgpy_op_base()))
        return module;
    Py_XDECREF(module);
    return NULL;
}
