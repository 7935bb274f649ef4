"""Makes the model directories next to this file, which tests/train/test_reference.c reads. They are as transformers
saves them, with random weights. Each also has the logits that PyTorch computes for some ids in float64.

    python3 tests/reference/make_models.py

Needs torch and transformers (scripts/parity makes an environment that has them). The same versions of them write the
same bytes.
"""

import copy
import pathlib

import torch
from safetensors.torch import save_file

import hf

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, POSITIONS, BATCH, LENGTH = 61, 24, 2, 19

# The values differ from all defaults, so that a test fails if the library does not read a key.
MODELS = {
    "gpt2": (hf.gpt2_config(VOCAB, 2, 4, 32, POSITIONS, n_inner=72, layer_norm_epsilon=3e-4), torch.float32),
    "llama": (hf.llama_config(VOCAB, 2, 4, 2, 32, 40, POSITIONS, rms_norm_eps=2e-4,
                              rope_parameters={"rope_type": "default", "rope_theta": 500.0}), torch.float32),
    "llama-bf16": (hf.llama_config(VOCAB, 2, 4, 1, 32, 40, POSITIONS, head_dim=12), torch.bfloat16),
}


def write(name, config, dtype, seed):
    """Writes one model directory with its expected logits, and prints the error of PyTorch's logits in dtype."""
    model = hf.make(config, matrix_std=0.25, vector_std=0.2, seed=seed).to(dtype)
    model.save_pretrained(HERE / name)
    (HERE / name / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))
    exact = hf.logits(hf.double(copy.deepcopy(model)), ids)
    save_file({"ids": ids, "logits": exact}, HERE / name / "expected.safetensors")
    plain = hf.logits(model, ids).double()
    print(f"{name}: logits up to {exact.abs().max():.3f}; in {str(dtype)[6:]} torch is off by "
          f"{(plain - exact).abs().max() / exact.abs().max():.2e} of that")


if __name__ == "__main__":
    for i, (name, (config, dtype)) in enumerate(MODELS.items()):
        write(name, config, dtype, seed=i + 1)
