"""The library's tokenizers against the library tokenizers: ids and text are equal for each family."""

import random
import sys

import families
import library
import pytest
from turns import in_turn

STRINGS = 10000


@pytest.fixture(scope='module', params=in_turn('tokenizers', families.FAMILIES))
def pair(request, tmp_path_factory):
    theirs = families.FAMILIES[request.param]()
    path = tmp_path_factory.mktemp(request.param) / 'tokenizer.json'
    theirs.save(str(path))
    return theirs, library.Tokenizer(path)


def strings(seed):
    draw = random.Random(seed)
    return ['', ' ', 'a', *(families.random_string(draw) for _ in range(STRINGS - 3))]


def test_ids_are_equal(pair):
    theirs, ours = pair
    for text in strings(2):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)


def test_what_frames_a_text_is_equal(pair):
    theirs, ours = pair
    for text in strings(3)[:1000]:
        assert ours.encode(text, special=True) == theirs.encode(text).ids, repr(text)


def test_special_tokens_can_be_plain_text(pair):
    theirs, ours = pair
    theirs.encode_special_tokens = True
    try:
        for text in strings(4)[:2000]:
            assert ours.encode(text, literal=True) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
    finally:
        theirs.encode_special_tokens = False


def test_texts_are_equal(pair):
    theirs, ours = pair
    for text in strings(5):
        ids = theirs.encode(text).ids
        for skip in (False, True):
            assert ''.join(ours.decode(ids, skip)) == theirs.decode(ids, skip_special_tokens=skip), repr(text)


def test_texts_of_random_ids_are_equal(pair):
    theirs, ours = pair
    draw = random.Random(6)
    size = theirs.get_vocab_size() + 3  # some ids have no token
    for _ in range(STRINGS):
        low = draw.choice((0, 0, 250))
        ids = [draw.randrange(low, min(size, draw.choice((300, size)) + low)) for _ in range(draw.randint(0, 12))]
        assert ''.join(ours.decode(ids)) == theirs.decode(ids), ids


def test_a_long_text_is_equal(pair):
    theirs, ours = pair
    text = ''.join(families.corpus()[:3000])
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


if __name__ == '__main__':
    sys.exit(pytest.main([__file__, '-q']))
