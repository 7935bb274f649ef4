"""GPT-2 and Llama of transformers as references: makes models of a chosen size, and converts them to float64."""

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama


def gpt2_config(vocab, layers, heads, hidden, positions, **more):
    return GPT2Config(vocab_size=vocab, n_layer=layers, n_head=heads, n_embd=hidden, n_positions=positions,
                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                      **{"attn_implementation": "sdpa", **more})


def llama_config(vocab, layers, heads, kv_heads, hidden, ffn, positions, **more):
    return LlamaConfig(vocab_size=vocab, num_hidden_layers=layers, num_attention_heads=heads,
                       num_key_value_heads=kv_heads, hidden_size=hidden, intermediate_size=ffn,
                       max_position_embeddings=positions, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
                       **{"attn_implementation": "sdpa", **more})


def model_of(config):
    return (LlamaForCausalLM if config.model_type == "llama" else GPT2LMHeadModel)(config)


def load(path):
    """Loads a model directory in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")


def make(config, matrix_std, vector_std, seed):
    """Makes a model with random parameters: matrices with standard deviation matrix_std around 0, biases with
    vector_std around 0, norm weights with vector_std around 1. So each parameter has an effect on the results."""
    model = model_of(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm_weight = p.ndim == 1 and name.endswith("weight")
            noise = torch.randn(p.shape, generator=draw, dtype=torch.float64)
            p.copy_(noise * (vector_std if p.ndim == 1 else matrix_std) + (1.0 if norm_weight else 0.0))
    return model.eval()


def _rms_norm(self, x):
    """Replaces LlamaRMSNorm.forward, in the dtype of x."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def _rotary(self, x, position_ids):
    """Replaces LlamaRotaryEmbedding.forward, with angles in float64."""
    config = self.config
    dim = config.head_dim or config.hidden_size // config.num_attention_heads
    inverse = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = position_ids[..., None].double() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def double(model):
    """Converts a model to float64. transformers computes Llama's norm and rotary angles in float32 whatever the model's
    dtype is, so these are replaced."""
    for module in model.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = _rms_norm.__get__(module)
        if isinstance(module, modeling_llama.LlamaRotaryEmbedding):
            module.forward = _rotary.__get__(module)
    return model.double()


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits
