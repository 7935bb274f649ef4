"""The training of a byte-level BPE against BpeTrainer of the library tokenizers: the same ids and merges."""

import json
import random
import sys

import families
import library
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ['<|endoftext|>', '<|pad|>', 'th']


def theirs(texts, pattern, vocab, min_frequency, max_length):
    tokenizer = Tokenizer(models.BPE())
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = pattern and pre_tokenizers.Split(Regex(pattern), 'isolated')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone]) if split else bytes_alone
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=min_frequency, special_tokens=SPECIAL, show_progress=False,
        max_token_length=max_length, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def ties():
    """Words of few letters, so that many pairs are equally frequent and tokens come about in several ways."""
    draw = random.Random(5)
    words = [''.join(draw.choice('aabbc') for _ in range(draw.randint(1, 9))) for _ in range(600)]
    return [' '.join(draw.choice(words) for _ in range(200)) for _ in range(20)]


TEXTS = {'documents': families.corpus, 'ties': ties}


@pytest.mark.parametrize('texts', list(TEXTS))
@pytest.mark.parametrize('pattern, vocab, min_frequency, max_length', [
    (None, 3000, 2, None), (None, 1000, 0, None), (None, 5000, 30, None), (None, 2500, 2, 6), (None, 100, 2, None),
    (None, 20000, 3, None), (families.LLAMA3, 3000, 2, None), (families.TEKKEN, 2000, 2, 8)])
def test_vocabulary_and_merges_are_equal(tmp_path, texts, pattern, vocab, min_frequency, max_length):
    given = TEXTS[texts]()
    path = library.train(given, tmp_path, pattern, vocab=max(vocab, 257), min_frequency=min_frequency,
                         max_length=max_length or -1, special='\n'.join(SPECIAL).encode())
    made = json.loads(path.read_text())
    expected = theirs(given, pattern, max(vocab, 257), min_frequency, max_length)
    model = json.loads(expected.to_str())['model']
    assert made['model']['vocab'] == model['vocab']
    assert made['model']['merges'] == model['merges']
    loaded = Tokenizer.from_file(str(path))
    for text in given[::50]:
        assert loaded.encode(text).ids == expected.encode(text).ids == library.Tokenizer(path).encode(text)


if __name__ == '__main__':
    sys.exit(pytest.main([__file__, '-q']))
