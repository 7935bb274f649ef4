"""Tensors."""

import operator
import os
from numbers import Integral, Real

from . import dlpack, indexing, ops, values
from ._capi import ffi, lib
from .context import context
from .errors import BY_STATUS, check, fail, text, using
from .objects import TensorBase, note_site, setup

NULL = ffi.NULL
_matmul = ffi.addressof(lib, 'tg_matmul')
# Errors of a read that tell of the tensor: it has been discarded, is one rank's share of a sum, or is on device meta.
_NO_VALUES = BY_STATUS[lib.TG_ERR_DISCARDED], BY_STATUS[lib.TG_ERR_STATE], BY_STATUS[lib.TG_ERR_DEVICE]


class Tensor(TensorBase):
    """A tensor. tensor(), zeros(), randn() and others make one, and so does every op. Every op whose first input is a
    tensor is a method. A tensor ends with its last reference, and so does what only its own backward would need."""

    __slots__ = ()
    __array_priority__ = 1000  # NumPy leaves operators to this class

    # ---- Properties ----

    def _handle(self):
        """The tg_tensor. Raises an error if the context was closed, or another thread uses it."""
        x = lib.tgpy_usable(self._box)
        if x == NULL:
            fail(self._world)
        return x

    def _live(self):
        """The tg_tensor. Raises an error if the tensor has ended."""
        x = self._handle()
        if not lib.tg_is_alive(x):
            lib.tg_item(x)  # records the error with its reason
            fail(self._world)
        return x

    @property
    def _world(self):
        return lib.tgpy_world_of(self._box)

    @property
    def strides(self):
        """Distances between elements along each dim, in elements."""
        x = self._live()
        return tuple(lib.tg_stride(x, i) for i in range(lib.tg_ndim(x)))

    @property
    def size(self):
        """Number of elements."""
        return lib.tg_numel(self._live())

    @property
    def device(self):
        """The name of the device, such as "cpu"."""
        return text(lib.tg_ctx_device(lib.tgpy_ctx(self._world)))

    @property
    def is_alive(self):
        """Whether the tensor has not ended: neither its tape was reset nor its context closed."""
        return lib.tg_is_alive(lib.tgpy_tensor(self._box))

    @property
    def is_contiguous(self):
        """Whether the elements lie in row-major order without gaps."""
        return lib.tg_is_contiguous(self._live())

    @property
    def name(self):
        """The name in messages; "" if it has none."""
        return text(lib.tg_name(self._live()))

    @name.setter
    def name(self, name):
        lib.tg_set_name(self._live(), name.encode())
        check(self._world)

    def __len__(self):
        if not self.ndim:
            raise TypeError('a tensor of 0 dims has no length')
        return lib.tg_dim(self._handle(), 0)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    # ---- Values ----

    def item(self):
        """The only element, as a bool, int or float."""
        if self.size != 1:
            raise ValueError(f'a tensor of {self.size} elements is no number or truth value; expected 1 element')
        return self.tolist() if not self.ndim else self.reshape(()).tolist()

    def tolist(self):
        """The elements as nested lists of numbers."""
        x, dtype = self._live(), self.dtype
        n = lib.tg_numel(x)
        if dtype in ('i64', 'u64'):
            numbers = ffi.new('int64_t[]' if dtype == 'i64' else 'uint64_t[]', n)
            lib.tg_read(x, numbers, 8 * n)
        else:
            numbers = ffi.new('double[]', n)
            lib.tg_read_f64(x, numbers, n)
        check(self._world)
        kind = bool if dtype == 'bool' else int if dtype in values.INTEGERS else float
        return _nested([kind(v) for v in numbers], self.shape)

    def numpy(self):
        """A NumPy array with a copy of the values; bfloat16 and float8 become float32. numpy.from_dlpack(x) shares
        them instead."""
        import numpy

        x = self if self.dtype in values.NUMPY else self.cast('f32')
        array = numpy.empty(x.shape, values.NUMPY[x.dtype])
        lib.tg_read(x._live(), ffi.from_buffer(array), array.nbytes)
        check(self._world)
        return array

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError('the array is a copy of the tensor; numpy.from_dlpack(x) shares the memory')
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def write(self, data):
        """Overwrites the values of a leaf with numbers of the same shape, which are converted to its dtype. Returns the
        tensor."""
        source = tensor(data, dtype=self.dtype) if not isinstance(data, Tensor) else data.cast(self.dtype)
        if source.shape != self.shape:
            raise ValueError(f'the values have the shape {source.shape}, but the tensor has {self.shape}')
        n = source.size * lib.tg_dtype_bits(values.DTYPES[self.dtype]) // 8
        buffer = ffi.new('char[]', n)
        lib.tg_read(source._live(), buffer, n)
        check(source._world)
        lib.tg_write(self._live(), buffer, n)
        check(self._world)
        return self

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __index__(self):
        if self.dtype not in values.INTEGERS and self.dtype != 'bool':
            raise TypeError(f'an index must be an integer, but this tensor is {self.dtype}')
        return int(self.item())

    def __repr__(self):
        x = lib.tgpy_tensor(self._box)
        if not lib.tg_is_alive(x):
            return '<tapegrad.Tensor that has ended>'
        size = lib.tg_print(x, NULL, 0, NULL)
        buffer = ffi.new('char[]', size + 1)
        lib.tg_print(x, buffer, size + 1, NULL)
        try:
            check(self._world)
        except _NO_VALUES as error:
            lib.tg_describe(x, described := ffi.new('char[]', 256), 256)
            return f'<tapegrad.Tensor {text(described)} whose values cannot be read: {error}>'
        return text(buffer)

    def _repr_html_(self):
        import html

        grad = ', requires a gradient' if self.requires_grad else ''
        return (
            f'<pre>{html.escape(repr(self))}</pre><small>{self.dtype} {list(self.shape)} on {self.device}{grad}</small>'
        )

    # ---- DLPack ----

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return dlpack.export(self, max_version, dl_device, copy)

    def __dlpack_device__(self):
        return dlpack.device_of(self)

    # ---- Gradients ----

    @property
    def requires_grad(self):
        """Whether backward computes a gradient of the tensor. It may be set on leaves."""
        return lib.tg_requires_grad(self._live())

    @requires_grad.setter
    def requires_grad(self, on):
        lib.tg_set_requires_grad(self._live(), on)
        check(self._world)

    @property
    def grad(self):
        """The gradient that backward has accumulated, or None. It belongs to this tensor, and backward adds to it."""
        x = self._live()
        if not lib.tg_has_grad(x):
            return None
        box = lib.tgpy_box_new(self._world, lib.tgpy_tape_of_box(self._box), lib.tg_grad_of(x), True)
        return wrap(box) if box else fail(self._world)

    @grad.setter
    def grad(self, none):
        if none is not None:
            raise ValueError('only None can be assigned to grad, which clears it; backward adds to it')
        lib.tg_zero_grad(self._live())
        check(self._world)

    def backward(self, gradient=None, *, inputs=None, retain=False):
        """Adds the gradients of this tensor to those of the leaves that it depends on, or of `inputs` only. gradient is
        that of this tensor; None: 1, for a tensor of one element. retain keeps what is saved, so that backward can run
        again."""
        from .derivatives import backward

        backward([self], None if gradient is None else [gradient], inputs=inputs, retain=retain)

    def on_grad(self, fn):
        """Calls fn(gradient) in backward when the gradient of this tensor is complete. A tensor that fn returns
        replaces it. Returns a function that removes the hook."""
        from .callbacks import add_hook

        return add_hook(self, fn)

    def detach(self):
        """A tensor with the same bytes, of the context, through which no gradient flows."""
        box = lib.tgpy_box_new(self._world, NULL, lib.tg_keep(self._live()), False)
        return wrap(box) if box else fail(self._world)

    # ---- Pickles and copies ----

    def __reduce__(self):
        x = self if self.is_contiguous else self.contiguous()
        n = x.size * lib.tg_dtype_bits(values.DTYPES[x.dtype]) // 8
        buffer = ffi.new('char[]', n)
        lib.tg_read(x._live(), buffer, n)
        check(self._world)
        return _unpickled, (bytes(ffi.buffer(buffer, n)), x.dtype, x.shape, self.requires_grad)

    def _shared(self):
        """What stands for the tensor where it is pickled or copied together with its module: itself, or a function
        that returns it."""
        return self

    def __copy__(self):
        return self.detach()

    def __deepcopy__(self, memo):
        function, arguments = self.__reduce__()
        return function(*arguments, _context_of(self))

    # ---- Operators (the others are TensorBase's) ----

    def __matmul__(self, other):
        other = like(other, self)
        return other if other is NotImplemented else _product(self, other)

    def __rmatmul__(self, other):
        other = like(other, self)
        return other if other is NotImplemented else _product(other, self)

    def __getitem__(self, index):
        note_site(1)
        return indexing.get(self, index)

    def __setitem__(self, index, value):
        """Replaces elements. This object then stands for a new tensor, through which gradients flow; views that were
        taken of the old one keep their values."""
        note_site(1)
        new = indexing.put(self, index, value)
        self._swap(new)

    __hash__ = object.__hash__

    def __getattr__(self, name):
        """Every op whose first input is a single tensor is a method: x.softmax(dim=-1)."""
        if name.startswith('__'):
            raise AttributeError(name)
        op = getattr(ops, name)
        if not op.is_method:
            first = f'takes a list of tensors ({op.inputs[0]})' if op.inputs else 'takes no tensors'
            raise AttributeError(f'{name} is no method of tensors, because it {first}; call tapegrad.ops.{name}')
        setattr(Tensor, name, op)  # the next time it is found at once
        return op.__get__(self)


