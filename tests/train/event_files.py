"""TensorBoard reads the event files of `tapegrad train --tensorboard`, also those of a run that went back."""

import json
import os
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

program, text = map(os.path.abspath, sys.argv[1:])
folder = tempfile.TemporaryDirectory()  # it is removed at the end of the program
os.chdir(folder.name)
tiny = "--layers 1 --hidden 16 --heads 2 --seq-len 16 --batch 4 --threads 1".split()


def train(*arguments):
    subprocess.run([program, "train", *arguments, "--out", "run", "--tensorboard", "events"], check=True,
                   stdout=subprocess.DEVNULL)


def scalars(tag):
    events = EventAccumulator("events", size_guidance={"scalars": 0})
    events.Reload()
    return {e.step: e.value for e in events.Scalars(tag)}


train("--data", text, *tiny, "--steps", "30", "--val-every", "10", "--checkpoint-every", "10", "--keep", "9")
train("--resume", "--resume-step", "20", "--steps", "40")
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
for tag, key in {"loss/train": "loss", "loss/validation": "val_loss", "grad_norm": "grad_norm", "lr": "lr",
                 "tokens_per_s": "tokens_per_s", "peak_bytes": "peak_bytes"}.items():
    expected = {line["step"]: line[key] for line in lines if key in line}
    found = scalars(tag)
    assert sorted(found) == sorted(expected), (tag, sorted(found))
    for step, value in expected.items():
        assert abs(found[step] - value) <= 1e-6 * abs(value), (tag, step, found[step], value)
print(f"{len(lines)} steps are equal")
