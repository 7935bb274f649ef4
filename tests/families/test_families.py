"""Models of published families: logits, losses, gradients, generated tokens and saved files agree with Hugging Face
transformers."""

import copy
import json
import os
import pathlib
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import families
from turns import in_turn

PROBE = os.environ["PROBE"]
SEEDS = range(4)
BATCH, LENGTH, TOKENS = 2, 22, 12
FAMILIES = in_turn("families", families.FAMILIES)
CASES = [(family, seed) for family in FAMILIES for seed in SEEDS]

transformers.logging.set_verbosity_error()


def ids_of(config, seed):
    draw = torch.Generator().manual_seed(seed + 1000)
    return torch.randint(config.vocab_size, (BATCH, LENGTH + 1), generator=draw)


def save(model, path, ids):
    """Saves a model in several files with an index, and the ids to compute with."""
    model.save_pretrained(path, max_shard_size="20KB")
    save_file({"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}, path / "probe.safetensors")


def probe(model, out, dtype):
    out.mkdir()
    done = subprocess.run([PROBE, model, out, dtype, str(TOKENS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(out / "results.safetensors")


def expected(model, ids):
    """Returns the logits, the loss and the gradients by name."""
    model.zero_grad()
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def error(got, want):
    """Returns the largest difference, relative to the largest element."""
    assert got.shape == want.shape
    return ((got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-30)).item()


def compare(results, want, transposed, bar):
    logits, loss, grads = want
    assert error(results["logits"], logits) <= bar
    assert error(results["loss"].reshape(()), loss) <= bar
    largest = max(g.abs().max() for g in grads.values())
    for name, g in grads.items():
        got = results["grad." + name]
        got = got.T if transposed and got.ndim == 2 and ".h." in name else got
        # A gradient that is 0 but for rounding, such as that of the bias of keys, has no digits of its own.
        difference = (got.double() - g.double()).abs().max()
        assert difference <= bar * max(g.abs().max(), 0.01 * largest), f"{name}: {difference}"


@pytest.mark.parametrize("family, seed", CASES)
def test_results_are_those_of_transformers(family, seed, tmp_path):
    config = families.config_of(family, seed)
    model, ids = families.model_of(config, seed), ids_of(config, seed)
    save(model, tmp_path / "model", ids)
    results = probe(tmp_path / "model", tmp_path / "f32", "f32")
    compare(results, expected(model, ids), family == "gpt2", 1e-5)
    half = ids[:, : LENGTH // 2]
    tokens = model.generate(half, attention_mask=torch.ones_like(half), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                            do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(results["tokens"], tokens[:, LENGTH // 2:])
    double = copy.deepcopy(config)
    with families.all_double():
        exact = transformers.AutoModelForCausalLM.from_config(double).double().eval()
        exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        compare(probe(tmp_path / "model", tmp_path / "f64", "f64"), expected(exact, ids), family == "gpt2", 1e-10)


@pytest.mark.parametrize("family, seed", CASES)
def test_saved_models_load_in_transformers(family, seed, tmp_path):
    config = families.config_of(family, seed)
    model, ids = families.model_of(config, seed), ids_of(config, seed)
    model = model.to(torch.bfloat16) if seed % 2 else model
    save(model, tmp_path / "model", ids)
    results = probe(tmp_path / "model", tmp_path / "out", "bf16" if seed % 2 else "f32")
    both = [transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto",
                                                              attn_implementation="eager").eval()
            for name in ("model", "out")]
    assert both[1].dtype == model.dtype and both[1].config.model_type == family
    with torch.no_grad():
        was, now = (m(ids[:, :-1]).logits for m in both)
    assert torch.equal(was, now)
    assert error(results["logits"], was) <= (0.1 if seed % 2 else 1e-5)
    was = json.loads((tmp_path / "model/config.json").read_text())
    now = json.loads((tmp_path / "out/config.json").read_text())
    for name in ("bos_token_id", "eos_token_id", "transformers_version"):
        assert now.get(name) == was.get(name)


# ---- The program ----

PROGRAM = os.environ["TAPEGRAD"]


def tapegrad(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_commands_take_the_family(family, tmp_path):
    config = families.config_of(family, 9)
    model, ids = families.model_of(config, 9), ids_of(config, 9)
    save(model, tmp_path / "model", ids)
    (tmp_path / "model/merges.txt").write_text("a b")
    data = tmp_path / "data.bin"
    data.write_bytes(ids.flatten().to(torch.int16).numpy().tobytes())
    given = ["--data", data, "--data-format", "u16", "--seq-len", LENGTH]

    result = json.loads(tapegrad("eval", "--model", tmp_path / "model", *given, "--json"))
    flat = ids.flatten()
    windows = [flat[i:i + LENGTH + 1] for i in range(0, len(flat) - 1, LENGTH)]
    with torch.no_grad():
        losses = torch.cat([torch.nn.functional.cross_entropy(model(w[None, :-1]).logits[0], w[1:], reduction="none")
                            for w in windows])
    assert result["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)

    shown = tapegrad("generate", "--model", tmp_path / "model", "--prompt-ids", "3,1,4", "--temperature", 0,
                     "--tokens", TOKENS)
    prompt = torch.tensor([[3, 1, 4]])
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS,
                            min_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert [int(t) for t in shown.strip().split(",")] == tokens[0].tolist()

    assert json.loads(tapegrad("inspect", "--model", tmp_path / "model", "--json"))["model"]["arch"] == family
    tapegrad("convert", "--from", tmp_path / "model", "--to", tmp_path / "state")
    tapegrad("convert", "--from", tmp_path / "state", "--to", tmp_path / "back")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "back")(ids).logits, model(ids).logits)

    tapegrad("train", "--init", tmp_path / "model", *given, "--steps", 2, "--batch", 1, "--val-fraction", 0, "--lr",
             1e-3, "--out", tmp_path / "run")
    refused = subprocess.run([PROGRAM, "train", "--init", tmp_path / "model", *map(str, given), "--steps", "1",
                              "--batch", "1", "--val-fraction", "0", "--dropout", "0.1", "--out", tmp_path / "no"], capture_output=True, text=True)
    assert (refused.returncode == 0) == (family in ("gpt2", "phi", "phi3")), refused.stderr
    assert refused.returncode == 0 or "leave --dropout out" in refused.stderr
    for name in ("state", "back", "run"):
        assert (tmp_path / name / "merges.txt").read_text() == "a b"
    with torch.no_grad():
        tuned, was = load(tmp_path / "run")(ids).logits, model(ids).logits
    assert tuned.shape == was.shape and not torch.equal(tuned, was)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_models_are_of_the_family(family, tmp_path):
    """`train --arch` begins a model of every family, whose loss transformers computes too."""
    ids = torch.randint(50, (500,), generator=torch.Generator().manual_seed(3))
    data = tmp_path / "data.bin"
    data.write_bytes(ids.to(torch.int16).numpy().tobytes())
    given = ["--data", data, "--data-format", "u16", "--seq-len", LENGTH]
    tapegrad("train", *given, "--arch", family, "--vocab", 50, "--layers", 6, "--heads", 2, "--hidden", 32, "--batch", 2,
             "--steps", 3, "--lr", 1e-2, "--val-fraction", 0, "--out", tmp_path / "run")
    result = json.loads(tapegrad("eval", "--model", tmp_path / "run", *given, "--json"))
    model = load(tmp_path / "run")
    assert model.config.model_type == family
    windows = [ids[i:i + LENGTH + 1] for i in range(0, len(ids) - 1, LENGTH)]
    with torch.no_grad():
        losses = torch.cat([torch.nn.functional.cross_entropy(model(w[None, :-1]).logits[0], w[1:], reduction="none")
                            for w in windows])
    assert result["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