def _mixed(name, a, b):
    """The result of an operator, such as "add", with one operand that is not a tensor."""
    op = getattr(operator, f'__{name}__')
    if isinstance(a, Tensor):
        other = like(b, a)
        return other if other is NotImplemented else op(a, other)
    if name in ('add', 'mul', 'and', 'or', 'xor'):
        return op(b, a)
    if name == 'sub':
        return -b + a
    other = like(a, b)
    return other if other is NotImplemented else op(other, b)


_package = os.path.dirname(__file__) + os.sep
_files = {}  # texts of C, which live as long as the process


def _file(name):
    """The address of the name of a source file as text of C; 0 for the package's own."""
    if name.startswith(_package):
        return 0
    return int(ffi.cast('uintptr_t', _files.setdefault(name, ffi.new('char[]', name.encode()))))


def _product(a, b):
    """a @ b; a vector counts as a row at the left and as a column at the right, as NumPy has it."""
    rows, columns = a.ndim == 1, b.ndim == 1
    note_site(2)
    a, b = a.unsqueeze(0) if rows else a, b.unsqueeze(-1) if columns else b
    box = lib.tgpy_binary(_matmul, a._box, b._box)
    y = wrap(box) if box else fail(a._world)
    y = y.squeeze(dim=-2) if rows else y
    return y.squeeze(dim=-1) if columns else y


