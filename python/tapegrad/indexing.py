"""x[...] and x[...] = y: integers, slices, None, an ellipsis, masks, and tensors or lists of integers, with NumPy's
meaning.

An index is read from left to right. Integers, slices and None change one dim each, and leave the dims for masks and
tensors, which are taken together at the end. So, as in PyTorch, an integer never counts as a tensor: x[0, :, [1, 2]]
is x[0][:, [1, 2]], whereas NumPy takes 0 and [1, 2] together."""

from numbers import Real

from . import ops
from .objects import TensorBase
from .values import INTEGERS


def get(x, index):
    """x[index]."""
    if type(index) is int and x.ndim:  # as in loops: needs no plan
        return ops.select(x, 0, _checked(index, x.shape[0], 0))
    x, dims, indices = _basic(x, _parts(x, index))
    return ops.index(x, indices, dims=dims) if indices else x


def put(x, index, value):
    """A tensor like x, in which x[index] is replaced by value. Gradients flow to both."""
    from .tensor import like

    if isinstance(value, Real) and x.dtype == 'bool':  # also NumPy's numbers
        value = bool(value)  # as NumPy converts what is assigned
    elif isinstance(value, Real) and x.dtype in INTEGERS:
        value = int(value)
    if value is not x and (value := like(value, x)) is NotImplemented:
        raise TypeError('the value of an assignment must be a tensor, a number or an array')
    return _replaced(x, _parts(x, index), 0, value.cast(x.dtype) if value.dtype != x.dtype else value)


# ---- Parts of an index ----


def _parts(x, index):
    """The parts of an index. A mask becomes one tensor of integers for each of its dims, and an ellipsis becomes whole
    slices."""
    parts = [_array(x, part) if _is_array(part) else part for part in (index if isinstance(index, tuple) else (index,))]
    used = sum(map(_width, parts))
    if used > x.ndim:
        raise IndexError(f'the index has {used} parts, but the tensor has {x.ndim} dims')
    at = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(at) > 1:
        raise IndexError('an index has at most one ellipsis')
    if at:
        parts[at[0] : at[0] + 1] = [slice(None)] * (x.ndim - used)
    expanded, dim = [], 0
    for part in parts:
        is_mask = isinstance(part, TensorBase) and _is_mask(part)
        expanded.extend(_places(x, part, dim) if is_mask else (part,))
        dim += _width(part)
    return expanded


