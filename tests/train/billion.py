"""billion.py PROGRAM: fine-tunes a model of 1.2 billion parameters (the shape of Llama-3.2-1B, random weights, bfloat16)
with low-rank adapters, and measures memory and time. The peak of resident memory must stay below 8 GiB, and an
evaluation must need little more than the size of the model.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

GIB = 1 << 30
VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS = 128256, 2048, 8192, 16, 32, 8
CONFIG = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'vocab_size': VOCAB, 'hidden_size': HIDDEN,
          'intermediate_size': FFN, 'num_hidden_layers': LAYERS, 'num_attention_heads': HEADS,
          'num_key_value_heads': KV_HEADS, 'head_dim': HIDDEN // HEADS, 'max_position_embeddings': 131072,
          'rms_norm_eps': 1e-5, 'rope_theta': 500000.0, 'hidden_act': 'silu', 'tie_word_embeddings': True,
          'torch_dtype': 'bfloat16'}


def shapes():
    yield 'model.embed_tokens.weight', (VOCAB, HIDDEN)
    kv = KV_HEADS * HIDDEN // HEADS
    for i in range(LAYERS):
        at = f'model.layers.{i}.'
        yield at + 'input_layernorm.weight', (HIDDEN,)
        yield at + 'post_attention_layernorm.weight', (HIDDEN,)
        for name, rows in {'q': HIDDEN, 'k': kv, 'v': kv, 'o': HIDDEN}.items():
            yield f'{at}self_attn.{name}_proj.weight', (rows, HIDDEN)
        yield at + 'mlp.gate_proj.weight', (FFN, HIDDEN)
        yield at + 'mlp.up_proj.weight', (FFN, HIDDEN)
        yield at + 'mlp.down_proj.weight', (HIDDEN, FFN)
    yield 'model.norm.weight', (HIDDEN,)


def write_model(directory):
    """Writes the model; returns the bytes of its weights."""
    header, at = {'__metadata__': {'format': 'pt'}}, 0
    for name, shape in shapes():
        size = 2 * int(np.prod(shape))
        header[name] = {'dtype': 'BF16', 'shape': list(shape), 'data_offsets': [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    random = np.random.default_rng(1)
    with open(directory / 'model.safetensors', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for name, shape in shapes():
            if len(shape) == 1:
                f.write(np.full(shape, 0x3F80, np.uint16).tobytes())  # 1
                continue
            for row in range(0, shape[0], 4096):
                n = min(4096, shape[0] - row) * shape[1]
                values = random.standard_normal(n, np.float32) * np.float32(0.02)
                f.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    (directory / 'config.json').write_text(json.dumps(CONFIG))
    return at


def run(*command):
    """Runs the program. Returns the peak of its resident memory in bytes, and the seconds of its threads together."""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, output
    return 1024 * usage.ru_maxrss, usage.ru_utime + usage.ru_stime


def main():
    program, checks = sys.argv[1], []
    with tempfile.TemporaryDirectory() as folder:
        model, ids, out = (pathlib.Path(folder) / name for name in ('model', 'ids', 'out'))
        model.mkdir()
        size = write_model(model)
        np.random.default_rng(2).integers(0, VOCAB, 1025, np.uint32).tofile(ids)
        data = ['--data', ids, '--data-format', 'u32', '--precision', 'bf16', '--seq-len', '128']
        tuned, seconds = run(program, 'train', '--init', model, '--out', out, *data, '--batch', '2', '--steps', '3',
                             '--val-fraction', '0', '--checkpoint-every', '0', '--lora', 'r=16,alpha=32')
        rates = [json.loads(line)['tokens_per_s'] for line in open(out / 'metrics.jsonl')]
        evaluated, _ = run(program, 'eval', '--model', out, *data, '--batch', '2')
    print(f'weights {size / GIB:.2f} GiB; fine-tuning peaks at {tuned / GIB:.2f} GiB, evaluation at '
          f'{evaluated / GIB:.2f} GiB; a step of 256 tokens takes {256 / max(rates):.1f} s, and {seconds / 3:.1f} s of '
          'one thread with the start')
    checks = [tuned < 8 * GIB, evaluated < 1.5 * size]
    print(f'{sum(checks)} passed, {len(checks) - sum(checks)} failed')
    return not all(checks)


sys.exit(main())
