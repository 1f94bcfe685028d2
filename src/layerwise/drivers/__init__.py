"""Drivers answer requests of rules: `drive_whole` of whole tensors, `drive_in_rounds` where other ranks hold parts."""

from layerwise.drivers.partial_sums import PLAIN, TensorRun, counted_once_dims, on_device_of, request_dims
from layerwise.drivers.sharded import GatherRequest, OtherRanks, SharedRequest, drive_in_rounds
from layerwise.drivers.whole import drive_whole

__all__ = ["PLAIN", "GatherRequest", "OtherRanks", "SharedRequest", "TensorRun", "counted_once_dims", "drive_in_rounds"]
__all__ += ["drive_whole", "on_device_of", "request_dims"]
