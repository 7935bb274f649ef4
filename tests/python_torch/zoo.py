"""The architectures of docs/pytorch-models.md: of transformers, torchvision and timm, small, with random weights.

ZOO maps a name to a function that returns a Case. Sizes are the smallest that keep the structure: two layers, widths
of 32 to 64, images of 32 to 64 pixels, no dropout (PyTorch and Tapegrad draw different random numbers)."""

import dataclasses
import sys
import types

import torch
from torch._subclasses.functional_tensor import FunctionalTensor


@dataclasses.dataclass
class Case:
    model: torch.nn.Module
    inputs: dict  # by the name of the parameter; "" is the first positional one


ZOO = {}

_IDS = dict(shape=(2, 12), high=64)


def _ids(shape=(2, 12), high=64):
    return torch.randint(3, high, shape)


def _image(size=32, channels=3, batch=8):
    return torch.randn(batch, channels, size, size, dtype=torch.float64)


# ---- transformers ----


def _full(shape, value, **named):
    """torch.full, whose default dtype of a float is float64."""
    return torch.full(shape, value, **({"dtype": torch.float64} if isinstance(value, float) else {}) | named)


def _in_double():
    """Makes models of transformers compute in float64 all that they compute in float32 whatever their dtype is: norms,
    angles, softmax and losses. Their results could otherwise agree to seven digits only."""
    double = types.ModuleType('torch')
    double.__dict__.update(torch.__dict__)
    double.float32 = double.float = torch.float64
    double.full = _full
    torch.Tensor.float, FunctionalTensor.float = torch.Tensor.double, FunctionalTensor.double
    for name, module in list(sys.modules.items()):
        if name.startswith('transformers.') and getattr(module, 'torch', None) is torch:
            module.torch = double


_TEXT = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    use_cache=False,
)
_QUIET = dict(
    hidden_dropout_prob=0,
    attention_probs_dropout_prob=0,
    hidden_dropout=0,
    attention_dropout=0,
    dropout=0,
    activation_dropout=0,
    embd_pdrop=0,
    attn_pdrop=0,
    resid_pdrop=0,
    embed_dropout=0,
    classifier_dropout=0,
    resid_dropout=0,
    hidden_dropout_rate=0,
    residual_dropout=0,
)


def _hf(name, config, model, inputs, **options):
    """Adds a model of transformers: the class `model` with the configuration class `config`."""

    def make():
        import transformers

        known = getattr(transformers, config)
        cfg = known(**options)
        for key, value in _QUIET.items():
            if hasattr(cfg, key):
                setattr(cfg, key, value)
        built = getattr(transformers, model)(cfg).double()
        _in_double()
        return Case(built, inputs())

    ZOO[name] = make


def _causal():
    ids = _ids()
    return dict(input_ids=ids, labels=ids)


def _encoder():
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    return dict(input_ids=_ids(), attention_mask=mask)


def _seq2seq():
    return dict(input_ids=_ids(), labels=_ids((2, 8)))


def _pixels(size=32):
    return lambda: dict(pixel_values=_image(size))


