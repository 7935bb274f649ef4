"""Architectures of zoo.py, one of each library: models.py measures all of them."""

import pytest

pytest.importorskip('transformers')
pytest.importorskip('torchvision')
pytest.importorskip('timm')
from measure import measured  # noqa: E402


@pytest.mark.parametrize('name', ['GPT2', 'torchvision resnet', 'timm vit_tiny_patch16_224'])
def test_agrees_with_eager_pytorch(name):
    row = measured(name, steps=3)
    assert row.error == '' and row.fallbacks == {}
    assert row.good, row
