"""Every op of the library as a function, under its name: ops.softmax(x, dim=-1).

The functions are made from the library's own table when they are first used, so this file names none of them. Inputs
come first, then the arguments, by position or by name. Numbers and arrays are accepted for inputs.

Ops have names of built-in functions, such as sum, so nothing here may use those."""


def __getattr__(name):
    from .opcall import Op, find

    op = globals()[name] = Op(find(name))
    return op


def __dir__():
    from .opcall import names

    return names()
