"""Named sets of tensor shapes."""

from __future__ import annotations

from math import prod

Shapes = dict[str, tuple[int, ...]]


def digits() -> Shapes:
    """Return a network of one hidden layer for 8 × 8 images of digits: 64 → 128 → 10."""
    return {
        "layer1.weight": (64, 128),
        "layer1.bias": (128,),
        "layer2.weight": (128, 10),
        "layer2.bias": (10,),
    }


def bert_base() -> Shapes:
    """Return BERT-base, uncased, without the pooler and the heads.

    From its published configuration: vocab_size 30522, hidden_size 768, num_hidden_layers 12, intermediate_size 3072,
    max_position_embeddings 512, type_vocab_size 2.
    """
    vocabulary, hidden, layers, intermediate, positions, types = 30522, 768, 12, 3072, 512, 2
    shapes: Shapes = {
        "embeddings.word": (vocabulary, hidden),
        "embeddings.position": (positions, hidden),
        "embeddings.type": (types, hidden),
        "embeddings.norm.weight": (hidden,),
        "embeddings.norm.bias": (hidden,),
    }
    linear = dict.fromkeys(("query", "key", "value", "attention_output"), (hidden, hidden))
    linear |= {"intermediate": (intermediate, hidden), "output": (hidden, intermediate)}
    for layer in range(layers):
        for name, shape in linear.items():
            shapes[f"{layer}.{name}.weight"], shapes[f"{layer}.{name}.bias"] = shape, shape[:1]
        for name in ("attention_norm", "output_norm"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (hidden,)
    return shapes


def gpt2_medium() -> Shapes:
    """Return GPT-2 medium, whose head is its word embedding.

    From its published configuration: vocab_size 50257, n_positions 1024, n_embd 1024, n_layer 24.
    """
    return _gpt(vocabulary=50257, positions=1024, hidden=1024, layers=24)


def gpt_1b() -> Shapes:
    """Return the same kind of network with a billion parameters and a head of its own. Its sizes are unpublished."""
    vocabulary, hidden = 32000, 1792
    return _gpt(vocabulary, positions=2048, hidden=hidden, layers=24) | {"head": (vocabulary, hidden)}


def _gpt(vocabulary: int, positions: int, hidden: int, layers: int) -> Shapes:
    shapes: Shapes = {"wte": (vocabulary, hidden), "wpe": (positions, hidden)}
    linear = {"c_attn": 3 * hidden, "attn.c_proj": hidden, "c_fc": 4 * hidden}
    for layer in range(layers):
        for name, width in linear.items():
            shapes[f"{layer}.{name}.weight"], shapes[f"{layer}.{name}.bias"] = (hidden, width), (width,)
        shapes[f"{layer}.mlp.c_proj.weight"], shapes[f"{layer}.mlp.c_proj.bias"] = (4 * hidden, hidden), (hidden,)
        for name in ("ln_1", "ln_2"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (hidden,)
    return shapes | {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}


def resnet50() -> Shapes:
    """Return ResNet-50 for ImageNet: 3, 4, 6 and 3 blocks of three convolutions, each followed by a batch norm."""
    shapes = _convolution("stem", 64, 3, 7)
    before = 64
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
    return shapes | {"head.weight": (1000, before), "head.bias": (1000,)}


def _convolution(name: str, to: int, come: int, size: int) -> Shapes:
    return {f"{name}.weight": (to, come, size, size), f"{name}.norm.weight": (to,), f"{name}.norm.bias": (to,)}


def tiny_1000() -> Shapes:
    """Return a thousand small tensors: what is left to measure is the overhead of each."""
    return {f"t{i}": (256,) for i in range(1000)}


def square_197() -> Shapes:
    """Return as many tensors as BERT-base has, small and alike: what is left to measure is how long they compile."""
    return {f"t{i}": (64, 64) for i in range(197)}


SETS = {
    "resnet50": resnet50,
    "bert-base": bert_base,
    "gpt2-medium": gpt2_medium,
    "gpt-1b": gpt_1b,
    "tiny-1000": tiny_1000,
    "square-197": square_197,
    "digits": digits,
}


def parameters(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def single(shapes: Shapes) -> Shapes:
    """Return as many tensors with as many dimensions, of one element each."""
    return {name: (1,) * len(shape) for name, shape in shapes.items()}
