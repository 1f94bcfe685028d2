"""The rooms of the library, each with small errors of the kind that people make."""

from __future__ import annotations

from mutants.room import Room
from mutants.rooms.beside import CONVERTERS, RECIPES, TRAINERS
from mutants.rooms.cli import CLI
from mutants.rooms.core import CORE, SCHEDULES
from mutants.rooms.engines import ENGINES
from mutants.rooms.gpu import GPU
from mutants.rooms.native import NATIVE
from mutants.rooms.numpy import NUMPY
from mutants.rooms.others import JAX, KERAS, PADDLE
from mutants.rooms.storage import DRIVE, STORAGE
from mutants.rooms.torch import TORCH
from mutants.rooms.torch_parts import CHECKPOINTS, SHARDING, TOOLS

ROOMS: tuple[Room, ...] = (
    CORE,
    SCHEDULES,
    STORAGE,
    DRIVE,
    ENGINES,
    NATIVE,
    GPU,
    NUMPY,
    TORCH,
    CHECKPOINTS,
    SHARDING,
    TOOLS,
    JAX,
    PADDLE,
    KERAS,
    CONVERTERS,
    RECIPES,
    TRAINERS,
    CLI,
)
