"""Codecs of Adafactor: every package stores the means of rows and columns in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from layerwise.errors import StateError
from layerwise.rules import factored_dims
from layerwise.torch.checkpoints.foreign._codec import Codec, TargetParameter, key_set
from layerwise.torch.groups._members import Group, State

Shape = tuple[int, ...]
Dims = tuple[int, int]
FACTORED = key_set("lr eps weight_decay decay_rate")
T5 = FACTORED | key_set("beta1 clip_threshold scale_parameter relative_step warmup_init")


class AdafactorCodec(Codec):
    """The second moment of a tensor, whole or in means with all dimensions, rows first."""

    names: ClassVar[tuple[str, str, str]]  # of row means, of column means, and of the whole
    beside: ClassVar[Mapping[str, object]] = {}  # entries that theirs stores, and ours computes
    says: ClassVar[Mapping[str, object]] = {"lr_in_momentum": True}  # momentum averages whole steps, or directions

    def dims(self, shape: Shape, group: Group) -> Dims | None:
        """Return the dimensions that are rows and columns, or None for a tensor that is not factored."""
        n = len(shape)
        return (n - 2, n - 1) if n > 1 else None

    def averages(self, group: Group) -> bool:
        """Return True if theirs has a momentum."""
        return group["beta1"] is not None

    def read(self, theirs: State, group: Group) -> State:
        row, col, whole = self.names
        found = {key: theirs[key] for key in ("exp_avg",) if key in theirs}
        found["step"] = self.steps(theirs, group)
        if theirs.get(whole) is not None:
            return {**found, "exp_avg_sq": theirs[whole]}
        ours = self.read_means(theirs[row], theirs[col], group)
        return {**found, "exp_avg_sq_row": ours[0], "exp_avg_sq_col": ours[1]}

    def write(self, ours: State, place: TargetParameter) -> State:
        row, col, whole = self.names
        found = {**self.own_count(ours["step"]), **self.beside, **self.write_momentum(ours, place)}
        dims = self.dims(tuple(place.p.shape), place.group)
        if dims is None:
            return {**found, whole: ours["exp_avg_sq"]}
        means = self.write_means(*means_of(ours, place, dims), dims)
        return {**found, row: means[0], col: means[1]}

    def read_means(self, row: Tensor, col: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        return row, col

    def write_means(self, row: Tensor, col: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
        return row, col

    def write_momentum(self, ours: State, place: TargetParameter) -> State:
        """Return the momentum, if theirs averages the same: whole steps, or directions."""
        wanted = self.averages(place.group)
        if ("exp_avg" in ours) != wanted:
            raise StateError(
                "one of the two optimizers has momentum and the other has none. Set beta1 in both, or in neither."
            )
        if not wanted:
            return {}
        place.check("lr_in_momentum", self.says.get("lr_in_momentum"))
        return {"exp_avg": ours["exp_avg"]}

    def write_options(self, ours: Group, theirs: Group) -> State:
        rates = super().write_options(ours, theirs)
        if theirs.get("relative_step") or ours.get("relative_step"):
            rates.pop("lr", None)  # means no step in both
        return rates


def means_of(ours: State, place: TargetParameter, dims: Dims, name: str = "exp_avg_sq") -> tuple[Tensor, Tensor]:
    """Return our means, if they run over the dimensions that theirs uses as rows and columns."""
    shape, (rows, cols), found = tuple(place.p.shape), dims, []
    for key, gone in ((f"{name}_row", cols), (f"{name}_col", rows)):
        if key not in ours or tuple(ours[key].shape) != (*shape[:gone], 1, *shape[gone + 1 :]):
            raise StateError(
                f"the target factors a tensor of shape {shape} by rows along {rows} and columns along {cols}, but "
                f"the state does not. It can only continue a run with factored=({rows}, {cols}) for this tensor."
            )
        found.append(ours[key])
    return found[0], found[1]


class TorchAdafactor(AdafactorCodec):
    """PyTorch's, whose lr bounds the relative step."""

    names: ClassVar = ("row_var", "col_var", "variance")
    says: ClassVar = {"relative_step": "cap"}

    def write_momentum(self, ours: State, place: TargetParameter) -> State:
        if "exp_avg" in ours:
            raise StateError(
                "torch.optim.Adafactor has no momentum, but the state was made with beta1. It can only be loaded "
                "without conversion."
            )
        return {}

    def write_options(self, ours: Group, theirs: Group) -> State:
        rates = Codec.write_options(self, ours, theirs)
        return rates if ours.get("relative_step") == "cap" else {k: x for k, x in rates.items() if k != "lr"}


