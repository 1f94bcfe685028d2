"""Compiled part of layerwise."""

import enum
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

def compiler() -> str:
    """Return the compiler that built this extension."""

def instruction_sets() -> list[str]:
    """
    Return the instruction sets of this machine that have kernels, fastest first.
    """

def instruction_set() -> str:
    """Return the instruction set in use."""

def use_instruction_set(name: str) -> bool:
    """
    Use another instruction set; return False if there is none of that name.
    """

def num_threads() -> int:
    """Return how many threads a step takes at most."""

def set_num_threads(n: int) -> None:
    """Let a step take at most n threads; the caller checks n."""

def open_torch(tensor: object, parameter: object, dtypes: tuple[object, ...], exchange: object | None) -> None:
    """
    Make PyTorch's tensors known: their types, their dtypes, and their table of C functions or None.
    """

class Sum(enum.Enum):
    OWN = 0

    MODEL = 1

    ROWS = 2

    COLS = 3

    G = 4

    R = 5

    P = 6

    UPDATE = 7

def use_torch_functions(addresses: tuple[int, int, int], plain: object, negated: object) -> bool:
    """
    Ask functions of PyTorch's at these addresses (is_neg, storage size, offset); False if they contradict methods.
    """

def reaches(array: object) -> bool:
    """
    Return whether an array holds floating numbers in this machine's memory.
    """

def in_memory(tensors: list[object]) -> bool:
    """
    Return whether all of these are plain tensors of floating numbers whose memory holds their values.
    """

def counts(tensors: list[object]) -> list[int] | None:
    """
    Return the number that each of these tensors of int64 holds, or None if one is of another kind.
    """

def count(tensors: list[object]) -> bool:
    """
    Add one to each of these counts; return False, with nothing done, if one is of another kind.
    """

class Watch:
    """
    What parameters, gradients and state were when a step was prepared, kept as numbers.
    """

    def __init__(self, params: list[object], grads: list[object], states: dict[object, object]) -> None: ...
    def same(
        self, params: list[object], grads: list[object], states: dict[object, object], only_objects: bool = False
    ) -> bool:
        """
        Return whether all of it is as it was, or with `only_objects` whether the state is made of the same objects.
        """

    def moved(self, params: list[object], grads: list[object], states: dict[object, object]) -> bool:
        """
        Return whether all of it is as it was but for its addresses, with no two tensors in the same memory.
        """

class Places:
    """
    The arrays of jobs when these were prepared, and gradients as they first came.
    """

    def __init__(self, arrays: list[object]) -> None: ...
    def same(self, arrays: list[object]) -> bool:
        """
        Whether all of them lie where and how they lay, and their memory holds their numbers as it did.
        """

    def like(self, grads: list[object]) -> bool:
        """
        Whether gradients are floating tensors on the devices and of the shapes of the first ones, wherever they lie.
        """

