"""How fast one core encodes: the library next to the library tokenizers, for the tokenizers of tests/text/families.py.

    tokenizers.py [ROUNDS]

The text is that of this project's documents and sources, in pieces of 100 lines; both libraries encode the same pieces, one
after the other, and must find the same ids. Rounds alternate. Each row prints the median over the rounds of the rate by
CPU time, which other programs on the machine change less than the time. tokenizers runs without threads
(TOKENIZERS_PARALLELISM=false), by its fastest call, which computes no offsets. TG_BUILD_ROOT names the build directory.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ['TOKENIZERS_PARALLELISM'] = 'false'
ROOT = pathlib.Path(__file__).parents[1]
sys.path = [str(ROOT / 'tests/text')] + [p for p in sys.path if pathlib.Path(p or '.').resolve() != ROOT / 'bench']

import families  # noqa: E402 (the paths are set above)
import library  # noqa: E402

ROWS = ('gpt2', 'llama3', 'qwen', 'smollm', 'tekken', 'olmo', 'llama2', 'mistral', 'gemma', 't5_like')


def pieces():
    files = sorted(ROOT.glob('docs/*.md')) + sorted(ROOT.glob('src/**/*.c'))
    lines = ''.join(path.read_text() for path in files).splitlines(keepends=True)
    return [''.join(lines[i:i + 100]) for i in range(0, len(lines), 100)]


def rate(encode, texts, size):
    began = time.process_time()
    count = encode(texts)
    return size / 1e6 / (time.process_time() - began), count


def row(name, texts, rounds):
    theirs = families.FAMILIES[name]()
    with tempfile.TemporaryDirectory() as directory:
        theirs.save(f'{directory}/tokenizer.json')
        ours = library.Tokenizer(f'{directory}/tokenizer.json')
    data = [text.encode() for text in texts]
    size = sum(map(len, data))
    programs = (lambda texts: ours.count(data),
                lambda texts: sum(len(e.ids) for e in theirs.encode_batch_fast(texts, add_special_tokens=False)))
    found = [[rate(program, texts, size) for program in programs] for _ in range(rounds)]
    assert len({count for pair in found for _, count in pair}) == 1, 'the libraries differ'
    return [statistics.median(pair[i][0] for pair in found) for i in (0, 1)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    texts = pieces()
    print(f'MB a second, one core, of {sum(len(t.encode()) for t in texts) / 1e6:.1f} MB; median of {rounds} rounds')
    print(f'{"tokenizer":<12}{"ours":>8}{"tokenizers":>12}{"ratio":>8}')
    for name in ROWS:
        ours, theirs = row(name, texts, rounds)
        print(f'{name:<12}{ours:>8.1f}{theirs:>12.2f}{ours / theirs:>8.1f}', flush=True)


if __name__ == '__main__':
    main()
