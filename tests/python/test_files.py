"""Files of tensors."""

import json
import struct

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import nn, optim


def test_tensors_come_back_with_dtypes_and_shapes(tmp_path):
    path = tmp_path / 'a.safetensors'
    values = {
        'f32': tg.randn((2, 3)),
        'bf16': tg.randn((4,)).cast('bf16'),
        'i64': tg.tensor([[1, -2]]),
        'bool': tg.tensor([True, False]),
        'scalar': tg.tensor(2.5),
        'empty': tg.zeros((0, 3)),
        'transposed': tg.randn((2, 3)).transpose(0, 1),
        'array': np.arange(3),
    }
    tg.save(path, values, {'epoch': 3})
    loaded = tg.load(path)
    assert set(loaded) == set(values)
    for name, x in loaded.items():
        expected = values[name] if name != 'array' else tg.tensor(values[name])
        assert (x.dtype, x.shape, x.tolist()) == (expected.dtype, expected.shape, expected.tolist())


def test_the_format_is_safetensors(tmp_path):
    path = tmp_path / 'a.safetensors'
    tg.save(path, {'w': np.float32([1, 2])}, {'by': 'a test'})
    data = path.read_bytes()
    (n,) = struct.unpack('<Q', data[:8])
    header = json.loads(data[8 : 8 + n])
    assert header['w'] == {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8]}
    assert header['__metadata__']['by'] == 'a test'
    assert np.frombuffer(data[8 + n :], np.float32).tolist() == [1, 2]


def test_a_file_is_a_mapping_of_tensors(tmp_path):
    path = tmp_path / 'a.safetensors'
    tg.save(path, {'a': tg.ones((2,)), 'b': tg.zeros((3, 1))}, {'epoch': 3})
    with tg.files.File(path) as f:
        assert f.metadata == {'epoch': '3'} and f.shapes == {'a': (2,), 'b': (3, 1)}
        assert len(f) == 2 and list(f) == ['a', 'b'] and 'a' in f and 'c' not in f and f.get('c') is None
        assert f['a'].tolist() == [1, 1]
        into = tg.zeros((2,), dtype='f64')
        f.read('a', into)
        assert into.tolist() == [1, 1]
        with pytest.raises(tg.ShapeError):
            f.read('b', into)
        with pytest.raises(KeyError):
            f['c']
    with pytest.raises(ValueError, match='closed'):
        f['a']


def test_a_checkpoint_of_a_model_and_its_optimizer(tmp_path):
    path = tmp_path / 'run.safetensors'

    def made():
        model = nn.Sequential(nn.Linear(3, 4), tg.ops.tanh, nn.BatchNorm(4))
        return model, optim.Adam(model, lr=0.01)

    def step(model, opt):
        opt.zero_grad()
        model(tg.tensor(np.eye(3, dtype='f'))).sum().backward()
        opt.step()

    model, opt = made()
    step(model, opt)
    tg.save(path, {'model': model, 'optimizer': opt})
    other, again = made()
    other.load_state_dict(tg.load(path, 'model'))
    again.load_state_dict(tg.load(path, 'optimizer'))
    step(model, opt)
    step(other, again)
    assert again.steps == 2
    for name, x in model.state_dict().items():
        assert x.tolist() == other.state_dict()[name].tolist(), name


def test_errors_lose_nothing(tmp_path):
    path = tmp_path / 'a.safetensors'
    with pytest.raises(tg.IoError, match='No such file') as error:
        tg.load(path)
    assert isinstance(error.value, OSError)
    tg.save(path, {'w': tg.ones((4,))})
    whole = path.read_bytes()
    with pytest.raises(tg.IoError):
        tg.save(tmp_path / 'missing' / 'b', {'w': tg.ones((4,))})
    with pytest.raises(tg.ArgumentError):
        tg.save(path, {'w': tg.zeros((4,))}, {'tapegrad.xxh64': 'x'})
    assert path.read_bytes() == whole and [p.name for p in tmp_path.iterdir()] == [path.name]
    path.write_bytes(whole[:-1] + b'!')
    with pytest.raises(tg.DataError):
        tg.load(path)
    path.write_bytes(whole[:20])
    with pytest.raises(tg.FormatError):
        tg.load(path)


def test_names_are_not_given_twice(tmp_path):
    with pytest.raises(ValueError, match="two of the values have the name 'a.b'"):
        tg.save(tmp_path / 'a', {'a': {'b': [1.0]}, 'a.b': [2.0]})
    assert not list(tmp_path.iterdir())


def test_a_file_is_closed_after_its_context(tmp_path):
    tg.save(tmp_path / 'a', {'w': [1.0]})
    context = tg.Context()
    with tg.files.File(tmp_path / 'a', context):
        context.close()
