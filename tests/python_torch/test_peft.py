"""Adapters that PEFT has saved load here, adapters that are saved here load in PEFT, and both give the same logits."""

import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
peft = pytest.importorskip('peft')
from tapegrad._capi import ffi, lib  # noqa: E402

VOCAB, BATCH, LENGTH = 64, 2, 12
CLOSE = {'llama': 1e-6, 'gpt2': 1e-10}  # transformers computes rotary positions in float32
ATTENTION = {'llama': ['q_proj', 'v_proj'], 'gpt2': ['c_attn']}
LAYER = {'llama': b'layers.0', 'gpt2': b'h.0'}
LINEAR = {'llama': ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
          'gpt2': ['c_attn', 'c_proj', 'c_fc']}


def base_model(arch):
    torch.manual_seed(1)
    if arch == 'gpt2':
        config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=32)
        return transformers.GPT2LMHeadModel(config).double().eval()
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
    return transformers.LlamaForCausalLM(config).double().eval()


def token_ids():
    return torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 % VOCAB


def randomize(model):
    """Gives the matrices B values, which are 0 at first."""
    torch.manual_seed(2)
    for name, x in model.named_parameters():
        if '.lora_' in name:
            torch.nn.init.normal_(x, std=0.3)


def logits_of(model):
    with torch.no_grad():
        return model(token_ids()).logits.numpy()


@pytest.fixture(params=['llama', 'gpt2'])
def arch(request):
    return request.param


@pytest.fixture
def model_dir(arch, tmp_path):
    base_model(arch).save_pretrained(tmp_path / 'model')
    return tmp_path / 'model'


class Ours:
    """The model of a directory in this library, in float64."""

    def __init__(self, directory):
        config = ffi.new('tg_config *')
        lib.tg_struct_fill(b'tg_config', config, ffi.sizeof('tg_config'))
        config.dtype, config.threads, config.seed = lib.TG_F64, 1, 3
        self.ctx = lib.tg_ctx_new(config)
        self.tape = lib.tg_tape_new(self.ctx)
        lib.tg_tape_set_training(self.tape, False)
        self.module = lib.tg_gpt_load(self.ctx, str(directory).encode())
        self.check()

    def check(self):
        message = ffi.string(lib.tg_ctx_message(self.ctx)).decode()
        assert lib.tg_ctx_status(self.ctx) == lib.TG_OK, message

    def options(self, **given):
        opts = ffi.new('tg_lora_opts *')
        lib.tg_struct_fill(b'tg_lora_opts', opts, ffi.sizeof('tg_lora_opts'))
        for name, value in given.items():
            setattr(opts, name, value)
        return opts

    def randomize(self):
        init = ffi.new('tg_init *')
        lib.tg_struct_fill(b'tg_init', init, ffi.sizeof('tg_init'))
        init.kind, init.b = lib.TG_INIT_NORMAL, 0.3
        for i in range(lib.tg_module_param_count(self.module)):
            path = ffi.new('char **')
            x = lib.tg_module_param(self.module, i, path)
            if b'.lora_' in ffi.string(path[0]):
                lib.tg_param_init(x, init)

    def logits(self):
        ids = token_ids().numpy().astype(np.int64)
        shape = ffi.new('tg_shape *')
        shape.ndim, shape.dim[0], shape.dim[1] = 2, BATCH, LENGTH
        x = lib.tg_from_host(self.ctx, lib.TG_I64, shape[0], ffi.from_buffer(ids))
        out = np.empty((BATCH, LENGTH, VOCAB))
        y = lib.tg_gpt_logits(self.module, self.tape, x)
        lib.tg_read_f64(y, ffi.from_buffer('double[]', out), out.size)
        lib.tg_tape_reset(self.tape)
        self.check()
        return out

    def close(self):
        lib.tg_tape_free(self.tape)
        lib.tg_module_free(self.module)
        lib.tg_ctx_free(self.ctx)


@pytest.mark.parametrize('options', [{}, {'use_rslora': True}, {'all': True}, {'alpha_pattern': True}])
def test_adapters_of_peft_load_here(arch, model_dir, tmp_path, options):
    extra = {'use_rslora': 'use_rslora' in options}
    if 'alpha_pattern' in options:
        name = ATTENTION[arch][0]
        extra |= {'alpha_pattern': {name: 20}, 'rank_pattern': {name: 2}}
    targets = LINEAR[arch] if 'all' in options else ATTENTION[arch]
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, task_type='CAUSAL_LM',
                             fan_in_fan_out=arch == 'gpt2', **extra)
    theirs = peft.get_peft_model(base_model(arch), config, autocast_adapter_dtype=False).double().eval()
    randomize(theirs)
    theirs.save_pretrained(tmp_path / 'adapter')
    ours = Ours(model_dir)
    before = ours.logits()
    lib.tg_lora_load(ours.module, str(tmp_path / 'adapter').encode())
    ours.check()
    expected = logits_of(theirs)
    assert np.abs(before - expected).max() > 1e-2
    np.testing.assert_allclose(ours.logits(), expected, atol=CLOSE[arch])
    lib.tg_lora_merge(ours.module)
    np.testing.assert_allclose(ours.logits(), expected, atol=CLOSE[arch])
    ours.close()


@pytest.mark.parametrize('which', ['all', 'by name', 'one layer'])
def test_adapters_load_in_peft(arch, model_dir, tmp_path, which):
    ours = Ours(model_dir)
    targets = {'by name': ','.join(ATTENTION[arch]).encode(), 'one layer': LAYER[arch]}.get(which)
    text = ffi.new('char[]', targets) if targets else ffi.NULL
    lib.tg_lora_apply(ours.module, ours.options(rank=5, alpha=7.5, targets=text))
    ours.randomize()
    (tmp_path / 'adapter').mkdir()
    lib.tg_lora_save(ours.module, str(tmp_path / 'adapter').encode(), str(model_dir).encode())
    expected = ours.logits()
    theirs = peft.PeftModel.from_pretrained(base_model(arch), tmp_path / 'adapter',
                                            autocast_adapter_dtype=False).double().eval()
    assert theirs.peft_config['default'].base_model_name_or_path == str(model_dir)
    np.testing.assert_allclose(logits_of(theirs), expected, atol=CLOSE[arch])
    np.testing.assert_allclose(logits_of(theirs.merge_and_unload()), expected, atol=CLOSE[arch])
    ours.close()


def test_variants_are_refused_by_name(model_dir, arch, tmp_path):
    config = peft.LoraConfig(r=4, target_modules=ATTENTION[arch], use_dora=True, fan_in_fan_out=arch == 'gpt2')
    peft.get_peft_model(base_model(arch), config).save_pretrained(tmp_path / 'adapter')
    ours = Ours(model_dir)
    assert lib.tg_lora_load(ours.module, str(tmp_path / 'adapter').encode()) == lib.TG_ERR_UNSUPPORTED
    assert b'"use_dora" is true' in ffi.string(lib.tg_ctx_message(ours.ctx))
    ours.close()
