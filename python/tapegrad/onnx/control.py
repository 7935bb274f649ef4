"""If, Loop and Scan: graphs within a graph. They see the values of the graph around them, and gradients flow through
both."""

from .. import ops
from ..tensor import tensor
from .registry import op


@op('If', scope=True)
def if_(n, scope, condition):
    return tuple((n.then_branch if condition.item() else n.else_branch).run({}, scope))


@op('Loop', scope=True)
def loop(n, scope, limit, condition, *carried):
    """Runs the body while its condition holds. Returns the carried values, and then the other outputs, each of which
    stacks what the iterations gave."""
    carried, rows, i = list(carried), [], 0
    going = condition is None or condition.item()
    while going and (limit is None or i < int(limit.item())):
        values = [tensor(i, 'i64'), tensor(True, 'bool') if condition is None else condition, *carried]
        going, *results = n.body.run(dict(zip(n.body.inputs, values)), scope)
        condition, going = going, going.item()
        carried = results[: len(carried)]
        rows.append(results[len(carried) :])
        i += 1
    n_scans = n.n_out - len(carried)
    scans = [ops.stack([row[k] for row in rows], dim=0) if rows else tensor([], 'f32') for k in range(n_scans)]
    return (*carried, *scans)


@op('Scan', scope=True)
def scan(n, scope, *values):
    """Runs the body for each part of the scanned inputs. Version 8 has a batch, whose rows are scanned one by one."""
    if n.since < 9:
        return _batches(n, scope, *values)
    m = n.num_scan_inputs
    return _scanned(
        n, scope, list(values[:-m]), list(values[-m:]), getattr(n, 'scan_input_axes', None), n.scan_input_directions
    )


def _scanned(n, scope, state, scans, axes, directions):
    axes, backward = axes or [0] * len(scans), directions or [0] * len(scans)
    length = scans[0].shape[axes[0]]
    rows = []
    for i in range(length):
        parts = [ops.select(x, axis, length - 1 - i if back else i) for x, axis, back in zip(scans, axes, backward)]
        results = n.body.run(dict(zip(n.body.inputs, [*state, *parts])), scope)
        state = results[: len(state)]
        rows.append(results[len(state) :])
    return (*state, *[_joined(n, [row[k] for row in rows], k) for k in range(n.n_out - len(state))])


def _joined(n, parts, k):
    """Parts of output k, stacked along its axis in its direction."""
    backward, axes = getattr(n, 'scan_output_directions', None), getattr(n, 'scan_output_axes', None)
    return ops.stack(parts[::-1] if backward and backward[k] else parts, dim=axes[k] if axes else 0)


def _batches(n, scope, lengths, *values):
    m = n.num_scan_inputs
    states, scans = values[:-m], values[-m:]
    results = []
    for b in range(scans[0].shape[0]):
        length = int(lengths[b].item()) if lengths is not None else scans[0].shape[1]
        rows = [ops.slice(ops.select(x, 0, b), 0, stop=length) for x in scans]
        results.append(_scanned(n, scope, [ops.select(x, 0, b) for x in states], rows, None, n.directions))
    return tuple(ops.stack(list(parts), dim=0) for parts in zip(*results))
