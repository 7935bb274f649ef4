"""x[...]: integers, slices, None, an ellipsis, a mask, and one tensor or list of integers, with NumPy's meaning."""
from . import ops


def get(x, index):
    parts = _complete(index if isinstance(index, tuple) else (index,), x.ndim)
    dim = 0
    for part in parts:
        x, dim = _step(x, dim, part)
    return x


def _is_mask(part):
    return getattr(part, 'dtype', None) in ('bool',) or (isinstance(part, list) and bool(part) and isinstance(part[0], bool))


def _uses(part):
    """How many dims a part of an index takes."""
    return 0 if part is None else getattr(part, 'ndim', 1) if _is_mask(part) else 1


def _complete(parts, ndim):
    """The parts with whole slices in place of the ellipsis."""
    used = sum(_uses(part) for part in parts if part is not Ellipsis)
    if used > ndim:
        raise IndexError(f'the index has {used} parts, but the tensor has {ndim} dims')
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError('an index has at most one ellipsis')
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is None:
        return parts
    return (*parts[:at], *[slice(None)] * (ndim - used), *parts[at + 1:])


def _step(x, dim, part):
    """Applies one part to the dim, and returns the result with the dim of the next part."""
    from .tensor import Tensor, tensor, _context_of
    if part is None:
        return ops.unsqueeze(x, dim), dim + 1
    if isinstance(part, slice):
        return _slice(x, dim, part), dim + 1
    if _is_mask(part):
        mask = part if isinstance(part, Tensor) else tensor(part, context=_context_of(x))
        return _masked(x, dim, mask), dim + 1
    if isinstance(part, Tensor) and part.ndim or hasattr(part, '__array__') and getattr(part, 'ndim', 0) or isinstance(part, list):
        index = part if isinstance(part, Tensor) else tensor(part, context=_context_of(x))
        return _taken(x, dim, index)
    return ops.select(x, dim, _checked(int(part.__index__()), x.shape[dim], dim)), dim


def _checked(i, n, dim):
    if not -n <= i < n:
        raise IndexError(f'index {i} is out of range for dim {dim} of size {n}')
    return i


def _slice(x, dim, part):
    start, stop, step = part.indices(x.shape[dim])
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    if step > 0:
        return ops.slice(x, dim, start, max(start, stop), step)
    n = max(0, (stop - start + step + 1) // step)
    last = start + (n - 1) * step
    forward = ops.slice(x, dim, last if n else 0, start + 1 if n else 0, -step)
    return ops.flip(forward, dims=[dim])


def _taken(x, dim, index):
    """Replaces the dim by those of an index of integers, which may be negative."""
    n = x.shape[dim]
    index = ops.where(index < 0, index + n, index)
    rows = ops.index_select(x, index.reshape([-1]) if index.ndim != 1 else index, dim=dim)
    if index.ndim != 1:
        rows = rows.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1:]])
    return rows, dim + index.ndim


def _masked(x, dim, mask):
    """Replaces the dims of a mask by one dim of the elements where it is true."""
    if x.shape[dim:dim + mask.ndim] != mask.shape:
        raise IndexError(f'the mask has the shape {mask.shape}, but the dims that it stands for have {x.shape[dim:dim + mask.ndim]}')
    flat = x.reshape([*x.shape[:dim], mask.size, *x.shape[dim + mask.ndim:]])
    chosen = [i for i, yes in enumerate(mask.reshape([-1]).tolist()) if yes]
    from .tensor import tensor, _context_of
    index = tensor(chosen or [0], 'i64', context=_context_of(x))
    return ops.index_select(flat, index if chosen else ops.slice(index, 0, 0, 0), dim=dim)
