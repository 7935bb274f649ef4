"""The sessions of the documentation."""

import doctest
import pathlib

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'


@pytest.mark.parametrize('page', ['python.md', 'python-modules.md'])
def test_sessions(page):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 10 and not failed
