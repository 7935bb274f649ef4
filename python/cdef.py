"""Writes the C source of the extension module tapegrad._capi: the whole C interface, read from the public headers by
the C compiler's preprocessor, and the functions of bridge.h. So no declaration is written twice.

    cdef.py INCLUDE_DIR BRIDGE_DIR OUTPUT CC...
"""

import pathlib
import re
import subprocess
import sys

import cffi

LEFT_OUT = {'mpi.h'}  # it includes MPI's own
CALLBACKS = """
extern "Python" tg_status tgpy_on_hook(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad);
extern "Python" tg_status tgpy_on_function(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out,
                                           int n_out);
extern "Python" void tgpy_on_function_free(void *state);
extern "Python" tg_status tgpy_on_loss(void *user, double *loss);
extern "Python" tg_status tgpy_on_module(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out,
                                         int n_out);
extern "Python" tg_status tgpy_on_infer(tg_call *c);
extern "Python" tg_status tgpy_on_forward(tg_call *c);
extern "Python" tg_status tgpy_on_backward(tg_call *c);
extern "Python" tg_status tgpy_on_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
extern "Python" tg_status tgpy_on_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
"""
# Objects of cffi for objects.h. These macros are declared in the generated source only.
OBJECTS = """
#include "objects.h"
PyObject *tgpy_object_of(void *pointer, PyObject *type) {
    return _cffi_from_c_pointer(pointer, (struct _cffi_ctypedescr *)type);
}
void *tgpy_pointer_of(PyObject *object, PyObject *type) {
    return _cffi_to_c_pointer(object, (struct _cffi_ctypedescr *)type);
}
"""
# Empty headers in place of a compiler's own, because cffi knows what these declare.
FAKE = {name: '' for name in ('stdbool.h', 'stddef.h', 'stdint.h', 'stdio.h', 'string.h', 'assert.h')}


def preprocessed(text, include, bridge, fakes, cc):
    """The declarations of a source text, without bodies of functions and without what only compilers read. fakes is a
    folder for headers that stand in for a compiler's own."""
    fakes.mkdir(exist_ok=True)
    for name, body in FAKE.items():
        (fakes / name).write_text(body)
    flags = [
        '-E',
        '-P',
        '-nostdinc',
        f'-I{fakes}',
        f'-I{include}',
        f'-I{bridge}',
        '-DTG_PYTHON_CDEF',
        '-D__attribute__(x)=',
        '-x',
        'c',
        '-',
    ]
    out = subprocess.run([*cc, *flags], input=text, capture_output=True, text=True, check=True).stdout
    out = re.sub(r'^#.*$', '', out, flags=re.M)
    return without_bodies(out)


def without_bodies(text):
    """Removes functions that are defined in a header (static inline)."""
    kept, at = [], 0
    for found in re.finditer(r'static inline [^;{]*\{', text):
        if found.start() < at:
            continue
        kept.append(text[at : found.start()])
        depth, at = 1, found.end()
        while depth:
            depth += {'{': 1, '}': -1}.get(text[at], 0)
            at += 1
    return ''.join(kept) + text[at:]


def main():
    include, bridge, output, *cc = sys.argv[1:]
    names = sorted(path.name for path in pathlib.Path(include, 'tapegrad').glob('*.h') if path.name not in LEFT_OUT)
    headers = ''.join(f'#include <tapegrad/{name}>\n' for name in names)
    headers += '#include "bridge.h"\n#include "sequence.h"\n'
    ffi = cffi.FFI()
    ffi.cdef(preprocessed(headers, include, bridge, pathlib.Path(output).with_suffix('.d'), cc))
    ffi.cdef(CALLBACKS)
    ffi.set_source('tapegrad._capi', headers + OBJECTS)
    ffi.emit_c_code(output)


main()
