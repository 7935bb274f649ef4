"""The library's tokenizers for Python: ctypes over tokenizer.h."""

import ctypes
import os
import pathlib

BUILD = pathlib.Path(os.environ.get('TG_BUILD_ROOT', pathlib.Path(__file__).parents[2] / 'build'))


class Ids(ctypes.Structure):
    _fields_ = [('ids', ctypes.POINTER(ctypes.c_int64)), ('count', ctypes.c_int64), ('capacity', ctypes.c_int64)]


class EncodeOptions(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('special', ctypes.c_bool), ('literal', ctypes.c_bool),
                ('errors', ctypes.c_void_p)]


class BpeOptions(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('vocab', ctypes.c_int64), ('min_frequency', ctypes.c_int64),
                ('max_length', ctypes.c_int64), ('pattern', ctypes.c_char_p), ('special', ctypes.c_char_p)]


def load_library():
    library = ctypes.CDLL(str(BUILD / 'src/libtapegrad.so'))
    pointers = 'tg_ctx_new tg_tokenizer_load tg_tokenizer_new_bytes tg_decoder_new tg_decoder_push tg_decoder_finish tg_bpe_new'
    for name in pointers.split():
        getattr(library, name).restype = ctypes.c_void_p
    for name in 'tg_tokenizer_size tg_tokenizer_id tg_tokenizer_bos'.split():
        getattr(library, name).restype = ctypes.c_int64
    library.tg_ctx_message.restype = ctypes.c_char_p
    return library


library = load_library()
context = ctypes.c_void_p(library.tg_ctx_new(None))


def message():
    """The error of the context, which is cleared."""
    text = library.tg_ctx_message(context).decode()
    library.tg_ctx_clear(context)
    return text


class Tokenizer:
    def __init__(self, path):
        self.handle = ctypes.c_void_p(library.tg_tokenizer_load(context, os.fsencode(path)))
        if not self.handle:
            raise ValueError(message())

    def encode(self, text, special=False, literal=False):
        data = text if isinstance(text, bytes) else text.encode()
        ids, options = Ids(), EncodeOptions(ctypes.sizeof(EncodeOptions), special, literal, None)
        status = library.tg_tokenizer_encode(self.handle, data, ctypes.c_size_t(len(data)), ctypes.byref(options),
                                             ctypes.byref(ids))
        if status:
            raise ValueError(message())
        found = ids.ids[:ids.count]
        library.tg_ids_free(ctypes.byref(ids))
        return found

    def count(self, texts):
        """The number of ids of all texts, which are bytes."""
        ids = Ids()
        for data in texts:
            library.tg_tokenizer_encode(self.handle, data, ctypes.c_size_t(len(data)), None, ctypes.byref(ids))
        found = ids.count
        library.tg_ids_free(ctypes.byref(ids))
        return found

    def decode(self, ids, skip_special=True):
        """The pieces of text, each of which is valid UTF-8."""
        decoder, n, pieces = ctypes.c_void_p(library.tg_decoder_new(self.handle, skip_special)), ctypes.c_size_t(), []
        for id in [*ids, None]:
            at = (library.tg_decoder_finish(decoder, ctypes.byref(n)) if id is None else
                  library.tg_decoder_push(decoder, ctypes.c_int64(id), ctypes.byref(n)))
            pieces.append(ctypes.string_at(at, n.value).decode())
        library.tg_decoder_free(decoder)
        return pieces


def train(texts, directory, pattern=None, **options):
    """Trains a byte-level BPE, and returns the path of its tokenizer.json."""
    pattern = pattern and pattern.encode()
    given = BpeOptions(ctypes.sizeof(BpeOptions), pattern=pattern, **options)
    training = ctypes.c_void_p(library.tg_bpe_new(context, ctypes.byref(given)))
    if not training:
        raise ValueError(message())
    for text in texts:
        data = text.encode()
        library.tg_bpe_add(training, data, ctypes.c_size_t(len(data)))
    library.tg_bpe_save(training, os.fsencode(directory), None, None)
    library.tg_bpe_free(training)
    if error := message():
        raise ValueError(error)
    return pathlib.Path(directory, 'tokenizer.json')
