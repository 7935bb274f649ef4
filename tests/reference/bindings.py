"""Makes the library's ops callable from Python. Prototypes and option structs are read from the headers."""

import ctypes
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/tapegrad").glob("*.h"))
MAX_DIMS = 8

POINTER = ctypes.c_void_p
BASIC = {"double": ctypes.c_double, "int64_t": ctypes.c_int64, "int": ctypes.c_int, "bool": ctypes.c_bool,
         "size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64}


class Shape(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int64), ("dim", ctypes.c_int64 * MAX_DIMS)]


class Dims(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int), ("dim", ctypes.c_int * MAX_DIMS)]


def shape(*dims):
    return Shape(len(dims), (ctypes.c_int64 * MAX_DIMS)(*dims))


def dims(*listed):
    return Dims(len(listed), (ctypes.c_int * MAX_DIMS)(*listed))


ALL_DIMS = Dims(-1)


def handles(x):
    """Returns a C array of tensors: of the list x, or with x empty elements if x is a number."""
    return (POINTER * x)() if isinstance(x, int) else (POINTER * len(x))(*x)


def _type(text):
    """Returns the ctypes type of a C type."""
    text = re.sub(r"\bconst\b", "", text).strip()
    if "*" in text:
        return ctypes.c_char_p if text.replace(" ", "") == "char*" else POINTER
    return {"tg_shape": Shape, "tg_dims": Dims}.get(text) or BASIC.get(text, ctypes.c_int)  # else an enum


def _structs(text):
    """Returns {name: class} of all structs whose fields have known types, which includes all option structs."""
    found = {}
    for body, name in re.findall(r"typedef struct tg_\w+ \{\n(.*?)\n\} (tg_\w+);", text, re.S):
        fields = []
        for line in filter(str.strip, body.split("\n")):  # removed comments leave blank lines
            field = re.match(r"\s*(?:const )?(\w+) (\*?(?:const )?\*?)(\w+(?:, \w+)*)(?:\[(\d+)\])?;", line)
            if not field:
                break
            of = POINTER if "*" in field[2] else _type(field[1])
            fields += [(n, of * int(field[4]) if field[4] else of) for n in field[3].split(", ")]
        else:
            found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


class Library:
    """The library. lib.tg_name(...) calls a function as in C; lib.name(...) records the op tg_name on lib.tape."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.tape = None
        self.kept = []
        text = re.sub(r"/\*.*?\*/", "", "".join(h.read_text() for h in HEADERS), flags=re.S)
        self.structs = _structs(text)
        for result, name, args in re.findall(r"TG_API ((?:const |struct )?\w+ \*?)(tg_\w+)\(([^;]*?)\)[^;]*;", text):
            function = getattr(self.lib, name, None)
            if function is None:
                continue
            function.restype = None if result.strip() == "void" else _type(result)
            function.argtypes = [] if args == "void" else [
                _type(re.sub(r"\w+$", "", a.strip()) if not a.strip().endswith("*") else a) for a in args.split(",")]

    def __getattr__(self, name):
        if name.startswith("tg_"):
            return getattr(self.lib, name)
        return lambda *args: getattr(self.lib, "tg_" + name)(self.tape, *args)

    def options(self, name, **fields):
        """Returns the address of a struct with these fields and defaults, and the struct. Keep the struct while C may
        read it."""
        s = self.structs[name]()
        s.size = ctypes.sizeof(s)
        self.lib.tg_struct_fill(name.encode(), ctypes.addressof(s), ctypes.sizeof(s))
        for key, value in fields.items():
            setattr(s, key, type(getattr(s, key))(*value) if isinstance(value, (tuple, list)) else value)
        return ctypes.addressof(s), s

    def opts(self, name, **fields):
        """Returns the address of a tg_{name}_opts with these fields, for one call of an op."""
        address, s = self.options(f"tg_{name}_opts", **fields)
        self.kept = self.kept[-64:] + [s]  # keeps the struct alive while the call may read it
        return address

    def names(self):
        """Returns the names of all ops, in the order of the table."""
        class Op(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p)]

        at = self.lib.tg_op_at
        at.restype = ctypes.POINTER(Op)
        return [at(i)[0].name.decode() for i in range(self.lib.tg_op_count())]