_GQA = dict(_TEXT, num_key_value_heads=2)
for _name, _more in {
    "Llama": {},
    "Mistral": dict(sliding_window=4),
    "Qwen2": {},
    "Qwen3": dict(head_dim=8),
    "Gemma": dict(head_dim=8),
    "Gemma2": dict(head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    "Phi": {},
    "Phi3": {},
    "StableLm": {},
    "Starcoder2": {},
    "Olmo": {},
    "Olmo2": {},
    "Cohere": {},
    "Granite": {},
    "SmolLM3": {},
    "Glm": dict(head_dim=8),
    "Helium": dict(head_dim=8),
    "Nemotron": {},
    "Exaone4": dict(sliding_window=4),
    "Mixtral": dict(num_local_experts=4, experts_implementation="batched_mm"),
    "OlmoE": dict(num_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm"),
    "Qwen3Moe": dict(
        num_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm", moe_intermediate_size=32, head_dim=8
    ),
    "Persimmon": {},
    "GPTNeoX": {},
    "Ernie4_5": dict(head_dim=8),
    "Arcee": {},
    "Apertus": {},
    "Seed_Oss": dict(head_dim=8),
}.items():
    _class = {"Seed_Oss": "SeedOss", "OlmoE": "Olmoe"}.get(_name, _name)
    _hf(_class, _class + "Config", _class + "ForCausalLM", _causal, **{**_GQA, **_more})

_hf(
    "GPT2",
    "GPT2Config",
    "GPT2LMHeadModel",
    _causal,
    vocab_size=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=32,
    use_cache=False,
)
_hf(
    "GPTNeo",
    "GPTNeoConfig",
    "GPTNeoForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    window_size=4,
    max_position_embeddings=32,
    use_cache=False,
)
_hf(
    "GPTJ",
    "GPTJConfig",
    "GPTJForCausalLM",
    _causal,
    vocab_size=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=32,
    rotary_dim=4,
    use_cache=False,
)
_hf(
    "CodeGen",
    "CodeGenConfig",
    "CodeGenForCausalLM",
    _causal,
    vocab_size=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=32,
    n_ctx=32,
    rotary_dim=4,
    use_cache=False,
)
_hf(
    "GPTBigCode",
    "GPTBigCodeConfig",
    "GPTBigCodeForCausalLM",
    _causal,
    vocab_size=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=32,
    use_cache=False,
)
_hf(
    "OPT",
    "OPTConfig",
    "OPTForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=64,
    max_position_embeddings=32,
    word_embed_proj_dim=32,
    use_cache=False,
)
_hf(
    "Bloom",
    "BloomConfig",
    "BloomForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    n_layer=2,
    n_head=4,
    use_cache=False,
)
_hf(
    "Falcon",
    "FalconConfig",
    "FalconForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    use_cache=False,
)
_hf(
    "MPT",
    "MptConfig",
    "MptForCausalLM",
    _causal,
    vocab_size=64,
    d_model=32,
    n_layers=2,
    n_heads=4,
    max_seq_len=32,
    use_cache=False,
)
_hf(
    "XGLM",
    "XGLMConfig",
    "XGLMForCausalLM",
    _causal,
    vocab_size=64,
    d_model=32,
    num_layers=2,
    attention_heads=4,
    ffn_dim=64,
    max_position_embeddings=32,
    use_cache=False,
)
_hf("BioGpt", "BioGptConfig", "BioGptForCausalLM", _causal, **_TEXT)
_hf(
    "Mamba",
    "MambaConfig",
    "MambaForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    state_size=4,
    num_hidden_layers=2,
    use_cache=False,
)
_hf(
    "RecurrentGemma",
    "RecurrentGemmaConfig",
    "RecurrentGemmaForCausalLM",
    _causal,
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    lru_width=32,
    intermediate_size=64,
    attention_window_size=8,
    use_cache=False,
)

for _name in (
    "Bert",
    "Roberta",
    "Electra",
    "XLMRoberta",
    "Camembert",
    "Data2VecText",
    "ConvBert",
    "RoFormer",
    "Ernie",
    "MegatronBert",
    "Nystromformer",
    "XmodLess",
    "Mpnet",
    "LayoutLM",
    "RemBert",
    "Yoso",
):
    if _name in ("XmodLess", "Yoso"):
        continue
    _class = {"Mpnet": "MPNet"}.get(_name, _name)
    _hf(_class, _class + "Config", _class + "Model", _encoder, **{k: v for k, v in _TEXT.items() if k != "use_cache"})
_hf(
    "Albert",
    "AlbertConfig",
    "AlbertModel",
    _encoder,
    vocab_size=64,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)
_hf(
    "DistilBert",
    "DistilBertConfig",
    "DistilBertModel",
    _encoder,
    vocab_size=64,
    dim=32,
    hidden_dim=64,
    n_layers=2,
    n_heads=4,
    max_position_embeddings=32,
)
_hf(
    "ModernBert",
    "ModernBertConfig",
    "ModernBertModel",
    _encoder,
    **{**_TEXT, "global_attn_every_n_layers": 2, "local_attention": 4},
)
_hf(
    "MobileBert",
    "MobileBertConfig",
    "MobileBertModel",
    _encoder,
    vocab_size=64,
    hidden_size=32,
    embedding_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    intra_bottleneck_size=16,
    max_position_embeddings=32,
)
_hf("SqueezeBert", "SqueezeBertConfig", "SqueezeBertModel", _encoder, **{**_TEXT, "embedding_size": 32})
_hf("FNet", "FNetConfig", "FNetModel", lambda: dict(input_ids=_ids()), **_TEXT)
_hf("Deberta", "DebertaConfig", "DebertaModel", _encoder, **_TEXT)
_hf(
    "DebertaV2",
    "DebertaV2Config",
    "DebertaV2Model",
    _encoder,
    **{**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
)
_hf(
    "T5",
    "T5Config",
    "T5ForConditionalGeneration",
    _seq2seq,
    vocab_size=64,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    dropout_rate=0,
    decoder_start_token_id=0,
    use_cache=False,
)
_hf(
    "Bart",
    "BartConfig",
    "BartForConditionalGeneration",
    _seq2seq,
    vocab_size=64,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=32,
    use_cache=False,
)
for _name in ("MBart", "Pegasus", "Marian", "Blenderbot"):
    _model = {"Marian": "MarianMTModel"}.get(_name, _name + "ForConditionalGeneration")
    _hf(
        _name,
        _name + "Config",
        _model,
        _seq2seq,
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        use_cache=False,
    )

_VISION = dict(
    image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)
for _name in ("ViT", "DeiT", "Dinov2", "ViTMSN", "IJepa"):
    _hf(_name, _name + "Config", _name + "Model", _pixels(), **_VISION)
_hf("Beit", "BeitConfig", "BeitModel", _pixels(), **{**_VISION, "drop_path_rate": 0})
_hf("SiglipVision", "SiglipVisionConfig", "SiglipVisionModel", _pixels(), **_VISION)
_hf(
    "CLIP",
    "CLIPConfig",
    "CLIPModel",
    lambda: dict(input_ids=_ids(), pixel_values=_image(32)),
    text_config=dict(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        eos_token_id=2,
    ),
    vision_config=_VISION,
    projection_dim=16,
)
_hf(
    "Swinv2",
    "Swinv2Config",
    "Swinv2Model",
    _pixels(),
    image_size=32,
    patch_size=4,
    embed_dim=16,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=4,
    drop_path_rate=0,
)
_hf("ConvNextV2", "ConvNextV2Config", "ConvNextV2Model", _pixels(), hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
_hf(
    "Segformer",
    "SegformerConfig",
    "SegformerModel",
    _pixels(),
    hidden_sizes=[16, 32],
    depths=[1, 1],
    num_encoder_blocks=2,
    num_attention_heads=[1, 2],
    sr_ratios=[4, 2],
    patch_sizes=[7, 3],
    strides=[4, 2],
    mlp_ratios=[2, 2],
    drop_path_rate=0,
)
_hf(
    "PoolFormer",
    "PoolFormerConfig",
    "PoolFormerModel",
    _pixels(),
    hidden_sizes=[16, 32],
    depths=[1, 1],
    num_encoder_blocks=2,
    patch_sizes=[7, 3],
    strides=[4, 2],
    padding=[2, 1],
    drop_path_rate=0,
)
_hf(
    "ViTMAE",
    "ViTMAEConfig",
    "ViTMAEModel",
    lambda: dict(pixel_values=_image(32), noise=torch.rand(2, 16, dtype=torch.float64)),
    **_VISION,
)
_hf(
    "Whisper",
    "WhisperConfig",
    "WhisperForConditionalGeneration",
    lambda: dict(input_features=torch.randn(2, 8, 32, dtype=torch.float64), labels=_ids((2, 8))),
    vocab_size=64,
    num_mel_bins=8,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=16,
    max_target_positions=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
    use_cache=False,
)
_hf(
    "TimeSeriesPatchTST",
    "PatchTSTConfig",
    "PatchTSTModel",
    lambda: dict(past_values=torch.randn(2, 32, 3, dtype=torch.float64)),
    num_input_channels=3,
    context_length=32,
    patch_length=8,
    patch_stride=8,
    num_hidden_layers=2,
    d_model=32,
    num_attention_heads=4,
    ffn_dim=64,
)


# ---- torchvision ----


def _tv(name, size, make_model):
    def make():
        torch.manual_seed(0)
        return Case(_exact(make_model()).double(), {"": _image(size)})

    ZOO["torchvision " + name] = make


class _Hardsigmoid(torch.nn.Module):
    """torch.nn.Hardsigmoid, whose backward on CPUs multiplies by the float32 number nearest to 1/6, also in float64."""

    def forward(self, x):
        return torch.nn.functional.relu6(x + 3) / 6


def _exact(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Hardsigmoid):
                setattr(module, name, _Hardsigmoid())
    return model


def _torchvision():
    from torchvision import models as m
    from torchvision.models import (
        convnext,
        densenet,
        efficientnet,
        maxvit,
        mobilenetv2,
        regnet,
        resnet,
        shufflenetv2,
        swin_transformer,
        vgg,
        vision_transformer,
    )

    _tv("resnet", 32, lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=10))
    _tv(
        "resnext",
        32,
        lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=10, groups=4, width_per_group=8),
    )
    _tv("densenet", 32, lambda: densenet.DenseNet(8, (2, 2, 2), 16, num_classes=10))
    _tv("squeezenet1_1", 64, lambda: m.squeezenet1_1(num_classes=10, dropout=0))
    _tv("mobilenet_v2", 64, lambda: mobilenetv2.MobileNetV2(10, width_mult=0.25, dropout=0))
    _tv("mobilenet_v3_small", 32, lambda: m.mobilenet_v3_small(num_classes=10, width_mult=0.25, dropout=0))
    _tv("mnasnet", 64, lambda: m.MNASNet(0.35, num_classes=10, dropout=0))
    _tv("shufflenet_v2", 32, lambda: shufflenetv2.ShuffleNetV2([1, 2, 1], [8, 16, 32, 64, 64], num_classes=10))
    _tv(
        "efficientnet",
        32,
        lambda: efficientnet.EfficientNet(
            [efficientnet.MBConvConfig(1, 3, 1, 16, 16, 1), efficientnet.MBConvConfig(6, 5, 2, 16, 24, 2)],
            dropout=0,
            stochastic_depth_prob=0,
            num_classes=10,
        ),
    )
    _tv(
        "regnet",
        32,
        lambda: regnet.RegNet(
            regnet.BlockParams.from_init_params(depth=6, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25),
            num_classes=10,
        ),
    )
    _tv(
        "convnext",
        32,
        lambda: convnext.ConvNeXt(
            [convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, None, 1)], num_classes=10
        ),
    )
    _tv(
        "swin",
        32,
        lambda: swin_transformer.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0, num_classes=10
        ),
    )
    _tv(
        "swin_v2",
        32,
        lambda: swin_transformer.SwinTransformer(
            [4, 4],
            16,
            [2, 2],
            [2, 4],
            [4, 4],
            stochastic_depth_prob=0,
            num_classes=10,
            block=swin_transformer.SwinTransformerBlockV2,
            downsample_layer=swin_transformer.PatchMergingV2,
        ),
    )
    _tv("vit", 32, lambda: vision_transformer.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10))
    _tv(
        "maxvit",
        64,
        lambda: maxvit.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0, num_classes=10),
    )
    _tv("vgg", 32, lambda: vgg.make_layers([16, "M", 32, "M", 32, 32, "M"], batch_norm=True))
    _tv("googlenet", 64, lambda: m.GoogLeNet(num_classes=10, aux_logits=False, init_weights=False, dropout=0))


