"""The two networks: a small convolutional one without normalisation, and a transformer that reads characters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, max_pool2d, relu, scaled_dot_product_attention

from demo.data import LENGTH, SYMBOLS
from demo.settings import Task

HEAD, LAYERS = 16, 2  # the width of an attention head; blocks


def new_model(task: Task) -> nn.Module:
    return Cnn() if task.model == "cnn" else Transformer(task.width)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (_conv(*sizes) for sizes in ((1, 16), (16, 32), (32, 32)))
        self.hidden, self.head = nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.conv2(relu(self.conv1(x)))), 2)
        x = max_pool2d(relu(self.conv3(x)), 2)
        scores: Tensor = self.head(relu(self.hidden(x.flatten(1))))
        return scores


def _conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, width // HEAD, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        wide: Tensor = self.down(gelu(self.up(self.norm2(x))))
        return x + wide


class Transformer(nn.Module):
    """Normalised before each part; learned positions; weights normal with deviation 0.02, biases 0."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, codes: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.blocks(self.symbols(codes) + self.places.weight)))
        return scores.flatten(0, 1)  # one row for each character
