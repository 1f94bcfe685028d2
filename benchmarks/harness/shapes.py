"""Named sets of tensor shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, shape: tuple[int, int], bias: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": (bias,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def digits() -> Shapes:
    """Return a network of one hidden layer for 8 × 8 images of digits: 64 → 128 → 10."""
    return _linear("layer1", (64, 128), 128) | _linear("layer2", (128, 10), 10)


def bert_base() -> Shapes:
    """Return BERT-base, uncased, without the pooler and the heads, by its published configuration."""
    hidden, intermediate = 768, 3072
    rows = {"word": 30522, "position": 512, "type": 2}
    shapes: Shapes = {f"embeddings.{name}": (n, hidden) for name, n in rows.items()} | _norm("embeddings.norm", hidden)
    linear = dict.fromkeys(("query", "key", "value", "attention_output"), (hidden, hidden))
    linear |= {"intermediate": (intermediate, hidden), "output": (hidden, intermediate)}
    for layer in range(12):
        for name, shape in linear.items():
            shapes |= _linear(f"{layer}.{name}", shape, shape[0])
        for name in ("attention_norm", "output_norm"):
            shapes |= _norm(f"{layer}.{name}", hidden)
    return shapes


def gpt(vocabulary: int, positions: int, hidden: int, layers: int, head: bool = False) -> Shapes:
    """Return a network like GPT-2, whose head is its word embedding unless it has one of its own."""
    shapes: Shapes = {"wte": (vocabulary, hidden), "wpe": (positions, hidden)}
    linear = {"c_attn": 3 * hidden, "attn.c_proj": hidden, "c_fc": 4 * hidden}
    for layer in range(layers):
        for name, width in linear.items():
            shapes |= _linear(f"{layer}.{name}", (hidden, width), width)
        shapes |= _linear(f"{layer}.mlp.c_proj", (4 * hidden, hidden), hidden)
        shapes |= _norm(f"{layer}.ln_1", hidden) | _norm(f"{layer}.ln_2", hidden)
    return shapes | _norm("ln_f", hidden) | ({"head": (vocabulary, hidden)} if head else {})


def resnet50() -> Shapes:
    """Return ResNet-50 for ImageNet: 3, 4, 6 and 3 blocks of three convolutions, each followed by a batch norm."""
    shapes, before = _convolution("stem", 64, 3, 7), 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            name = f"{stage}.{block}"
            shapes |= _convolution(f"{name}.1", width, before, 1)
            shapes |= _convolution(f"{name}.2", width, width, 3)
            shapes |= _convolution(f"{name}.3", 4 * width, width, 1)
            if block == 0:
                shapes |= _convolution(f"{name}.shortcut", 4 * width, before, 1)
            before = 4 * width
    return shapes | _linear("head", (1000, before), 1000)


def _convolution(name: str, to: int, come: int, size: int) -> Shapes:
    return {f"{name}.weight": (to, come, size, size)} | _norm(f"{name}.norm", to)


def alike(count: int, *shape: int) -> Shapes:
    return {f"t{i}": shape for i in range(count)}


SETS: dict[str, Callable[[], Shapes]] = {
    "resnet50": resnet50,
    "bert-base": bert_base,
    "gpt2-medium": partial(gpt, vocabulary=50257, positions=1024, hidden=1024, layers=24),
    "gpt-1b": partial(gpt, vocabulary=32000, positions=2048, hidden=1792, layers=24, head=True),
    "tiny-1000": partial(alike, 1000, 256),  # small ones: what is left to measure is the overhead of each
    "square-197": partial(alike, 197, 64, 64),  # as many as BERT-base has, alike: how long they compile
    "digits": digits,
}


def parameters(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))
