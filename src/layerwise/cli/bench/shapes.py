"""Named sets of tensor shapes."""

from __future__ import annotations

from math import prod

Shapes = dict[str, tuple[int, ...]]


def digits() -> Shapes:
    """The network of `layerwise demo`."""
    return {
        "layer1.weight": (64, 128),
        "layer1.bias": (128,),
        "layer2.weight": (128, 10),
        "layer2.bias": (10,),
    }


def bert_base() -> Shapes:
    """BERT-base, uncased, without the pooler and the heads.

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


def tiny_1000() -> Shapes:
    """A thousand small tensors: what is left to measure is the overhead of each."""
    return {f"t{i}": (256,) for i in range(1000)}


SETS = {"digits": digits, "bert-base": bert_base, "tiny-1000": tiny_1000}


def parameters(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))