_torchvision()


# ---- timm ----


def _timm(name, size=32, **options):
    """Adds a model of timm that takes its sizes as options."""
    _timm_built(name, size, lambda timm: timm.create_model(name, pretrained=False, num_classes=10, **options))


def _timm_built(name, size, build):
    """Adds build(timm), for a model whose own function fixes its sizes."""

    def make():
        import timm

        return Case(build(timm).double(), {"": _image(size)})

    ZOO["timm " + name] = make


_VIT = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)
_timm("vit_tiny_patch16_224", **_VIT)
_timm("deit_tiny_distilled_patch16_224", **_VIT)
_timm("beit_base_patch16_224", **_VIT)
_timm("eva02_tiny_patch14_224", **_VIT)
_timm("cait_xxs24_224", **_VIT)
_timm("convit_tiny", **_VIT)
_timm("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=4)
_timm("pit_ti_224", size=32, img_size=32, patch_size=8, stride=4, base_dims=(8, 8), depth=(1, 1), heads=(2, 4))
_timm("edgenext_xx_small", depths=(1, 1, 1, 1), dims=(16, 16, 32, 32), heads=(4, 4, 4, 4))
_timm("mobilevit_xxs", size=64)
_timm("ghostnet_050", size=64, drop_rate=0)
_timm("rexnet_100", size=64, width_mult=0.25, drop_rate=0)
_timm("resnet10t")
_timm("seresnet18", layers=(1, 1, 1, 1))
_timm("res2net50_14w_8s", layers=(1, 1, 1, 1))
_timm("resnest14d", layers=(1, 1, 1, 1))
_timm("skresnet18", layers=(1, 1, 1, 1))
_timm("dla46_c", size=64)
_timm("ese_vovnet19b_slim_dw", size=64)
_timm("hardcorenas_a", size=64)
_timm("coat_tiny", img_size=32, embed_dims=(16, 16, 16, 16), serial_depths=(1, 1, 1, 1), parallel_depth=1, num_heads=8)
_timm("twins_svt_small", img_size=32, embed_dims=(16, 32, 32, 32), depths=(1, 1, 1, 1), num_heads=(2, 4, 4, 4))
_timm("visformer_tiny", size=32, img_size=32, embed_dim=32, depth=(1, 1, 1), num_heads=2)
_timm("fastvit_t8", size=64, layers=(1, 1, 1, 1), embed_dims=(8, 16, 32, 32))
_timm("efficientformerv2_s0", size=64, img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32))
_timm("mambaout_femto", depths=(1, 1, 1, 1), dims=(8, 16, 32, 32))
_timm("starnet_s1", base_dim=8, depths=(1, 1, 1, 1))


