"""Random small models of each family, as transformers makes and computes them."""

import contextlib
import random

import torch
import transformers

LAYER_TYPES = ["sliding_attention", "full_attention"]
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 200.0, "factor": 3.0}


def sizes(draw, **more):
    """Draws the sizes that all families but GPT-2 have."""
    kv_heads = draw.choice([1, 2])
    heads = kv_heads * draw.choice([1, 2])
    head_dim = draw.choice([8, 12, 16])
    return {"vocab_size": draw.randint(40, 70), "hidden_size": heads * head_dim, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": draw.choice([24, 40]),
            "num_hidden_layers": draw.randint(2, 4), "max_position_embeddings": 64, "pad_token_id": None,
            "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": draw.random() < 0.5, **more}


def types(draw, config):
    return {"layer_types": [draw.choice(LAYER_TYPES) for _ in range(config["num_hidden_layers"])]}


def rope(draw, kinds):
    return {"rope_parameters": draw.choice(kinds)}


def plain(theta):
    return {"rope_type": "default", "rope_theta": theta}


def llama(draw):
    return sizes(draw, head_dim=draw.choice([8, 16, None]), attention_bias=draw.random() < 0.3,
                 mlp_bias=draw.random() < 0.3, rms_norm_eps=draw.choice([1e-6, 2e-4]),
                 **rope(draw, [plain(500.0), LLAMA3, YARN, LINEAR]))


def mistral(draw):
    return sizes(draw, head_dim=draw.choice([8, 16]), sliding_window=draw.choice([None, 5, 9]),
                 rms_norm_eps=1e-5, **rope(draw, [plain(1e6)]))


def qwen2(draw):
    c = sizes(draw, use_sliding_window=draw.random() < 0.6, sliding_window=7, max_window_layers=1,
              **rope(draw, [plain(1e6), YARN]))
    return c


def qwen3(draw):
    c = sizes(draw, head_dim=16, attention_bias=draw.random() < 0.3, **rope(draw, [plain(1e6), YARN]))
    if draw.random() < 0.6:
        c |= {"use_sliding_window": True, "sliding_window": 6, **types(draw, c)}
    return c


def smollm3(draw):
    c = sizes(draw, **rope(draw, [plain(2e6), LLAMA3]))
    if draw.random() < 0.5:
        c["no_rope_layers"] = [draw.choice([0, 1]) for _ in range(c["num_hidden_layers"])]
    if draw.random() < 0.5:
        c |= {"use_sliding_window": True, "sliding_window": 6}
    return c


def gemma(draw):
    return sizes(draw, head_dim=draw.choice([8, 16]), tie_word_embeddings=True, **rope(draw, [plain(1e4)]))


def gemma2(draw):
    c = sizes(draw, head_dim=16, query_pre_attn_scalar=draw.choice([16, 24]), sliding_window=6,
              attn_logit_softcapping=draw.choice([None, 5.0]), final_logit_softcapping=draw.choice([None, 3.0]),
              tie_word_embeddings=True, **rope(draw, [plain(1e4)]))
    return c | (types(draw, c) if draw.random() < 0.5 else {})


def gemma3_text(draw):
    c = sizes(draw, head_dim=16, query_pre_attn_scalar=draw.choice([16, 24]), sliding_window=6,
              tie_word_embeddings=True)
    c["rope_parameters"] = {"full_attention": draw.choice([plain(1e6), LINEAR]),
                            "sliding_attention": plain(draw.choice([1e4, 300.0]))}
    return c | types(draw, c)


def phi(draw):
    c = sizes(draw, tie_word_embeddings=False)
    c["hidden_size"] = c["num_attention_heads"] * 16
    c["rope_parameters"] = plain(1e4) | {"partial_rotary_factor": draw.choice([0.25, 0.5])}
    return c


def phi3(draw):
    return sizes(draw, sliding_window=draw.choice([None, 6]), tie_word_embeddings=False,
                 rope_parameters=plain(1e4) | {"partial_rotary_factor": 1.0})


def olmo(draw):
    return sizes(draw, clip_qkv=draw.choice([None, 0.4]), attention_bias=draw.random() < 0.3,
                 **rope(draw, [plain(1e4)]))


def olmo2(draw):
    return sizes(draw, rms_norm_eps=1e-5, **rope(draw, [plain(5e5)]))


def gpt2(draw):
    heads = draw.choice([2, 4])
    return {"vocab_size": draw.randint(40, 70), "n_layer": 2, "n_head": heads, "n_embd": 8 * heads, "n_positions": 64,
            "n_inner": draw.choice([None, 24]), "bos_token_id": 0, "eos_token_id": 1,
            "tie_word_embeddings": draw.random() < 0.5}


FAMILIES = {f.__name__: f for f in (gpt2, llama, mistral, qwen2, qwen3, smollm3, gemma, gemma2, gemma3_text, phi, phi3,
                                    olmo, olmo2)}


def config_of(family, seed):
    """Draws a config of the family."""
    draw = random.Random(f"{family} {seed}")
    kind = transformers.AutoConfig.for_model(family).__class__
    config = kind(**FAMILIES[family](draw), attn_implementation="eager")
    for name in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def model_of(config, seed):
    """Makes a model whose parameters all have an effect: norms and biases are drawn too."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=draw)
            if p.ndim > 1:
                p.copy_(noise * 0.25)
            elif name.endswith("weight") and not config.model_type.startswith("gemma"):
                p.copy_(1 + 0.2 * noise)
            else:
                p.copy_(0.2 * noise)
    return model.eval()


@contextlib.contextmanager
def all_double():
    """Lets transformers compute in float64 what it computes in float32 whatever the dtype of the model is: norms,
    softmax and rotary angles."""
    names = {"float32": torch.float64, "float": torch.float64}
    was = {name: getattr(torch, name) for name in names}
    to_float = torch.Tensor.float
    try:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        for name, dtype in was.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = to_float
        torch.set_default_dtype(was["float32"])
