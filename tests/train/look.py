"""Reads what `tapegrad train` and `tapegrad tape` have written, by readers of its own: pages, traces, event files, and
the live view on a terminal. look.sh calls it; it needs no packages."""

import fcntl
import glob
import html.parser
import json
import os
import pty
import re
import struct
import sys
import termios


def check(condition, what):
    if not condition:
        sys.exit(f"wrong: {what}")


class Scripts(html.parser.HTMLParser):
    """Collects the scripts of a page, and the addresses that it names."""

    def __init__(self):
        super().__init__()
        self.scripts, self.addresses, self.inside = [], [], False

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")
        self.addresses += [v for k, v in attributes if k in ("src", "href")]

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def page(path, kind, steps, ranks):
    """The page needs no network, and its data are whole."""
    parser = Scripts()
    parser.feed(open(path, encoding="utf-8").read())
    check(parser.addresses == ["data:,"], f"addresses: {parser.addresses}")
    check(len(parser.scripts) == 2, f"{len(parser.scripts)} scripts")
    data = json.loads(parser.scripts[0])
    check(data["kind"] == kind, data["kind"])
    if int(steps):
        curves = data["runs"][0]["curves"]
        check(curves["step"] == list(range(1, int(steps) + 1)), curves["step"])
        for key in ("loss", "grad_norm", "lr", "tokens_per_s", "peak_bytes"):
            check(len(curves[key]["mean"]) == int(steps), key)
        check(curves["tokens"] == sorted(curves["tokens"]) and curves["seconds"] == sorted(curves["seconds"]),
              "tokens or seconds decrease")
        check(len(curves["val"]) == int(steps) // 10, curves["val"])
    step = data.get("step", {"ranks": []})
    check(len(step["ranks"]) == int(ranks), f"{len(step['ranks'])} ranks")
    for rank in step["ranks"]:
        ops(rank, len(step["ranks"]))


def nested(spans):
    """Spans are one after the other, or one in the other, as recomputed ops are in the backward that recomputes them."""
    open_until = []
    for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_until and open_until[-1] <= begin + 1e-3:
            open_until.pop()
        check(not open_until or end <= open_until[-1] + 1e-3, f"{begin}..{end} is partly in {open_until}")
        open_until.append(end)


def ops(rank, ranks):
    """The ops of a rank: each backward has a forward, each input an earlier op, and times do not overlap."""
    nested([(op["t"], op["t"] + op["d"]) for op in rank["ops"]])
    numbers, done = set(), set()
    for op in rank["ops"]:
        check(0 <= op["t"] <= rank["seconds"] * 1e6 and op["d"] >= 0, op)
        check(0 <= op.get("e", 0) <= op["d"], op)
        check(op["m"] > 0 and 0 <= op["s"] < len(rank["sites"]), op)
        if op["b"]:
            check(op["i"] in numbers and op["i"] not in done, op)
            done.add(op["i"])
        else:
            check(all(i in numbers for i in op["in"] if isinstance(i, int)), op)
            check(op["i"] == len(numbers), op)
            numbers.add(op["i"])
    check(len(done) > len(numbers) / 3, f"{len(done)} backwards of {len(numbers)} forwards")
    names = {op["n"] for op in rank["ops"]}
    check(any("attention" in n for n in names) and any("linear" in n.lower() for n in names), names)
    memory = rank["memory"]
    sizes = [b["bytes"] for b in memory["blocks"]]
    check(sizes == sorted(sizes, reverse=True) and 0.5 * memory["peak"] < sum(sizes) <= 1.01 * memory["peak"], "blocks")
    check(sum(memory["peak_by"].values()) == memory["peak"], memory["peak_by"])
    check(bool(rank["collectives"]) == (ranks > 1), rank["collectives"])


def trace(path, ranks):
    """The spans of each thread of a trace do not overlap, and have their lines of the source."""
    events = json.load(open(path, encoding="utf-8"))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    check({e["pid"] for e in spans} == set(range(int(ranks))), "ranks")
    for rank in range(int(ranks)):
        of = [e for e in spans if e["pid"] == rank]
        kinds = {e["cat"] for e in of}
        check(kinds == {"forward", "backward"} | ({"collective"} if int(ranks) > 1 else set()), kinds)
        check(any("called from" in e["args"]["site"] for e in of), "sites")
        check(any(e["args"].get("flops", 0) > 0 for e in of if e["cat"] == "backward"), "flops")
        for thread in {e["tid"] for e in of}:
            nested([(e["ts"], e["ts"] + e["dur"]) for e in of if e["tid"] == thread])
        check(any(e["ph"] == "C" and e["pid"] == rank and e["args"]["bytes"] > 0 for e in events), "memory")


def crc32c(data):
    """CRC-32C by polynomial division, bit by bit, and its mask in TFRecord files."""
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """The fields of a message of Protocol Buffers, as number and value."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        if size is None:
            size = varint()
        yield key >> 3, data[at:at + size]
        at += size


def events(folder, first, last):
    """The newest event file has a record for each step from first to last."""
    check(crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF, "CRC")
    path = max(glob.glob(f"{folder}/events.out.tfevents.*"), key=os.path.getmtime)
    data, steps, tags, started = open(path, "rb").read(), [], set(), None
    while data:
        size, = struct.unpack("<Q", data[:8])
        body = data[12:12 + size]
        check(struct.unpack("<I", data[8:12])[0] == crc32c(data[:8]), "checksum of a length")
        check(struct.unpack("<I", data[12 + size:16 + size])[0] == crc32c(body), "checksum of an event")
        event = dict(fields(body))
        if 7 in event:
            started = event[2]
        if 5 in event:
            steps.append(event[2])
            for number, value in fields(event[5]):
                pair = dict(fields(value))
                tags.add(pair[1].decode())
                check(number == 1 and abs(struct.unpack("<f", pair[2])[0]) < 1e9, pair)
        data = data[16 + size:]
    check(steps == list(range(int(first), int(last) + 1)), steps)
    check({"loss/train", "loss/validation", "grad_norm", "lr", "tokens_per_s", "peak_bytes"} == tags, tags)
    check(started == (int(first) if int(first) > 1 else None), f"started at {started}")


def set_size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def live(*command):
    """The live view keeps within the terminal, and clears it when its size has changed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
        os.environ.pop("NO_COLOR", None)
        os.execv(command[0], command)
    set_size(fd, 24, 70)
    text, narrow = b"", None
    while True:
        try:
            some = os.read(fd, 65536)
        except OSError:
            break
        if not some:
            break
        text += some
        if narrow is None and text.count(b"\x1b[") > 40 and b"step " in text:
            set_size(fd, 12, 30)
            narrow = len(text)
    check(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text[-2000:])
    check(narrow is not None, "the view was not drawn")
    clear = text.rfind(b"\x1b[2J\x1b[H")
    check(clear >= 0, "the terminal was not cleared")
    drawn = text[clear:].split(b"the model is in")[0].decode()
    lines = [re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", line) for line in drawn.replace("\r", "").split("\n")]
    check(max(len(line) for line in lines) < 30, max(lines, key=len))
    check(any("step 6000/6000" in line for line in lines), lines[-8:])
    check(any("\u2588" in line for line in lines), "the curve")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
