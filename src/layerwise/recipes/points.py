"""Published settings for a batch size, exactly as their sources state them."""

from __future__ import annotations

import math
from dataclasses import dataclass

Betas = tuple[float, float]
"""The decay rates of the first and of the second moment."""


@dataclass(frozen=True)
class Point:
    """One published run, or the mean of several. None marks values that its source does not state.

    Attributes:
        batch: The batch size.
        lr: The learning rate.
        warmup: The warm-up, as a share of the run.
        weight_decay: The weight decay.
        betas: The decay rates of the moments.
        momentum: The momentum.
        cost: The length of training until its target, in the unit of the series.
    """

    batch: int
    lr: float
    warmup: float | None
    weight_decay: float | None = None
    betas: Betas | None = None
    momentum: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Curve:
    """Runs of one task at several batch sizes, the smallest first.

    Attributes:
        name: The name of the series.
        optimizer: The name of the optimizer.
        task: The task, in words.
        source: The publication.
        points: The runs.
        from_scratch: False for fine-tuning.
        exempt: True if biases and normalization have neither decay nor a trust ratio.
        unit: The unit of the points' cost.
        power: The power of the polynomial by which the rate decays after the warm-up; None if the source does not say.
        end: The rate at its end.
    """

    name: str
    optimizer: str
    task: str
    source: str
    points: tuple[Point, ...]
    from_scratch: bool = True
    exempt: bool = False
    unit: str = ""
    power: float | None = None
    end: float = 0.0

    def nearest(self, batch: float) -> Point:
        """Return the nearest point, measured in doublings of the batch.

        Args:
            batch: The batch size.
        """
        return min(self.points, key=lambda point: abs(math.log(point.batch / batch)))

    @property
    def longest_warmup(self) -> float:
        """The longest warm-up of a point."""
        return max(point.warmup or 0.0 for point in self.points)


# batch, lr, β₁, β₂, weight decay, steps of warm-up, steps planned, million samples to the target (means of 20 runs
# or more)
_MLPERF_BERT = (
    (256, 3.5e-4, 0.9, 0.999, 0.01, 0, 13700, 2.55),
    (448, 4.25e-4, 0.9, 0.999, 0.01, 0, 6700, 2.41),
    (1536, 2e-3, 0.66, 0.996, 0.01, 0, 2254, 2.78),
    (3072, 2e-3, 0.66, 0.998, 0.01, 100, 1141, 2.77),
    (4096, 2.4e-3, 0.66, 0.998, 0.01, 0, 855, 2.84),
    (4608, 3.5e-3, 0.62, 0.9, 0.01, 0, 700, 2.79),
    (6144, 2.9293e-3, 0.7206, 0.78921, 0.001, 0, 700, 3.32),
    (6912, 2.9293e-3, 0.7206, 0.78921, 0.001, 0, 700, 3.60),
    (8192, 2.88293e-3, 0.88, 0.88, 0.0166629, 287, 600, 4.19),
    (8704, 2.971656225e-3, 0.88, 0.88, 0.0166629, 287, 600, 4.28),
    (12288, 3.1e-3, 0.80, 0.925, 0.0166629, 300, 500, 4.47),
    (13056, 3.19540686e-3, 0.80, 0.925, 0.0166629, 300, 500, 4.63),
    (16384, 3.3e-3, 0.75, 0.9, 0.0166629, 290, 600, 5.50),
)
# batch, lr, momentum, weight decay, epochs of warm-up, epochs to the target (means of 10 runs or more)
_MLPERF_RESNET = (
    (1632, 7.4, 0.9, 5e-5, 2, 35.0),
    (3264, 10.5, 0.9, 5e-5, 2, 35.2),
    (4096, 10.0, 0.9, 2e-4, 5, 40.0),
    (8192, 17.0, 0.9, 2e-4, 5, 42.0),
    (13056, 12.8, 0.9, 2.5e-5, 9, 45.4),
    (32768, 21.2, 0.94, 2.5e-5, 16, 56.0),
    (49152, 19.405, 0.951807, 1e-4, 24, 68.0),
    (58880, 23.246, 0.951807, 1e-4, 29, 79.9),
    (65536, 24.699, 0.951807, 1e-4, 31, 84.5),
    (67840, 24.699, 0.951807, 1e-4, 31, 85.9),
)
# batch, log₂ of lr, epochs of warm-up
_NUS_RESNET = (
    (512, 2.0, 10 / 64),
    (1024, 2.5, 10 / 32),
    (4096, 3.5, 10 / 8),
    (8192, 4.0, 10 / 4),
    (16384, 4.5, 5.0),
    (32768, 5.0, 14.0),
)

CURVES = (
    Curve(
        "mlperf-bert",
        "Lamb",
        "BERT-Large to a masked-LM accuracy of 0.72, from a checkpoint",
        "MLPerf reference points: mlcommons/logging 17b4ee5, training_5.0.0/rcps_bert.json",
        tuple(
            Point(batch, lr, warmup / steps, decay, betas=(b1, b2), cost=cost)
            for batch, lr, b1, b2, decay, warmup, steps, cost in _MLPERF_BERT
        ),
        from_scratch=False,
        exempt=True,
        unit="million samples",
    ),
    Curve(
        "nvidia-bert",
        "Lamb",
        "BERT-Large's first phase, 7,038 steps",
        "NVIDIA/DeepLearningExamples 729963d",
        (Point(65536, 6e-3, 0.2843),),
    ),
    Curve(
        "nvidia-bert-phase2",
        "Lamb",
        "BERT-Large's second phase, 1,563 steps after the first",
        "NVIDIA/DeepLearningExamples 729963d",
        (Point(32768, 4e-3, 0.128),),
        from_scratch=False,
    ),
    Curve(
        "you-resnet",
        "Lamb",
        "ResNet-50 in 90 epochs, 76.3 % top-1",
        "fastalgo/imagenet_resnet50_lamb b778c4c, run.sh and log.out",
        (Point(32768, 0.04, 782 / 3519, 1.5),),
    ),
    Curve(
        "mlperf-resnet",
        "Lars",
        "ResNet-50 to 75.9 % top-1",
        "MLPerf reference points: mlcommons/logging 0a0a659, training_4.0.0/rcps_resnet.json",
        tuple(
            Point(batch, lr, warmup / cost, decay, momentum=momentum, cost=cost)
            for batch, lr, momentum, decay, warmup, cost in _MLPERF_RESNET
        ),
        exempt=True,
        unit="epochs",
        power=2.0,
        end=1e-4,
    ),
    Curve(
        "nus-resnet",
        "Lars",
        "ResNet-50 in 90 epochs, 76.8 to 77.4 % top-1",
        "NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch a8222c6, README",
        tuple(Point(batch, 2.0**log_lr, warmup / 90, 1e-4) for batch, log_lr, warmup in _NUS_RESNET),
        exempt=True,
    ),
)
