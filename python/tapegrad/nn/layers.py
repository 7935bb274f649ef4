"""Layers: modules for the parts that most models are made of. Names and shapes of parameters, and their initial
values, are PyTorch's. `weight` and `bias` are functions of nn.init that write other initial values; bias False means
no bias."""

import math

from .. import ops
from ..tensor import ones, zeros
from . import init
from .module import Buffer, Module, ModuleList

_AS_PYTORCH = init.kaiming_uniform(math.sqrt(1 / 3))


def parameter(shape, write, dtype=None):
    """A new tensor with initial values; None if write is False."""
    return None if write is False else write(zeros(shape, dtype=dtype))


def _bias(n, fan, write, dtype):
    bound = 1 / math.sqrt(fan) if fan else 0
    return parameter((n,), init.uniform(-bound, bound) if write is True else write, dtype)


class Linear(Module):
    """x @ weight^T + bias: [.., inputs] gives [.., outputs]. weight is [outputs, inputs]."""

    def __init__(self, inputs, outputs, *, weight=_AS_PYTORCH, bias=True, dtype=None):
        self.weight = parameter((outputs, inputs), weight, dtype)
        self.bias = _bias(outputs, inputs, bias, dtype)

    def forward(self, x):
        return ops.linear(x, self.weight, self.bias)

    def describe(self):
        outputs, inputs = self.weight.shape
        return f'{inputs} to {outputs}'


class Embedding(Module):
    """Rows of weight [vocab, size]: ids [..] give [.., size]."""

    def __init__(self, vocab, size, *, weight=init.normal(), dtype=None):
        self.weight = parameter((vocab, size), weight, dtype)

    def forward(self, ids):
        return ops.embedding(self.weight, ids)

    def describe(self):
        return '{} of {}'.format(*self.weight.shape)


class _Norm(Module):
    """What norms have: weight, which starts as 1, bias, which starts as 0 or is None, and eps."""

    def __init__(self, size, eps, bias, dtype):
        self.weight = ones((size,), dtype=dtype)
        self.bias = zeros((size,), dtype=dtype) if bias else None
        self.eps = eps

    def describe(self):
        return f'{self.weight.size}, eps {self.eps:g}'


class LayerNorm(_Norm):
    """A norm over the last dim of x [.., size]."""

    def __init__(self, size, eps=1e-5, *, bias=True, dtype=None):
        super().__init__(size, eps, bias, dtype)

    def forward(self, x):
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(_Norm):
    """A root mean square norm over the last dim of x [.., size]."""

    def __init__(self, size, eps=1e-6, *, dtype=None):
        super().__init__(size, eps, False, dtype)

    def forward(self, x):
        return ops.rms_norm(x, self.weight, eps=self.eps)


class GroupNorm(_Norm):
    """A norm over each of `groups` groups of adjacent channels of x [n, channels, ..]."""

    def __init__(self, groups, channels, eps=1e-5, *, dtype=None):
        super().__init__(channels, eps, True, dtype)
        self.groups = groups

    def forward(self, x):
        return ops.group_norm(x, self.weight, self.bias, groups=self.groups, eps=self.eps)


class BatchNorm(_Norm):
    """A norm over each channel of x [n, channels, ..]. In training mode x is normalized with its own statistics, and
    running_mean and running_var move toward them by the fraction momentum; in evaluation mode with these."""

    def __init__(self, channels, momentum=0.1, eps=1e-5, *, dtype=None):
        super().__init__(channels, eps, True, dtype)
        self.momentum = momentum
        self.running_mean = Buffer(zeros((channels,), dtype=dtype))
        self.running_var = Buffer(ones((channels,), dtype=dtype))

    def forward(self, x):
        return ops.batch_norm(
            x, self.weight, self.bias, self.running_mean, self.running_var, momentum=self.momentum, eps=self.eps
        )


class _Conv(Module):
    """What convolutions have. The options are those of the op: stride, padding, dilation, groups."""

    def __init__(self, inputs, outputs, window, weight, bias, dtype, options):
        groups = options.get('groups', 1)
        if groups < 1 or inputs % groups or outputs % groups:
            raise ValueError(f'groups is {groups}, but must be positive and divide {inputs} and {outputs}')
        self.weight = parameter((outputs, inputs // groups, *window), weight, dtype)
        self.bias = _bias(outputs, inputs // groups * math.prod(window), bias, dtype)
        self.options = options

    def describe(self):
        outputs, inputs, *window = self.weight.shape
        parts = [f'{inputs * self.options.get("groups", 1)} to {outputs}', f'window {window}']
        return ', '.join(parts + [f'{name} {value}' for name, value in self.options.items()])


class Conv1d(_Conv):
    """A convolution of x [n, inputs, length] with windows of `window` elements (ops.conv1d)."""

    def __init__(self, inputs, outputs, window, *, weight=_AS_PYTORCH, bias=True, dtype=None, **options):
        super().__init__(inputs, outputs, (window,), weight, bias, dtype, options)

    def forward(self, x):
        return ops.conv1d(x, self.weight, self.bias, **self.options)


class Conv2d(_Conv):
    """A convolution of x [n, inputs, height, width] with windows of height x width elements, or window x window
    (ops.conv2d)."""

    def __init__(self, inputs, outputs, window, *, weight=_AS_PYTORCH, bias=True, dtype=None, **options):
        window = (window, window) if isinstance(window, int) else tuple(window)
        super().__init__(inputs, outputs, window, weight, bias, dtype, options)

    def forward(self, x):
        return ops.conv2d(x, self.weight, self.bias, **self.options)


class Dropout(Module):
    """In training mode sets elements to 0 with probability p, and divides the others by 1 - p."""

    def __init__(self, p=0.5):
        self.p = p

    def forward(self, x):
        return ops.dropout(x, self.p)

    def describe(self):
        return f'p {self.p:g}'


class Function(Module):
    """A function of tensors as a module, such as ops.relu, with further arguments of its own."""

    def __init__(self, fn, **arguments):
        self.fn, self.arguments = fn, arguments

    def forward(self, *args):
        return self.fn(*args, **self.arguments)

    def describe(self):
        name = getattr(self.fn, '__name__', type(self.fn).__name__)  # a partial has no name
        return ', '.join([name, *(f'{key} {value}' for key, value in self.arguments.items())])


class Sequential(ModuleList):
    """Passes its input through modules, or functions such as ops.relu, one after the other."""

    def __init__(self, *parts):
        super().__init__()
        for part in parts:
            self.append(part)

    def append(self, part):
        super().append(part if isinstance(part, Module) else Function(part))

    def forward(self, x):
        for part in self:
            x = part(x)
        return x