class Signals:
    """A context in which signals wait that Python would handle."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

class Method(enum.Enum):
    LAMB = 0

    LARS = 1

    ADAFACTOR = 2

class Adapt(enum.Enum):
    NEVER = 0

    ALWAYS = 1

    DECAYED = 2

class Correction(enum.Enum):
    UNCORRECTED = 0

    CORRECTED = 1

    CORRECTED_LR = 2

class Decay(enum.Enum):
    IN_RATIO = 0

    DECOUPLED = 1

    L2 = 2

class DecayScale(enum.Enum):
    BY_LR = 0

    BY_STEP = 1

    BY_NOTHING = 2

class Options:
    """The hyperparameters of one tensor, as the kernels take them."""

    def __init__(self) -> None: ...
    @property
    def rows(self) -> list[int]: ...
    @rows.setter
    def rows(self, arg: Sequence[int], /) -> None: ...
    @property
    def cols(self) -> list[int]: ...
    @cols.setter
    def cols(self, arg: Sequence[int], /) -> None: ...
    @property
    def method(self) -> Method: ...
    @method.setter
    def method(self, arg: Method, /) -> None: ...
    @property
    def maximize(self) -> bool: ...
    @maximize.setter
    def maximize(self, arg: bool, /) -> None: ...
    @property
    def max_grad_norm(self) -> float: ...
    @max_grad_norm.setter
    def max_grad_norm(self, arg: float, /) -> None: ...
    @property
    def max_grad_norm_per_tensor(self) -> float: ...
    @max_grad_norm_per_tensor.setter
    def max_grad_norm_per_tensor(self, arg: float, /) -> None: ...
    @property
    def grad_low(self) -> float: ...
    @grad_low.setter
    def grad_low(self, arg: float, /) -> None: ...
    @property
    def grad_high(self) -> float: ...
    @grad_high.setter
    def grad_high(self, arg: float, /) -> None: ...
    @property
    def min_norm(self) -> float: ...
    @min_norm.setter
    def min_norm(self, arg: float, /) -> None: ...
    @property
    def trust_eps(self) -> float: ...
    @trust_eps.setter
    def trust_eps(self, arg: float, /) -> None: ...
    @property
    def l2(self) -> float: ...
    @l2.setter
    def l2(self, arg: float, /) -> None: ...
    @property
    def adapt(self) -> Adapt: ...
    @adapt.setter
    def adapt(self, arg: Adapt, /) -> None: ...
    @property
    def low(self) -> float: ...
    @low.setter
    def low(self, arg: float, /) -> None: ...
    @property
    def high(self) -> float: ...
    @high.setter
    def high(self, arg: float, /) -> None: ...
    @property
    def zero_norm_ratio(self) -> float: ...
    @zero_norm_ratio.setter
    def zero_norm_ratio(self, arg: float, /) -> None: ...
    @property
    def eps(self) -> float: ...
    @eps.setter
    def eps(self, arg: float, /) -> None: ...
    @property
    def lr_in_momentum(self) -> bool: ...
    @lr_in_momentum.setter
    def lr_in_momentum(self, arg: bool, /) -> None: ...
    @property
    def b1(self) -> float: ...
    @b1.setter
    def b1(self, arg: float, /) -> None: ...
    @property
    def b2(self) -> float: ...
    @b2.setter
    def b2(self, arg: float, /) -> None: ...
    @property
    def eps_root(self) -> float: ...
    @eps_root.setter
    def eps_root(self, arg: float, /) -> None: ...
    @property
    def max_weight_norm(self) -> float: ...
    @max_weight_norm.setter
    def max_weight_norm(self, arg: float, /) -> None: ...
    @property
    def correction(self) -> Correction: ...
    @correction.setter
    def correction(self, arg: Correction, /) -> None: ...
    @property
    def decay(self) -> Decay: ...
    @decay.setter
    def decay(self, arg: Decay, /) -> None: ...
    @property
    def grad_averaging(self) -> bool: ...
    @grad_averaging.setter
    def grad_averaging(self, arg: bool, /) -> None: ...
    @property
    def momentum(self) -> float: ...
    @momentum.setter
    def momentum(self, arg: float, /) -> None: ...
    @property
    def eta(self) -> float: ...
    @eta.setter
    def eta(self, arg: float, /) -> None: ...
    @property
    def dampening(self) -> float: ...
    @dampening.setter
    def dampening(self, arg: float, /) -> None: ...
    @property
    def nesterov(self) -> bool: ...
    @nesterov.setter
    def nesterov(self, arg: bool, /) -> None: ...
    @property
    def norm_decayed(self) -> bool: ...
    @norm_decayed.setter
    def norm_decayed(self, arg: bool, /) -> None: ...
    @property
    def eps1(self) -> float: ...
    @eps1.setter
    def eps1(self, arg: float, /) -> None: ...
    @property
    def eps2(self) -> float: ...
    @eps2.setter
    def eps2(self, arg: float, /) -> None: ...
    @property
    def clip_threshold(self) -> float: ...
    @clip_threshold.setter
    def clip_threshold(self, arg: float, /) -> None: ...
    @property
    def beta2_decay(self) -> float: ...
    @beta2_decay.setter
    def beta2_decay(self, arg: float, /) -> None: ...
    @property
    def beta2_cap(self) -> float: ...
    @beta2_cap.setter
    def beta2_cap(self, arg: float, /) -> None: ...
    @property
    def beta1(self) -> float: ...
    @beta1.setter
    def beta1(self, arg: float, /) -> None: ...
    @property
    def lr_cap(self) -> float: ...
    @lr_cap.setter
    def lr_cap(self, arg: float, /) -> None: ...
    @property
    def decay_offset(self) -> int: ...
    @decay_offset.setter
    def decay_offset(self, arg: int, /) -> None: ...
    @property
    def clamp(self) -> bool: ...
    @clamp.setter
    def clamp(self, arg: bool, /) -> None: ...
    @property
    def scale_parameter(self) -> bool: ...
    @scale_parameter.setter
    def scale_parameter(self, arg: bool, /) -> None: ...
    @property
    def relative(self) -> bool: ...
    @relative.setter
    def relative(self, arg: bool, /) -> None: ...
    @property
    def warmup(self) -> bool: ...
    @warmup.setter
    def warmup(self, arg: bool, /) -> None: ...
    @property
    def decay_scale(self) -> DecayScale: ...
    @decay_scale.setter
    def decay_scale(self, arg: DecayScale, /) -> None: ...
    @property
    def lr_caps(self) -> bool: ...
    @lr_caps.setter
    def lr_caps(self, arg: bool, /) -> None: ...

class Batch:
    """Jobs, laid out once and stepped again and again."""

    def __init__(
        self, jobs: list[object], grads: list[object], nows: list[object], options: list[object], stops: bool = False
    ) -> None: ...
    def step(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """
        Carry out jobs like those given at the start, in these places; False, with nothing done, if they differ.
        """

    def takes(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """Whether `step` would carry them out."""

    def retune(self, hs: list[object], options: list[object]) -> bool:
        """
        Go on with other numbers in the hyperparameters; False, with nothing done, if they need another layout.
        """

    def begin(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """
        The same for a batch that stops: take it for a step in rounds, or False.
        """

    def measure(self) -> bool:
        """
        Go on to the next sums, made of the last ones as they are in `sums` now; False if there are none left.
        """

    def requests(self) -> list[tuple[int, Sum, int]]:
        """
        The requests of this round: the job, which of its sums, and how many numbers.
        """

    def sums(self) -> NDArray[numpy.float64]:
        """Those numbers, one after the other, to be completed in place."""

    def apply(self) -> None:
        """With all sums known: write parameters and state."""

    def leave(self) -> None:
        """End the step, or give it up with nothing written."""

    def measured(self, job: int, which: int) -> list[float]:
        """One of three measurements of the last step, one number a block."""