def _width(part):
    """How many dims of the tensor a part indexes."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, TensorBase) and _is_mask(part) else 1


def _is_array(part):
    """Whether a part is a mask or a tensor or list of integers. An integer in a tensor of 0 dims is an integer."""
    if isinstance(part, list):
        return True
    return hasattr(part, 'dtype') and (bool(part.ndim) or _is_mask(part))


def _is_mask(part):
    return str(part.dtype) == 'bool'


def _array(x, part):
    """A mask, or a tensor of integers, of a part that is an array or a list."""
    from .tensor import tensor_for

    if not isinstance(part, TensorBase):
        part = tensor_for(x, part, 'i64' if isinstance(part, list) and not part else None)
    if part.dtype in INTEGERS:
        return part.cast('i64')
    if part.dtype != 'bool':
        raise IndexError(f'an index must have integers or bools, but this one is {part.dtype}')
    if not part.ndim:
        raise IndexError('a part of the index is a bool without dims; expected a mask (ops.where chooses by one bool)')
    return part


def _places(x, mask, dim):
    """The tensors of integers that a mask stands for, one for each of its dims, of which the first is for `dim`."""
    expected = x.shape[dim : dim + mask.ndim]
    if mask.shape != expected:
        raise IndexError(f'a mask has the shape {mask.shape}, but the dims that it indexes have {expected}')
    count = int(mask.cast('i64').sum().item())
    places = ops.nonzero(mask, count=count)
    return [places[:, i] for i in range(mask.ndim)]


def _checked(i, n, dim):
    """An integer of an index, for a dim of size n."""
    if isinstance(i, bool) or not hasattr(i, '__index__'):
        raise TypeError(f'a part of the index is {i!r}; expected an integer, slice, None, ..., mask, tensor or list')
    i = i.__index__()
    if not -n <= i < n:
        raise IndexError(f'index {i} is out of range for dim {dim} of size {n}')
    return i


# ---- Reading ----


def _basic(x, parts):
    """Applies integers, slices and None. Returns the result, its dims that tensors index, and these tensors."""
    dim, dims, indices = 0, [], []
    for part in parts:
        if isinstance(part, TensorBase) and part.ndim:
            dims.append(dim)
            indices.append(part)
            dim += 1
        elif part is None:
            x, dim = ops.unsqueeze(x, dim), dim + 1
        elif isinstance(part, slice):
            x, dim = _sliced(x, dim, part), dim + 1
        else:
            x = ops.select(x, dim, _checked(part, x.shape[dim], dim))
    return x, dims, indices


def _sliced(x, dim, part):
    start, stop, step = part.indices(x.shape[dim])
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    if step > 0:
        return ops.slice(x, dim, start, max(start, stop), step)
    first, after = _forward(start, stop, step)
    return ops.flip(ops.slice(x, dim, first, after, -step), dims=[dim])


def _forward(start, stop, step):
    """Where the elements of a slice with a negative step begin and end in rising order."""
    n = max(0, (stop - start + step + 1) // step)
    return (start + (n - 1) * step, start + 1) if n else (0, 0)


# ---- Writing ----


def _replaced(x, parts, dim, value):
    """x with the elements of the parts, which begin at a dim, replaced by value."""
    if any(isinstance(p, TensorBase) and p.ndim for p in parts):
        return _put(x, [slice(None)] * dim + parts, value)
    if not parts:
        return _expanded(value, x.shape).contiguous() if value.shape != x.shape else value
    part, rest = parts[0], parts[1:]
    if part is None:  # a dim of size 1, which the value has or broadcasts to
        place = value.ndim - 1 - _dims_of(rest, x.ndim - dim)
        return _replaced(x, rest, dim, value if place < 0 else ops.squeeze(value, place))
    if not isinstance(part, slice):
        i = _checked(part, x.shape[dim], dim)
        return ops.select_scatter(x, _replaced(ops.select(x, dim, i), rest, dim, value), dim=dim, index=i)
    start, stop, step = part.indices(x.shape[dim])
    new = _replaced(_sliced(x, dim, part), rest, dim + 1, value)
    if step < 0:
        (start, stop), step, new = _forward(start, stop, step), -step, ops.flip(new, dims=[dim])
    return ops.slice_scatter(x, new, dim=dim, start=start, stop=max(start, stop), step=step)


def _expanded(value, shape):
    """value broadcast to a shape, which may lack dims of size 1 that value has in front."""
    extra = value.ndim - len(shape)
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        value = value.reshape(value.shape[extra:])
    return ops.expand(value, shape)


def _dims_of(parts, ndim):
    """The number of dims of what these parts choose from a tensor of ndim dims."""
    kept = sum(part is None or isinstance(part, slice) for part in parts)
    return kept + ndim - sum(part is not None for part in parts)


def _put(x, parts, value):
    """Replaces elements that tensors index. Other parts are made tensors of positions, so that all are taken
    together."""
    from .tensor import tensor_for

    places = ops.arange(dtype='i64', stop=x.size)
    places = (places if places._world == x._world else tensor_for(x, places)).reshape(list(x.shape))
    chosen = get(places, tuple(parts))
    flat = ops.index_put(
        x.reshape([-1]), _expanded(value, chosen.shape).reshape([-1]), [chosen.reshape([-1])], dims=[0]
    )
    return flat.reshape(list(x.shape))
