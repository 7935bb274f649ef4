"""Tokenizers in the configuration of each family of models, trained by the library tokenizers on the documents of this
project and on words of many scripts."""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SOURCE = pathlib.Path(__file__).parents[2]
MARK = '▁'

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
LLAMA3, QWEN = CL100K % '{1,3}', CL100K % ''
PHI4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
          r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")

# Letters, digits, marks and signs, all of them in Unicode 9 or older: the libraries have tables of different versions.
RANGES = ((0x20, 0x7f), (0xa1, 0x250), (0x300, 0x36f), (0x391, 0x3a1), (0x410, 0x450), (0x5d0, 0x5ea), (0x621, 0x64a),
          (0x660, 0x669), (0x905, 0x939), (0x93e, 0x94d), (0xe01, 0xe3a), (0x1100, 0x1112), (0x1161, 0x1175),
          (0x1e00, 0x1eff), (0x2010, 0x2027), (0x2150, 0x2188), (0x2460, 0x24ff), (0x3041, 0x3096), (0x30a1, 0x30fa),
          (0x4e00, 0x4fff), (0xac00, 0xad00), (0xff01, 0xff5e), (0x1f300, 0x1f64f), (0x1d400, 0x1d454))


def corpus():
    draw = random.Random(1)
    texts = [path.read_text() for path in sorted((SOURCE / 'docs').glob('*.md'))]
    for _ in range(400):
        low, high = draw.choice(RANGES)
        words = [''.join(chr(draw.randint(low, min(high, low + 40))) for _ in range(draw.randint(1, 6)))
                 for _ in range(40)]
        texts.append(' '.join(words * 3))
    return [line for text in texts for line in text.splitlines(keepends=True)]


def train(pre_tokenizer, special, vocab=3000, normalizer=None, alphabet=None, model=None):
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def byte_level(split=None, special=('<|endoftext|>',), prefix=False, normalizer=None, before=()):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    steps = [*before, *([pre_tokenizers.Split(Regex(split), 'isolated')] if split else []), last]
    tokenizer = train(pre_tokenizers.Sequence(steps) if len(steps) > 1 else last, list(special), normalizer=normalizer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def edited(tokenizer, change):
    """The tokenizer after a change of its JSON."""
    data = json.loads(tokenizer.to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


# ---- Byte-level ----

def gpt2():
    return byte_level()


def roberta():
    return byte_level(prefix=True)


def llama3():
    tokenizer = byte_level(LLAMA3, ('<|begin_of_text|>', '<|end_of_text|>', '<|eot_id|>'))
    template = processors.TemplateProcessing(single='<|begin_of_text|> $A', pair='<|begin_of_text|> $A $B',
                                             special_tokens=[('<|begin_of_text|>', 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return edited(tokenizer, lambda data: data['model'].update(ignore_merges=True))


def qwen():
    tokenizer = byte_level(QWEN, ('<|endoftext|>', '<|im_start|>', '<|im_end|>'), normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken('<tool_call>', normalized=False), AddedToken('</tool_call>', normalized=False)])
    return tokenizer


def phi():
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(' ' * n, normalized=True) for n in range(31, 1, -1)])
    tokenizer.add_tokens([AddedToken('\t' * n, normalized=True) for n in range(9, 1, -1)])
    return tokenizer


def phi4():
    tokenizer = byte_level(PHI4, ('<|endoftext|>',))
    tokenizer.add_special_tokens([AddedToken('<|im_start|>', lstrip=True, rstrip=True, normalized=False),
                                  AddedToken('<|im_end|>', lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def olmo():
    tokenizer = byte_level(special=('<|endoftext|>', '<|padding|>'), normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(' ' * n, normalized=False) for n in range(24, 1, -1)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single='$A <|endoftext|>', pair='$A $B', special_tokens=[('<|endoftext|>', 0)])
    return tokenizer


def smollm():
    return byte_level(special=('<|endoftext|>', '<|im_start|>', '<|im_end|>'),
                      before=(pre_tokenizers.Digits(individual_digits=True),))


def tekken():
    return byte_level(TEKKEN, ('<unk>', '<s>', '</s>', '[INST]', '[/INST]'))


# ---- SentencePiece ----

def with_bytes(tokenizer):
    """Inserts the tokens of bytes after the special ones, as SentencePiece does."""
    def change(data):
        vocab = data['model']['vocab']
        order = sorted(vocab, key=vocab.get)
        tokens = [*order[:3], *(f'<0x{i:02X}>' for i in range(256)), *order[3:]]
        data['model']['vocab'] = {token: i for i, token in enumerate(tokens)}
        data['model'].update(byte_fallback=True, fuse_unk=True, unk_token='<unk>')
    return edited(tokenizer, change)


def sentence_piece(split=True, vocab=3000):
    meta = pre_tokenizers.Metaspace(MARK, prepend_scheme='always', split=split)
    tokenizer = with_bytes(train(meta, ['<unk>', '<s>', '</s>'], vocab, alphabet=[]))
    tokenizer.post_processor = processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s> $B',
                                                             special_tokens=[('<s>', 1)])
    return tokenizer


def llama2(split=True):
    tokenizer = sentence_piece(split)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(' ', MARK)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ' '), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(' ', 1, 0)])
    return edited(tokenizer, lambda data: data.update(pre_tokenizer=None))


def phi3():
    tokenizer = llama2()
    tokenizer.add_special_tokens([AddedToken('<|user|>', rstrip=True, normalized=False),
                                  AddedToken('<|end|>', rstrip=True, normalized=False),
                                  AddedToken('<|assistant|>', lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def mistral():
    tokenizer = llama2()
    data = json.loads(tokenizer.to_str())
    data['normalizer'] = None
    data['pre_tokenizer'] = {'type': 'Metaspace', 'replacement': MARK, 'prepend_scheme': 'first', 'split': False}
    return Tokenizer.from_str(json.dumps(data))


def gemma():
    tokenizer = sentence_piece()
    tokenizer.normalizer = normalizers.Replace(' ', MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ' '), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(['<start_of_turn>', '<end_of_turn>'])
    tokenizer.add_tokens([AddedToken('\n' * n, normalized=False) for n in range(2, 20)] +
                         [AddedToken(MARK * n, normalized=False) for n in range(2, 20)])
    return tokenizer


# ---- Configurations that no family has alone ----

def t5_like():
    """Metaspace that splits, and its decoder."""
    tokenizer = sentence_piece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme='always')
    tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme='always')
    return tokenizer


def joined_words():
    """Merges that join a mark to the word before it."""
    return llama2(split=False)


def no_bytes():
    """Unknown characters, each a token, and no decoder."""
    tokenizer = train(pre_tokenizers.Split(' ', 'contiguous'), ['<unk>'], 400, alphabet=[])
    tokenizer = edited(tokenizer, lambda data: data['model'].update(unk_token='<unk>'))
    return tokenizer


def fused_unknown():
    def change(data):
        data['model'].update(unk_token='<unk>', fuse_unk=True)
        for c in 'abcxyz':  # and merges with them
            data['model']['vocab'].pop(c, None)
        data['model']['merges'] = [m for m in data['model']['merges'] if not set('abcxyz') & set(''.join(m))]
    return edited(train(pre_tokenizers.Split(Regex(r'\d+'), 'removed', invert=True), ['<unk>'], 400, alphabet=[]), change)


def awkward():
    """Added tokens with every flag, normalized, after a compatibility form."""
    tokenizer = byte_level(normalizer=normalizers.Sequence([
        normalizers.NFKC(), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(r'\s+\p{P}'), ' ;')]))
    tokenizer.add_tokens([
        AddedToken('word', single_word=True), AddedToken('left', lstrip=True, normalized=False),
        AddedToken('both', lstrip=True, rstrip=True), AddedToken('ﬁn', normalized=True),
        AddedToken('alone', single_word=True, rstrip=True, normalized=False), AddedToken('the')])
    tokenizer.add_special_tokens([AddedToken('[norm]', normalized=True), AddedToken('[raw]', normalized=False)])
    return tokenizer


def beginning(*steps):
    """Metaspace for the first word alone, after a normalizer that may remove the beginning of the text."""
    tokenizer = sentence_piece()
    tokenizer.normalizer = normalizers.Sequence(list(steps))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme='first')
    tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme='first')
    tokenizer.add_tokens([AddedToken('word', normalized=True)])
    return tokenizer