def _mixer(name, block, **options):
    def build(timm):
        m = timm.models.mlp_mixer
        classes = {key: getattr(m, value) for key, value in block.items()}
        return m.MlpMixer(10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32, **classes, **options)

    _timm_built(name, 32, build)


_mixer("mixer_s32_224", {})
_mixer("resmlp_12_224", dict(block_layer="ResBlock", norm_layer="Affine"), mlp_ratio=4)
_mixer("gmlp_ti16_224", dict(block_layer="SpatialGatingBlock", mlp_layer="GatedMlp"), mlp_ratio=6)


def _metaformer(name, options):
    def build(timm):
        m = timm.models.metaformer
        return m.MetaFormer(num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 32, 32), **options(m))

    _timm_built(name, 32, build)


_metaformer(
    "poolformer_s12",
    lambda m: dict(
        downsample_norm=None,
        mlp_act=torch.nn.GELU,
        mlp_bias=True,
        norm_layers=m.GroupNorm1,
        layer_scale_init_values=1e-5,
        res_scale_init_values=None,
        use_mlp_head=False,
    ),
)
_metaformer(
    "caformer_s18",
    lambda m: dict(
        token_mixers=[m.SepConv] * 2 + [m.Attention] * 2,
        norm_layers=[m.LayerNorm2dNoBias] * 2 + [m.LayerNormNoBias] * 2,
    ),
)


