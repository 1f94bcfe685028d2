"""Train a small classifier with Lightning's command line, which makes the optimizer that a YAML file names.

    python examples/lightning_cli.py fit --config examples/lightning_cli.yaml
    python examples/lightning_cli.py fit --config examples/lightning_cli.yaml --optimizer layerwise.torch.Adafactor

In a checkout: pip install '.[torch]' 'lightning[pytorch-extra]'
"""

from __future__ import annotations

import torch
from lightning import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):
    """Two layers that learn which of three sums is the largest."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, 3))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return 64 drawn inputs with their classes."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(64, 6, generator=draw)
        return DataLoader(TensorDataset(x, (x @ torch.randn(6, 3, generator=draw)).argmax(1)), batch_size=32)


def main() -> LightningCLI:
    """Run the command line."""
    return LightningCLI(Classifier, seed_everything_default=0)


if __name__ == "__main__":
    main()
