"""Dtypes that are shared with PyTorch, and casts to float8 beside PyTorch's."""

import numpy as np
import pytest

import tapegrad as tg

torch = pytest.importorskip('torch')

INTEGERS = {
    'i8': torch.int8,
    'i16': torch.int16,
    'u8': torch.uint8,
    'u16': torch.uint16,
    'u32': torch.uint32,
    'u64': torch.uint64,
}
FLOAT8 = {'f8e4m3': torch.float8_e4m3fn, 'f8e5m2': torch.float8_e5m2, 'f8e8m0': torch.float8_e8m0fnu}


def codes(x):
    """The bytes of a tensor of float8."""
    return torch.from_dlpack(x).view(torch.uint8)


@pytest.mark.parametrize('dtype', INTEGERS)
def test_integers_go_there_and_back(dtype):
    x = tg.tensor([0, 1, 127], dtype)
    a = torch.from_dlpack(x)
    assert a.dtype == INTEGERS[dtype] and a.tolist() == x.tolist()
    a[0] = 5
    y = tg.from_dlpack(a)
    assert y.dtype == dtype and x.tolist() == y.tolist() == [5, 1, 127]
    assert tg.zeros(2, dtype=INTEGERS[dtype]).dtype == dtype


def test_large_uint64_go_there_and_back():
    a = torch.tensor([2**64 - 1, 2**63], dtype=torch.uint64)
    assert tg.from_dlpack(a).tolist() == [2**64 - 1, 2**63]


@pytest.mark.parametrize('dtype', FLOAT8)
def test_all_float8_have_pytorchs_values(dtype):
    a = torch.arange(256, dtype=torch.uint8).view(FLOAT8[dtype])
    x = tg.from_dlpack(a)
    assert x.dtype == dtype and torch.from_dlpack(x).dtype == FLOAT8[dtype]
    assert np.array_equal(x.cast('f32').numpy(), a.float().numpy(), equal_nan=True)
    assert torch.equal(codes(x.cast('f32').cast(dtype)), a.float().to(FLOAT8[dtype]).view(torch.uint8))


@pytest.mark.parametrize('source', ['f32', 'bf16', 'f16'])
@pytest.mark.parametrize('dtype', FLOAT8)
def test_floats_are_rounded_as_by_pytorch(dtype, source):
    sizes = torch.logspace(-40, 38, 100_000, base=10, dtype=torch.float64)
    random = torch.randn(100_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = torch.arange(256, dtype=torch.uint8).view(FLOAT8[dtype]).double()
    middles = (values[1:] + values[:-1]) / 2
    a = torch.cat([sizes, random, middles, torch.tensor([0.0, torch.inf, torch.nan])])
    a = a.abs() if dtype == 'f8e8m0' else torch.cat([a, -a])  # PyTorch drops the sign, and Tapegrad gives NaN
    a = a.to({'f32': torch.float32, 'bf16': torch.bfloat16, 'f16': torch.float16}[source])
    x = tg.from_dlpack(a).cast(dtype)
    ours, theirs = codes(x), a.to(FLOAT8[dtype]).view(torch.uint8)
    numbers = ~a.isnan()
    assert torch.equal(ours[numbers], theirs[numbers])
    assert torch.from_dlpack(x)[~numbers].float().isnan().all()


def test_negative_numbers_are_no_powers_of_two():
    assert np.isnan(tg.tensor([-2.0], 'f8e8m0').numpy()).all()