def _repvgg(timm):
    m = timm.models.byobnet
    blocks = tuple(m.ByoBlockCfg(type="rep", d=1, c=c, s=2, gs=0) for c in (16, 16, 32, 32))
    return m.ByobNet(m.ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16), num_classes=10)


def _nf_resnet(timm):
    m = timm.models.nfnet
    return m.NormFreeNet(m._nfres_cfg((1, 1, 1, 1), (16, 32, 64, 64)), num_classes=10)


def _gcvit(timm):
    return timm.models.gcvit.GlobalContextVit(
        num_classes=10,
        img_size=64,
        window_size=(4, 4, 2, 2),
        embed_dim=16,
        depths=(1, 1, 1, 1),
        num_heads=(2, 2, 4, 4),
    )


def _volo(timm):
    sizes = dict(embed_dims=(32, 32, 32, 32), num_heads=(4, 4, 4, 4), stem_hidden_dim=16)
    return timm.models.volo.VOLO((1, 1, 1, 1), img_size=32, num_classes=10, use_mix_token=False, **sizes)


for _name, _size, _build in (
    ("repvgg_a0", 64, _repvgg),
    ("nf_resnet26", 32, _nf_resnet),
    ("gcvit_xxtiny", 64, _gcvit),
    ("volo_d1_224", 32, _volo),
    ("convmixer_768_32", 32, lambda timm: timm.models.convmixer.ConvMixer(32, 2, 3, 4, num_classes=10)),
    (
        "focalnet_tiny_srf",
        32,
        lambda timm: timm.models.focalnet.FocalNet(
            num_classes=10, embed_dim=16, depths=(1, 1, 1, 1), drop_path_rate=0
        ),
    ),
    (
        "mobilenetv4_conv_small",
        64,
        lambda timm: timm.models.mobilenetv3._gen_mobilenet_v4("mobilenetv4_conv_small", 0.25, num_classes=10),
    ),
    (
        "tf_efficientnet_lite0",
        64,
        lambda timm: timm.models.efficientnet._gen_efficientnet_lite(
            "tf_efficientnet_lite0", 0.25, num_classes=10, bn_eps=1e-3, pad_type="same"
        ),
    ),
):
    _timm_built(_name, _size, _build)
