"""Models in ONNX: small ones of each kind, trained and run, and errors. onnx_suite.py runs the tests of onnx itself."""

import numpy as np
import pytest

onnx = pytest.importorskip('onnx')
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tapegrad as tg  # noqa: E402
import tapegrad.onnx  # noqa: E402

rng = np.random.default_rng(0)


def info(name, shape=None, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes, inputs, outputs, weights=None, opset=17, functions=(), domains=()):
    constants = [numpy_helper.from_array(np.asarray(w), name) for name, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, 'g', inputs, outputs, constants)
    opsets = [helper.make_opsetid('', opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def f32(*shape):
    return (rng.standard_normal(shape) * 0.5).astype('float32')


def mlp():
    nodes = [node('Gemm', 'x w1 b1', 'h', transB=1), node('Tanh', 'h', 'a'), node('MatMul', 'a w2', 'y')]
    return model_of(
        nodes, [info('x', ['batch', 3])], [info('y', ['batch', 1])], {'w1': f32(8, 3), 'b1': f32(8), 'w2': f32(8, 1)}
    )


def test_a_model_describes_itself(tmp_path):
    onnx.save(mlp(), tmp_path / 'mlp.onnx')
    model = tg.onnx.load(tmp_path / 'mlp.onnx')
    assert model.inputs == {'x': ('f32', ('batch', 3))} and model.outputs == {'y': ('f32', ('batch', 1))}
    assert {name: p.shape for name, p in model.parameters.items()} == {'w1': (8, 3), 'b1': (8,), 'w2': (8, 1)}
    x = f32(4, 3)
    w1, b1, w2 = (model.parameters[name].numpy() for name in ('w1', 'b1', 'w2'))
    expected = np.tanh(x @ w1.T + b1) @ w2
    for y in (model(x), model(x=x), model(tg.tensor(x)), model.run({'x': x})[0]):
        assert np.allclose(y.numpy(), expected, atol=1e-6)


def test_an_mlp_is_trained():
    model = tg.onnx.load(mlp(), requires_grad=True)
    x = f32(32, 3)
    target = np.sin(x.sum(1, keepdims=True)).astype('float32')
    losses = []
    for _ in range(150):
        loss = ((model(x) - target) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        for p in model.parameters.values():
            p.write(p.numpy() - 0.2 * p.grad.numpy())
            p.grad = None
    assert losses[-1] < 0.05 * losses[0]


def test_gradients_agree_with_differences():
    model = tg.onnx.load(mlp(), requires_grad=True)
    x = f32(5, 3)
    model(x).sum().backward()
    w = model.parameters['w1']
    gradient, value = w.grad.numpy(), w.numpy()
    for i, j in ((0, 0), (3, 2)):
        ends = []
        for sign in (1, -1):
            moved = value.copy()
            moved[i, j] += sign * 1e-2
            w.write(moved)
            ends.append(model(x).sum().item())
        assert abs((ends[0] - ends[1]) / 2e-2 - gradient[i, j]) < 1e-3
        w.write(value)


def test_a_convolutional_net():
    nodes = [
        node('Conv', 'x k', 'c', pads=[0, 0, 1, 1], strides=[2, 2]),
        node('BatchNormalization', 'c s b m v', 'n'),
        node('Relu', 'n', 'r'),
        node('MaxPool', 'r', 'p', kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node('GlobalAveragePool', 'p', 'g'),
        node('Flatten', 'g', 'f'),
        node('Gemm', 'f w', 'y', transB=1),
    ]
    weights = {'k': f32(4, 3, 3, 3), 's': f32(4), 'b': f32(4), 'm': f32(4), 'v': np.abs(f32(4)) + 1, 'w': f32(2, 4)}
    model = tg.onnx.load(model_of(nodes, [info('x', [2, 3, 9, 9])], [info('y', [2, 2])], weights), requires_grad=True)
    y = model(f32(2, 3, 9, 9))
    (y * y).sum().backward()
    assert y.shape == (2, 2) and all(np.abs(model.parameters[name].grad.numpy()).max() > 0 for name in ('k', 's', 'w'))


def test_an_lstm_keeps_the_state_of_short_rows():
    nodes = [node('LSTM', 'x w r b n', 'y h c', hidden_size=4, direction='bidirectional')]
    weights = {'w': f32(2, 16, 3), 'r': f32(2, 16, 4), 'b': f32(2, 32), 'n': np.array([5, 2], 'int32')}
    outputs = [info('y'), info('h'), info('c')]
    model = tg.onnx.load(model_of(nodes, [info('x', [5, 2, 3])], outputs, weights), requires_grad=True)
    y, h, c = model(f32(5, 2, 3))
    assert y.shape == (5, 2, 2, 4) and h.shape == c.shape == (2, 2, 4)
    y, h_now = y.numpy(), h.numpy()
    assert np.array_equal(y[4, 0, 0], h_now[0, 0]) and np.array_equal(y[1, 0, 1], h_now[0, 1]) and not y[2:, :, 1].any()
    h.sum().backward()
    assert np.abs(model.parameters['r'].grad.numpy()).max() > 0


def transformer_block():
    nodes = [
        node('LayerNormalization', 'x g b', 'n'),
        node('MatMul', 'n wqkv', 'qkv'),
        node('Split', 'qkv', 'q k v', axis=-1, num_outputs=3),
        node('Attention', 'q k v', 'a', q_num_heads=2, kv_num_heads=2, is_causal=1),
        node('MatMul', 'a wo', 'o'),
        node('Add', 'x o', 'r'),
        node('Gelu', 'r', 'u'),
        node('Add', 'r u', 'y'),
    ]
    weights = {'g': np.ones(8, 'float32'), 'b': np.zeros(8, 'float32'), 'wqkv': f32(8, 24), 'wo': f32(8, 8)}
    return model_of(nodes, [info('x', [2, 6, 8])], [info('y', [2, 6, 8])], weights, opset=23)


def test_activations_take_their_numbers_in_order():
    nodes = [
        node(
            'GRU',
            'x w r',
            'y',
            hidden_size=1,
            activations=['Affine', 'ScaledTanh'],
            activation_alpha=[0.25, 2.0],
            activation_beta=[0.5, 3.0],
        )
    ]
    weights = {'w': np.ones((1, 3, 1), 'float32'), 'r': np.zeros((1, 3, 1), 'float32')}
    model = tg.onnx.load(model_of(nodes, [info('x', [1, 1, 1])], [info('y')], weights))
    z, new = 0.25 * 0.5 + 0.5, 2 * np.tanh(3 * 0.5)
    assert np.allclose(model(np.full((1, 1, 1), 0.5)).numpy(), (1 - z) * new)


def test_a_transformer_block_is_causal():
    model = tg.onnx.load(transformer_block(), requires_grad=True)
    x = f32(2, 6, 8)
    y = model(x)
    x[:, 4:] += 1
    later = model(x).numpy()
    assert np.allclose(later[:, :4], y.numpy()[:, :4], atol=1e-6) and not np.allclose(
        later[:, 4:], y.numpy()[:, 4:], atol=1e-2
    )
    y.sum().backward()
    assert np.abs(model.parameters['wqkv'].grad.numpy()).max() > 0


@pytest.mark.parametrize('softcap', [0.0, 0.5])
@pytest.mark.parametrize('kind', ['bool', 'float32'])
def test_a_query_without_keys_has_zeros_as_result_and_gradient(kind, softcap):
    hidden = np.zeros((3, 4), bool)
    hidden[1] = hidden[0, 2] = True
    mask = ~hidden if kind == 'bool' else np.where(hidden, -np.inf, 0).astype('float32')
    attention = node('Attention', 'q k v m', 'y', softcap=softcap)
    proto = model_of([attention], [info(n) for n in 'qkv'], [info('y')], {'m': mask}, opset=24)
    inputs = [tg.tensor(f32(1, 2, length, 4)) for length in (3, 4, 4)]
    for x in inputs:
        x.requires_grad = True
    y = tg.onnx.load(proto)(*inputs)
    values = y.numpy().copy()
    (y * y).sum().backward()
    grads = [x.grad.numpy() for x in inputs]
    assert not values[:, :, 1].any() and not grads[0][:, :, 1].any()
    assert all(np.isfinite(g).all() and g.any() for g in grads)


@pytest.mark.parametrize('mode', range(4))
@pytest.mark.parametrize('kind', ['none', 'bool', 'float32'])
def test_scores_as_a_result_have_gradients(kind, mode):
    """Also where all keys of a query are hidden. The heads share two heads of keys."""
    hidden = np.zeros((4, 1, 3, 5), bool)
    hidden[1, 0, 1] = hidden[:, 0, 0, 2] = True
    hidden = hidden.transpose(1, 0, 2, 3)
    masks = {'bool': ~hidden, 'float32': np.where(hidden, -np.inf, 0.5).astype('float32'), 'none': None}
    weights = {} if kind == 'none' else {'m': masks[kind]}
    names = 'q k v' + (' m' if weights else '')
    softcap = 0.7 if mode else 0.0  # onnx's own evaluator applies it in mode 0 too, other than the op's definition
    options = {'qk_matmul_output_mode': mode, 'softcap': softcap, 'softmax_precision': 11}
    attention = node('Attention', names, 'y pk pv s', **options)
    outputs = [info('y'), info('s')]
    proto = model_of([attention], [info(n) for n in 'qkv'], outputs, weights, opset=24)
    arrays = [f32(1, heads, length, 4) for heads, length in ((4, 3), (2, 5), (2, 5))]
    inputs = [tg.tensor(a, requires_grad=True) for a in arrays]
    y, s = tg.onnx.load(proto)(*inputs)
    for found, expected in zip((y, s), ReferenceEvaluator(proto).run(None, dict(zip('qkv', arrays)))):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    finite = s if mode != 2 else s.masked_fill(tg.tensor(np.isinf(s.numpy())), 0)
    (finite * finite).sum().backward()
    grads = [x.grad.numpy() if x.grad is not None else np.zeros(1) for x in inputs]
    assert all(np.isfinite(g).all() for g in grads) and grads[0].any() and grads[1].any() and not grads[2].any()
    if kind != 'none' and mode > 1:
        assert not grads[0][:, 1, 1].any()


WINDOWS = {
    'ConvTranspose': [{'pads': [1, 0, 1, 0], 'strides': [2, 1]}, {'pads': [0, 2, 1, -1], 'output_padding': [1, 0]}],
    'MaxPool': [{'pads': [0, 1, 2, 1], 'ceil_mode': 1, 'strides': [2, 2]}, {'dilations': [1, 2]}],
    'AveragePool': [{'pads': [0, 1, 2, 1], 'strides': [1, 2]}, {'pads': [1, 1, 1, 1], 'count_include_pad': 1}],
}


@pytest.mark.parametrize('op, options', [(op, o) for op, rows in WINDOWS.items() for o in rows])
def test_gradients_of_windows_agree_with_differences(op, options):
    w = {} if op != 'ConvTranspose' else {'w': rng.standard_normal((2, 3, 3, 2))}
    options = options if w else {'kernel_shape': [3, 2], **options}
    double = {'dtype': TensorProto.DOUBLE}
    nodes = [node(op, ' '.join(['x', *w]), 'y', **options)]
    model = tg.onnx.load(model_of(nodes, [info('x', **double)], [info('y', **double)], w, opset=19))
    x = tg.tensor(rng.standard_normal((2, 2, 6, 5)))
    x.requires_grad = True
    assert tg.gradcheck(model, [x]).checked == x.size


def test_if_takes_one_branch():
    branches = {
        name: helper.make_graph([node(op, 'x x', 'z')], name, [], [info('z')])
        for name, op in (('a', 'Add'), ('b', 'Mul'))
    }
    nodes = [node('If', 'c', 'y', then_branch=branches['a'], else_branch=branches['b'])]
    model = tg.onnx.load(model_of(nodes, [info('c', [], TensorProto.BOOL), info('x', [2])], [info('y', [2])]))
    x = np.array([3, 4], 'float32')
    assert model(True, x).tolist() == [6, 8] and model(False, x).tolist() == [9, 16]


def test_gradients_flow_through_a_loop():
    """y = x * w^3, with all powers as a scanned output."""
    body = helper.make_graph(
        [node('Mul', 'v w', 'out'), node('Identity', 'c', 'go'), node('Identity', 'out', 'row')],
        'body',
        [info('i', [], TensorProto.INT64), info('c', [], TensorProto.BOOL), info('v', [2])],
        [info('go', [], TensorProto.BOOL), info('out', [2]), info('row', [2])],
    )
    nodes = [node('Loop', 'n t x', 'y rows', body=body)]
    weights = {'w': np.array([2, 3], 'float32'), 'n': np.array(3, 'int64'), 't': np.array(True)}
    model = tg.onnx.load(
        model_of(nodes, [info('x', [2])], [info('y', [2]), info('rows', [3, 2])], weights), requires_grad=True
    )
    y, rows = model(np.array([1, 1], 'float32'))
    assert y.tolist() == [8, 27] and rows.tolist() == [[2, 3], [4, 9], [8, 27]]
    y.sum().backward()
    assert model.parameters['w'].grad.tolist() == [12, 27]


def test_functions_of_the_model_are_called_with_their_attributes():
    scaled = helper.make_function(
        'my',
        'Scaled',
        ['x'],
        ['y'],
        [helper.make_node('Constant', [], ['k']), helper.make_node('Mul', ['x', 'k'], ['y'])],
        [helper.make_opsetid('', 17)],
        ['by'],
    )
    scaled.node[0].attribute.add(name='value_float', ref_attr_name='by', type=onnx.AttributeProto.FLOAT)
    nodes = [node('Scaled', *ends, domain='my', by=by) for ends, by in ((('x', 'h'), 2.0), (('h', 'y'), 5.0))]
    model = tg.onnx.load(model_of(nodes, [info('x', [1])], [info('y', [1])], functions=[scaled], domains=['my']))
    assert model(np.array([3], 'float32')).tolist() == [30]


def test_shapes_are_computed():
    nodes = [
        node('Shape', 'x', 's'),
        node('Gather', 's zero', 'n'),
        node('Div', 'n two', 'half'),
        node('Concat', 'half rest', 'to', axis=0),
        node('Reshape', 'x to', 'y'),
    ]
    weights = {'zero': np.array([0]), 'two': np.array([2]), 'rest': np.array([-1])}
    model = tg.onnx.load(model_of(nodes, [info('x', ['n', 3])], [info('y')], weights))
    assert model(f32(4, 3)).shape == (2, 6) and model(f32(6, 3)).shape == (3, 6) and not model.parameters


def test_a_training_graph_has_its_gradient_and_step():
    training = 'ai.onnx.preview.training'
    nodes = [
        node('Mul', 'w w', 'p'),
        node('ReduceSum', 'p', 'loss', keepdims=0),
        helper.make_node('Gradient', ['w'], ['g'], domain=training, xs=['w'], y='loss'),
        helper.make_node(
            'Momentum',
            ['rate', 'count', 'w', 'g', 'v'],
            ['new', 'nv'],
            domain=training,
            alpha=0.9,
            beta=1.0,
            norm_coefficient=0.0,
            mode='standard',
        ),
    ]
    inputs = [info('w', [2]), info('v', [2]), info('rate', []), info('count', [], TensorProto.INT64)]
    model = tg.onnx.load(
        model_of(nodes, inputs, [info('loss', []), info('new', [2]), info('nv', [2])], domains=[training])
    )
    loss, new, v = model([1.0, 2.0], [0.0, 0.0], 0.25, 1)
    assert loss.item() == 5 and new.tolist() == [0.5, 1.0] and v.tolist() == [2, 4]

    def gradient_of_square(given):
        nodes = [node('Mul', 'a a', 'y'), helper.make_node('Gradient', [given], ['g'], domain=training, xs=['a'], y='y')]
        return tg.onnx.load(model_of(nodes, [info('a', [1]), info('b', [1])], [info('g', [1])], domains=[training]))

    assert gradient_of_square('a')([3.0], [5.0]).tolist() == [6.0]  # y is used by the gradient alone
    with pytest.raises(tg.onnx.MissingOp, match='Gradient with inputs that are not xs and zs'):
        gradient_of_square('b')


def test_messages_name_the_line_that_calls_a_model():
    model = tg.onnx.load(model_of([node('Add', 'x w', 'y')], [info('x', [2])], [info('y', [2])], {'w': f32(3)}))
    calls = eval(compile('[lambda: f32(2) @ f32(2),\nlambda: model(f32(2)),\nlambda: model.run({"x": f32(2)})]',
                         'program.py', 'eval'), {'f32': lambda n: tg.ones((n,)), 'model': model})  # fmt: skip
    for i in (1, 2):
        calls[0]()  # an op on another line
        with pytest.raises(tg.ShapeError, match=rf'program.py:{i + 1}\)'):
            calls[i]()


@pytest.mark.parametrize(
    'op, shapes, attributes',
    [
        ('GridSample', [(2, 3, 5, 6), (2, 4, 3, 2)], {'mode': 'linear', 'padding_mode': 'zeros'}),
        ('GridSample', [(2, 3, 5, 6), (2, 4, 3, 2)], {'mode': 'cubic', 'padding_mode': 'reflection'}),
        ('DeformConv', [(1, 2, 5, 6), (4, 2, 3, 3), (1, 18, 3, 4), (4,), (1, 9, 3, 4)], {}),
        ('ConvTranspose', [(1, 4, 3, 3), (4, 2, 3, 2)], {'strides': [2, 3], 'group': 2, 'pads': [1, 0, 0, 1]}),
        ('AveragePool', [(1, 2, 5, 6)], {'kernel_shape': [2, 3], 'strides': [2, 2], 'ceil_mode': 1}),
        ('Det', [(2, 4, 4)], {}),
        ('Einsum', [(3, 4), (4, 2), (2, 3)], {'equation': 'ij,jk,kl->il'}),
        ('Asinh', [(5,)], {}),
    ],
)
def test_gradients_of_ops_that_are_composed(op, shapes, attributes):
    arrays = [rng.standard_normal(shape) for shape in shapes]
    inputs = [info(f'x{i}', a.shape, TensorProto.DOUBLE) for i, a in enumerate(arrays)]
    names = ' '.join(i.name for i in inputs)
    model = tg.onnx.load(
        model_of([node(op, names, 'y', **attributes)], inputs, [info('y', None, TensorProto.DOUBLE)], opset=22)
    )
    leaves = [tg.tensor(a, 'f64', requires_grad=True) for a in arrays]
    y = model(*leaves)
    weight = rng.standard_normal(y.shape)
    y.backward(tg.tensor(weight, 'f64'))
    for i, array in enumerate(arrays):
        step = 1e-6 * rng.standard_normal(array.shape)
        ends = [(model(*arrays[:i], array + s * step, *arrays[i + 1 :]).numpy() * weight).sum() for s in (1, -1)]
        assert np.isclose((ends[0] - ends[1]) / 2, (leaves[i].grad.numpy() * step).sum(), rtol=1e-5, atol=1e-13)


def test_what_is_missing_is_named_before_anything_runs():
    nodes = [
        node('Relu', 'x', 'a'),
        helper.make_node('Special', ['a'], ['b'], domain='their'),
        node('Cast', 'b', 'c', to=TensorProto.INT4),
        node('ImageDecoder', 'c', 'y'),
    ]
    inputs = [info('x', [2]), info('o', [2], TensorProto.UINT4)]
    with pytest.raises(tg.onnx.MissingOp) as error:
        tg.onnx.load(model_of(nodes, inputs, [info('y')], {'w': f32(1)}, domains=['their']))
    assert {'ImageDecoder', 'their:Special', 'dtype uint4', 'dtype int4'} <= {*error.value.names}
    assert str(error.value) == 'the model needs what Tapegrad has no mapping for: ' + ', '.join(error.value.names)


def test_types_that_a_model_does_not_declare_are_none():
    y, o = onnx.ValueInfoProto(name='y'), info('o', [2], TensorProto.UNDEFINED)
    untyped = onnx.ValueInfoProto(name='u')
    model = tg.onnx.load(model_of([node('Relu', 'x', 'y')], [info('x', [2]), o, untyped], [y]))
    assert model.inputs == {'x': ('f32', (2,)), 'o': (None, (2,)), 'u': (None, None)}
    assert model.outputs['y'] in (('f32', (2,)), (None, None))  # shape inference may add it
    assert model(np.float32([-1, 2]), 0.0, 1).tolist() == [0, 2]
    with pytest.raises(TypeError, match='the model needs the inputs x, o, u; o, u is not given'):
        model(np.float32([-1, 2]))
    opsets = [helper.make_opsetid('', 17)]
    function = helper.make_function('own', 'Twice', ['a'], ['b'], [node('Add', 'a a', 'b')], opsets)
    call = helper.make_node('Twice', ['u'], ['y'], domain='own')
    model = tg.onnx.load(model_of([call], [untyped], [y], functions=[function], domains=['own']))
    assert model.outputs == {'y': (None, None)} and model(np.float32([2])).tolist() == [4]


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / 'text.onnx'
    path.write_text('no model')
    with pytest.raises(ValueError, match='text.onnx. is not a model in ONNX'):
        tg.onnx.load(path)


def test_inputs_must_be_those_of_the_model():
    model = tg.onnx.load(mlp())
    with pytest.raises(TypeError, match='the model needs the inputs x; x is not given'):
        model()
    with pytest.raises(TypeError, match='the model has the inputs x, but got z'):
        model(f32(1, 3), z=1)
    with pytest.raises(TypeError, match='the model has the inputs x, but got 2 values'):
        model(f32(1, 3), f32(1, 3))
    with pytest.raises(tg.ShapeError, match='matmul'):
        model(f32(1, 4))


def test_an_error_names_the_node():
    nodes = [helper.make_node('Add', ['x', 'x'], ['h']), helper.make_node('MatMul', ['h', 'w'], ['y'], name='head')]
    model = tg.onnx.load(model_of(nodes, [info('x', None)], [info('y')], {'w': f32(3, 3)}))
    with pytest.raises(tg.ShapeError) as error:
        model(f32(2, 4))
    assert str(error.value).endswith("(at node head, MatMul)") and error.value.node == 'node head, MatMul'


def test_integers_are_clipped_to_bounds_that_are_no_doubles():
    i64 = TensorProto.INT64
    nodes = [node('Clip', 'x low high', 'y')]
    bounds = {'low': np.int64(0), 'high': np.int64(2**63 - 1)}
    model = model_of(nodes, [info('x', [3], i64)], [info('y', [3], i64)], bounds)
    assert tg.onnx.load(model)(np.array([-5, 7, 2**62 + 1])).tolist() == [0, 7, 2**62 + 1]


@pytest.mark.parametrize(
    'op, expected',
    (
        ('ReduceSum', [7, 17]),
        ('ReduceProd', [12, 60]),
        ('ReduceMean', [3, 8]),
        ('ReduceL1', [7, 17]),
        ('ReduceL2', [5, 13]),
        ('ReduceSumSquare', [25, 169]),
        ('ReduceLogSum', [1, 2]),
        ('ReduceLogSumExp', [4, 12]),
    ),
)
def test_reductions_of_integers_have_their_dtype(op, expected):
    for dtype, code in (('int32', TensorProto.INT32), ('uint64', TensorProto.UINT64)):
        nodes = [node(op, 'x axes', 'y', keepdims=0)]
        model = model_of(nodes, [info('x', [2, 2], code)], [info('y', [2], code)], {'axes': np.array([1])}, opset=18)
        y = tg.onnx.load(model)(np.array([[3, 4], [5, 12]], dtype)).numpy()
        assert y.dtype == dtype and y.tolist() == expected


@pytest.mark.parametrize('value', (2**53 + 1, -(2**63) + 1, 2**63 - 1))
def test_integers_are_padded_with_numbers_that_are_no_doubles(value):
    i64 = TensorProto.INT64
    nodes = [node('Pad', 'x pads value', 'y')]
    weights = {'pads': np.array([0, 1, -1, 2]), 'value': np.int64(value)}
    model = model_of(nodes, [info('x', [2, 1], i64)], [info('y', [1, 4], i64)], weights)
    assert tg.onnx.load(model)(np.array([[5], [6]])).tolist() == [[value, 5, value, value]]


def test_attributes_without_a_mapping_are_missing():
    string = node('Constant', '', 'c', value_string='text')
    with pytest.raises(tg.onnx.MissingOp, match='Constant with value_string=text'):
        tg.onnx.load(model_of([string, node('Neg', 'x', 'y')], [info('x')], [info('y')]))
    norm = node('BatchNormalization', 'x w b m v', 'y', spatial=0)
    inputs = [info(name) for name in 'xwbmv']
    with pytest.raises(tg.onnx.MissingOp, match='BatchNormalization with spatial=0'):
        tg.onnx.load(model_of([norm], inputs, [info('y')], opset=8))


def test_float8_is_quantized_without_saturation():
    zero = helper.make_tensor('zero', TensorProto.FLOAT8E5M2, [], [0.0])
    for saturate, greatest in ((1, 57344.0), (0, np.inf)):
        model = model_of(
            [node('QuantizeLinear', 'x scale zero', 'y', saturate=saturate)],
            [info('x', [2])],
            [info('y', [2], TensorProto.FLOAT8E5M2)],
            {'scale': np.float32(1)},
            opset=21,
        )
        model.graph.initializer.append(zero)
        assert tg.onnx.load(model)(np.array([1e9, 1], 'float32')).tolist() == [greatest, 1]


def test_quantization_divides_in_the_precision_of_the_node():
    x = np.array([2049.0], 'float32')  # which float16 has not
    for precision, expected in ((0, 2049), (TensorProto.FLOAT16, 2048)):
        named = {'precision': precision} if precision else {}
        nodes = [node('QuantizeLinear', 'x scale zero', 'y', **named)]
        outputs, weights = [info('y', [1], TensorProto.UINT16)], {'scale': np.float32(1), 'zero': np.uint16(0)}
        assert tg.onnx.load(model_of(nodes, [info('x', [1])], outputs, weights, opset=23))(x).tolist() == [expected]


@pytest.mark.parametrize('is_test', [0, 1])
def test_the_mask_of_an_old_dropout_has_the_dtype_of_x(is_test):
    nodes = [node('Dropout', 'x', 'y mask', ratio=0.5, is_test=is_test)]
    model = tg.onnx.load(model_of(nodes, [info('x', [64])], [info('y'), info('mask')], opset=6))
    y, mask = model(np.ones(64, 'float32'))
    assert mask.dtype == 'f32' and np.allclose(y.numpy(), mask.numpy() * (1 if is_test else 2))
    assert mask.numpy().all() == bool(is_test)