def _fail(x):
    fail(x._world)


wrap = Tensor._of  # a Tensor that owns a box


def _nested(numbers, shape):
    if not shape:
        return numbers[0]
    if len(shape) == 1:
        return numbers
    step = len(numbers) // shape[0] if shape[0] else 0
    return [_nested(numbers[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


# ---- Creation ----


def made(ctx, x):
    """A Tensor of a new tg_tensor of a context."""
    box = lib.tgpy_box_new(ctx._world, NULL, x, False)
    return wrap(box) if box else fail(ctx._world)


def tensor(data, dtype=None, *, requires_grad=False, context=None):
    """A new tensor with a copy of the values: a number, nested sequences, a NumPy array, or another tensor. Without a
    dtype it is that of the array or tensor; integers become i64, bools bool, and other numbers the context's default
    dtype."""
    ctx = context or _default()
    if isinstance(data, Tensor):
        dtype, data = data.dtype if dtype is None else dtype, data.numpy()
    if hasattr(data, '__array_interface__') or hasattr(data, '__array__'):
        x = _from_numpy(ctx, data, dtype)
    else:
        x = _from_numbers(ctx, *values.flattened(data), dtype)
    if requires_grad:
        x.requires_grad = True
    return x


def _from_numpy(ctx, data, dtype):
    import numpy

    array = numpy.asarray(data)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder('='))
    if array.dtype.kind not in 'biuf' and array.dtype.name not in values.OTHERS:
        raise TypeError(f'the array is {array.dtype}, but must have integers, floats or bools')
    if array.dtype.kind == 'f' and array.dtype.name not in values.OTHERS:
        array = array.astype('float64')
    elif array.dtype.name not in values.OTHERS and array.dtype.name != 'bool':
        array = array.astype('int64')
    name = values.dtype_name(array.dtype.name)
    if dtype is not None and values.dtype_name(dtype) in values.NUMPY:
        name = values.dtype_name(dtype)
        array = array.astype(values.NUMPY[name])
    array = numpy.ascontiguousarray(array).reshape(array.shape)
    if name not in values.NUMPY:  # bfloat16 and float8, which are no dtypes of buffers
        array = array.view(f'uint{8 * array.itemsize}')
    source = ffi.from_buffer(array) if array.nbytes else NULL
    x = made(ctx, lib.tg_from_host(ctx._ctx, values.DTYPES[name], values.shape_value(array.shape), source))
    return x if dtype is None or values.dtype_name(dtype) == name else _cast(x, dtype)


def _cast(x, dtype):
    return x.cast(values.dtype_name(dtype)).detach()


def _from_numbers(ctx, shape, numbers, dtype):
    name = values.dtype_name(dtype) if dtype is not None else values.dtype_of_numbers(numbers)
    data = values.bytes_of(numbers, name)
    if data is not None:
        x = lib.tg_from_host(ctx._ctx, values.DTYPES[name], values.shape_value(shape), ffi.from_buffer(data))
    else:
        x = lib.tg_zeros(ctx._ctx, values.dtype_value(name), values.shape_value(shape))
        values.write(x, values.array.array('d', numbers))
    return made(ctx, x)


def tensor_for(x, data, dtype=None):
    """tensor(), of the context of x."""
    return tensor(data, dtype, context=_context_of(x))


def like(other, x):
    """A number or array as a tensor of the context and, for numbers, the dtype of x; NotImplemented for anything
    else. Raises DtypeError if the number is a fraction and x has integers, or if it is neither 0 nor 1 and x has
    bools."""
    if isinstance(other, Tensor):
        return other
    if isinstance(other, Real) and not isinstance(other, (int, float)):  # NumPy's numbers
        other = int(other) if isinstance(other, Integral) else float(other)
    if isinstance(other, (bool, int, float)):
        fraction = isinstance(other, float) and not other.is_integer()
        if fraction and x.dtype in values.INTEGERS or x.dtype == 'bool' and other not in (0, 1):
            raise BY_STATUS[lib.TG_ERR_DTYPE](
                f'{other} cannot be {x.dtype}, the dtype of the other operand; cast that to '
                f'{"a float" if fraction else "an integer dtype"} (Tensor.cast)'
            )
        return tensor(other, x.dtype, context=_context_of(x))
    return (
        tensor(other, context=_context_of(x))
        if hasattr(other, '__array__') or isinstance(other, (list, tuple))
        else NotImplemented
    )


class _Shared:
    """The context of a tensor, as functions that make tensors take it."""

    __slots__ = ('_world',)

    @property
    def _ctx(self):
        with using(self._world):
            return lib.tgpy_ctx(self._world)


def _context_of(x):
    shared = object.__new__(_Shared)
    shared._world = x._world
    return shared


def _default():
    return context()


def _creation(name, *parameters):
    """A function that makes a tensor of a shape. Its further arguments are those of tg_<name>."""
    function = getattr(lib, 'tg_' + name)

    def create(shape, *numbers, dtype=None, requires_grad=False, context=None, **named):
        ctx = context or _default()
        arguments = [
            named.pop(p, default) if i >= len(numbers) else numbers[i] for i, (p, default) in enumerate(parameters)
        ]
        if named or len(numbers) > len(parameters):
            raise TypeError(f'{name} takes {", ".join(p for p, _ in parameters) or "no further arguments"}')
        x = made(ctx, function(ctx._ctx, values.dtype_value(dtype), values.shape_value(shape), *arguments))
        if requires_grad:
            x.requires_grad = True
        return x

    create.__name__ = create.__qualname__ = name
    return create


zeros = _creation('zeros')
zeros.__doc__ = 'A new tensor of zeros. Without a dtype it has the default dtype of the context.'
randn = _creation('randn', ('std', 1.0))
randn.__doc__ = 'A new tensor of normal numbers with mean 0 and standard deviation std.'
uniform = _creation('uniform', ('lo', 0.0), ('hi', 1.0))
uniform.__doc__ = 'A new tensor of uniform numbers from lo up to, but not including, hi.'


def ones(shape, *, dtype=None, requires_grad=False, context=None):
    """A new tensor of ones."""
    return full(shape, 1, dtype=dtype, requires_grad=requires_grad, context=context)


def full(shape, value, *, dtype=None, requires_grad=False, context=None):
    """A new tensor filled with a number."""
    x = zeros(shape, dtype=dtype, context=context)
    exact = x.dtype in ('i64', 'u64')  # a double does not hold all integers of 64 bits
    number = values.bytes_of([value], x.dtype) if exact else values.array.array('d', [value])
    values.write(x._handle(), number * x.size)
    check(x._world)
    if requires_grad:
        x.requires_grad = True
    return x


def from_dlpack(array, context=None):
    """A tensor on the memory of another library's array, without a copy: of NumPy, PyTorch, JAX and others."""
    return dlpack.take(context or _default(), array)


def _unpickled(data, dtype, shape, requires_grad, context=None):
    ctx = context or _default()
    x = made(
        ctx,
        lib.tg_from_host(
            ctx._ctx, values.DTYPES[dtype], values.shape_value(shape), ffi.from_buffer(data) if data else NULL
        ),
    )
    if requires_grad:
        x.requires_grad = True
    return x


setup(Tensor, ffi.typeof('tgpy_box *'), _fail, _mixed, like, _file)