def stripped():
    return beginning(normalizers.NFKD(), normalizers.Strip(left=True, right=False))


def collapsed():
    return beginning(normalizers.Replace(Regex(' {2,}'), ' '), normalizers.Replace('the', 'THE'), normalizers.NFC(),
                     normalizers.Replace(Regex(r'\p{L}\p{M}+'), ''), normalizers.Prepend('>'))


def divided():
    """The same after a step that divides what the normalizer puts before the text from the first word."""
    tokenizer = beginning(normalizers.Prepend(' '))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r'\p{L}+'), 'isolated'), pre_tokenizers.Metaspace(MARK, prepend_scheme='first')])
    return tokenizer


FAMILIES = {f.__name__: f for f in (gpt2, roberta, llama3, qwen, phi, phi4, olmo, smollm, tekken, llama2, phi3, mistral,
                                    gemma, t5_like, joined_words, no_bytes, fused_unknown, awkward, stripped,
                                    collapsed, divided)}

# ---- Strings ----

PARTS = ('the', ' the', '  ', '   ', ' ' * 17, '\n', '\n\n', '\r\n', '\t', '\t\t', '1', '23', '4567', '٣', '²', "'s", "'LL", "'ſ",
         "'K", 'don’t', '...', ' ...\n', '!?', '👩‍👩‍👧', '🇩🇪', '👍🏽', 'é', 'é', 'ǆ', 'ﬁ', 'ﬁn', 'Å', '가', '가', '漢字', 'かな', '▁', '▁▁',
         '▁the', '\x00', '\x01', '\x1b[0m', '\x7f', '\x85', '\xa0', '\u180e', '\u200b', '\u200d', '\u2028', '\u3000', '\ufeff',
         '\ufffd', '<s>', '</s>', '<unk>', '<0x0A>', '<|endoftext|>', '<|im_start|>', '<|user|>', ' <|end|>  ',
         '<|assistant|>', '[INST]', '<start_of_turn>', '<tool_call>', 'word', 'left', ' left', 'both', ' both ', 'alone',
         '[norm]', '[raw]', 'ẞß', 'İi', 'a' * 40, 'ا', 'ّ', 'हिन्दी', 'ไทย', '𝔘', '\U0010ffff', '\ue000')


def random_string(draw):
    made = []
    for _ in range(draw.choice((1, 2, 3, 5, 8, 13, 30))):
        kind = draw.random()
        if kind < 0.5:
            made.append(draw.choice(PARTS))
        elif kind < 0.8:
            low, high = draw.choice(RANGES)
            made.append(''.join(chr(draw.randint(low, high - 1)) for _ in range(draw.randint(1, 4))))
        else:
            made.append(draw.choice((' ', '')) + ''.join(draw.choice('etaoinshrdlu') for _ in range(draw.randint(1, 8))))
    return ''.join(made)
