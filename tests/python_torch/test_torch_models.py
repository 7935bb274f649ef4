"""Architectures of zoo.py, one of each library: models.py measures all of them. And the page that it writes."""

import pathlib

import pytest

pytest.importorskip('transformers')
pytest.importorskip('torchvision')
pytest.importorskip('timm')
from measure import Row, measured, time_all  # noqa: E402
from page import cells, rows_of  # noqa: E402
from zoo import ZOO  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'docs/pytorch-models.md'


@pytest.mark.parametrize('name', ['GPT2', 'torchvision resnet', 'timm vit_tiny_patch16_224'])
def test_agrees_with_eager_pytorch(name):
    row = measured(name, steps=3)
    assert row.error == '' and row.fallbacks == {} and row.timed
    assert row.good, row


def test_times_are_kept_if_the_default_backend_fails(monkeypatch):
    compile = measured.__globals__['torch'].compile

    def failing(model, **options):
        if not options:
            raise NotImplementedError('no compiler')
        return compile(model, **options)

    monkeypatch.setattr(measured.__globals__['torch'], 'compile', failing)
    row, stored = Row('timm resmlp_12_224'), []
    time_all(row, 3, lambda row: stored.append((row.timed, row.default_lack)))
    assert stored == [(True, ''), (True, 'NotImplementedError: no compiler')]


def test_the_page_is_read_as_it_was_written():
    text = PAGE.read_text()
    rows = rows_of(text)
    assert list(rows) == list(ZOO)
    assert '\n'.join(map(cells, rows.values())) in text
