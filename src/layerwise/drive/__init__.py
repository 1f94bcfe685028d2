"""Drivers answer a rule's requests: `local` for whole tensors, `in_rounds` if other ranks hold parts of them."""

from layerwise.drive.parts import Bucket, Others, TensorRequest, ToBring, in_rounds
from layerwise.drive.requests import (
    MEANS,
    PLAIN,
    Answer,
    PartialSum,
    Run,
    beside,
    dims_of,
    next_requests,
    once_of,
    partial_sum,
)
from layerwise.drive.whole import local
from layerwise.rules.asks import Request

__all__ = [
    "MEANS",
    "PLAIN",
    "Answer",
    "Bucket",
    "Others",
    "PartialSum",
    "Request",
    "Run",
    "TensorRequest",
    "ToBring",
    "beside",
    "dims_of",
    "in_rounds",
    "local",
    "next_requests",
    "once_of",
    "partial_sum",
]
