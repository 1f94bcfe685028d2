"""Find the learning rates of `layerwise demo`: seven per optimizer, a factor of 2 apart, by loss on validation images.

At the small batch for everyone, whose rates the demo then scales by the square-root rule; at the large batch again,
to know what a rate tuned there would reach. The seeds are not those of the demo. A best rate at the end of its grid is
marked: the grid should be moved.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from layerwise.cli.demo import data, network
from layerwise.cli.demo.settings import CONTENDERS, FULL, Contender
from layerwise.cli.demo.train import last, train

SEEDS = (100, 101)
POINTS = 7


def grid(middle: float) -> list[float]:
    return [middle * 2.0**k for k in range(-(POINTS // 2), POINTS // 2 + 1)]


def validation(contender: Contender, batch: int, lr: float, digits: data.Digits) -> tuple[float, float]:
    """Mean loss and accuracy on the validation images; a run that diverged has an infinite loss."""
    losses, accuracies = [], []
    for seed in SEEDS:
        done = last(train(contender, FULL, batch, lr, digits.train, seed))
        x, y = digits.validation
        losses.append(math.inf if done.diverged else network.mean_loss(done.weights, x, y))
        accuracies.append(0.0 if done.diverged else network.accuracy(done.weights, x, y))
    return float(np.mean(losses)), float(np.mean(accuracies))


def tune(contender: Contender, batch: int, middle: float, digits: data.Digits) -> None:
    print(f"{contender.name}, batch {batch}")
    found = {lr: validation(contender, batch, lr, digits) for lr in grid(middle)}
    best = min(found, key=lambda lr: found[lr][0])
    for lr, (loss, right) in found.items():
        mark = ("  <- best" if best not in (min(found), max(found)) else "  <- best, at the end") if lr == best else ""
        print(f"  lr {lr:<10.5g} loss {loss:.4f}  accuracy {100 * right:5.1f} %{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    digits = data.load()
    for contender in CONTENDERS:
        tune(contender, FULL.small, contender.lr, digits)
        tune(contender, FULL.large, contender.retuned, digits)


if __name__ == "__main__":
    main()