class T5Adafactor(AdafactorCodec):
    """The one of transformers, whose means lack the dimension that they ran over."""

    names: ClassVar = ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq")
    beside: ClassVar = {"RMS": 0.0}

    def read_means(self, row: Tensor, col: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        rows, cols = self.dims_of(tuple(row.shape), tuple(col.shape), group)
        return row.unsqueeze(cols), col.unsqueeze(rows)

    def write_means(self, row: Tensor, col: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
        return row.squeeze(dims[1]), col.squeeze(dims[0])

    def dims_of(self, row: Shape, col: Shape, group: Group) -> Dims:
        """Return the rows and columns of a tensor, given its shapes without columns and without rows."""
        last, first = (*row, *col[-1:]), (*row[:1], *col[:1], *row[1:])
        for shape in (first, last):
            found = self.dims(shape, group)
            if found is not None and (_without(shape, found[1]), _without(shape, found[0])) == (row, col):
                return found
        smallest = group.get("min_dim_size_to_factor")
        of = "" if smallest is None else f" from min_dim_size_to_factor={smallest}"
        raise StateError(f"means of shapes {row} and {col} do not match any tensor that it factors{of}.")

    def read_options(self, theirs: Group) -> State:
        rates = super().read_options(theirs)
        if theirs["relative_step"]:  # lr is then unused, although AdafactorSchedule writes numbers there
            rates.pop("initial_lr", None)
            rates["lr"] = None
        return rates


def _without(shape: Shape, d: int) -> Shape:
    return shape[:d] + shape[d + 1 :]


class TimmAdafactor(T5Adafactor):
    """timm's, which factors the first two dimensions of a convolution."""

    def dims(self, shape: Shape, group: Group) -> Dims | None:
        smallest = group["min_dim_size_to_factor"]
        if len(shape) > 2 and min(shape[:2]) > smallest:
            return 0, 1
        return super().dims(shape, group) if len(shape) > 1 and min(shape[-2:]) > smallest else None


class BigVision(AdafactorCodec):
    """The one of big_vision, whose rows lie along the smaller of the two dimensions, and ours along the earlier one."""

    names: ClassVar = ("exp_avg_sq_r", "exp_avg_sq_c", "exp_avg_sq")
    says: ClassVar = {"lr_in_momentum": False}

    def dims(self, shape: Shape, group: Group) -> Dims | None:
        factored = factored_dims.dims("largest", shape, group["min_dim_size_to_factor"])
        return None if factored is None else (factored[0][0], factored[1][0])

    def averages(self, group: Group) -> bool:
        return bool(group["momentum"])

    def read_means(self, row: Tensor, col: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        cut = [d for d in range(row.ndim) if row.shape[d] != col.shape[d]]
        return (row, col) if not cut or row.shape[cut[-1]] == 1 else (col, row)

    def write_means(self, row: Tensor, col: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
        return (col, row) if row.shape[dims[0]] > col.shape[dims[1]] else (row, col)

    def read_options(self, theirs: Group) -> State:
        return {name: x for name, x in super().read_options(theirs).items() if name != "momentum"}  # that is beta1


CODECS: dict[str, Codec] = {
    "timm.Adafactor": TimmAdafactor("Adafactor", T5 | {"eps_scale", "min_dim_size_to_factor"}, count=int),
    "timm.AdafactorBigVision": BigVision(
        "Adafactor",
        FACTORED | key_set("min_dim_size_to_factor beta2_cap clipping_threshold momentum"),
    ),
    "torch.Adafactor": TorchAdafactor("Adafactor", key_set("lr eps weight_decay beta2_decay d")),
    "transformers.Adafactor": T5Adafactor("Adafactor", T5, count=int),
}
