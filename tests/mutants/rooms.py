"""The rooms of the library: files that belong together, the tests that are nearest to them, and small errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mutants.errors import Error, errors


@dataclass(frozen=True)
class Room:
    name: str
    paths: tuple[str, ...]  # below the root; a file is of the room with the longest that it begins with
    near: tuple[str, ...]  # files and folders of tests
    slow: bool = False  # whether those tests need packages that `make test` does not install
    api: bool = False  # whether of the tests near to it only those count that bear its name: an API's in the contract

    @cached_property
    def errors(self) -> tuple[Error, ...]:
        return errors(self.name)


def _room(name: str, paths: str, near: str, slow: bool = False, api: bool = False) -> Room:
    found = (path if path.startswith("csrc/") else f"src/layerwise/{path.lstrip('.')}" for path in paths.split())
    return Room(name, tuple(found), tuple(f"tests/{one}".rstrip("/") for one in near.split()), slow, api)


ROOMS: tuple[Room, ...] = (
    _room(
        "core",
        ".",
        "test_made.py test_misspelt.py test_reference.py test_options.py test_factoring.py contract/test_blocks.py "
        "contract/test_names.py contract/test_schedules.py contract/test_stats.py contract/test_keep_norm.py "
        "contract/test_storage.py "
        "numpy_front test_rules.py torch_front/test_monitor.py torch_front/test_changes_between_steps.py "
        "torch_front/test_loading.py engines/test_prepared.py sharding/test_layouts.py",
    ),
    _room("schedules", "schedules.py", "test_schedules.py contract/test_schedules.py torch_front/test_schedulers.py"),
    _room(
        "storage",
        "storage/",
        "storage contract/test_storage.py reference/test_reference.py torch_front/test_few_bytes.py "
        "torch_front/test_split_weights.py contract/test_resume.py",
    ),
    _room(
        "drivers",
        "drivers/",
        "test_requests.py engines/test_rounds.py sharding/test_model_group.py "
        "sharding/test_collectives.py sharding/test_layouts.py",
    ),
    _room(
        "engines",
        "engines/",
        "engines/test_distributor.py engines/test_prepared.py engines/test_rounds.py engines test_interrupts.py "
        "contract/test_extremes.py numpy_front/test_arrays.py torch_front/test_tensors.py "
        "torch_front/test_changes_between_steps.py torch_front/test_few_bytes.py torch_front/test_on_device.py "
        "sharding/test_model_group.py sharding/test_layouts.py",
    ),
    _room(
        "native",
        "csrc/",
        "engines/test_formats.py engines/test_jobs.py engines/test_prepared.py engines storage test_interrupts.py "
        "contract/test_extremes.py "
        "torch_front/test_changes_between_steps.py contract/test_storage.py torch_front/test_tensors.py "
        "torch_front/test_memory.py sharding/test_model_group.py",
    ),
    _room(
        "gpu",
        "engines/gpu/",
        "gpu/test_device_steps.py gpu/test_left_to_the_rule.py gpu/test_factored.py gpu/test_storage.py "
        "gpu/test_proof.py gpu/test_optimizers.py gpu engines/test_rounds.py",
    ),
    _room("numpy", "numpy/", "numpy_front contract test_lifetimes.py"),
    _room(
        "torch",
        "torch/",
        "torch_front contract test_lifetimes.py engines/test_foreach.py engines/test_list_formats.py "
        "sharding/test_model_group.py sharding/test_layouts.py sharding/test_collectives.py offload",
    ),
    _room(
        "checkpoints",
        "torch/checkpoints/ torch/groups/_members.py torch/flat/_states.py torch/tools/_weights.py",
        "torch_front/test_loading.py torch_front/test_foreign_checkpoints.py torch_front/test_runs_of_others.py "
        "torch_front/test_names.py contract/test_state.py torch_front/test_split_weights.py "
        "torch_front sharding/test_resume.py sharding/test_flat_buffers.py",
    ),
    _room(
        "sharding",
        "torch/sharding/ torch/flat/",
        "sharding/test_model_group.py sharding/test_flat_buffers.py sharding/test_disagreement.py "
        "sharding/test_collectives.py sharding/test_replaced.py sharding",
    ),
    _room("offload", "torch/offload/ torch/step/_measured_step.py torch/tools/_overlap.py", "offload"),
    _room(
        "tools",
        "torch/tools/ contrib/",
        "torch_front/test_stepping_alone.py torch_front/test_param_groups.py torch_front/test_monitor.py "
        "torch_front/test_hidden_matrices.py "
        "torch_front/test_noise_scale.py torch_front/test_schedulers.py test_lifetimes.py "
        "sharding/test_noise_scale.py sharding/test_in_backward.py",
    ),
    _room(
        "jax",
        "jax/",
        "jax_front/test_bad_input.py jax_front/test_trees.py jax_front/test_leaves.py jax_front/test_wrappers.py "
        "jax_front/test_few_bytes.py storage jax_front contract",
        api=True,
    ),
    _room("paddle", "paddle/", "paddle_front contract", slow=True, api=True),
    _room("keras", "keras/", "keras_front contract", slow=True, api=True),
    _room("mlx", "mlx/ drivers/scaled.py", "mlx_front contract/test_steps.py contract/test_extremes.py"),
    _room(
        "converters",
        "convert/ jax/_state_conversion.py jax/_of_optax.py catalog/presets.py options/arguments.py options/names.py",
        "jax_front/test_conversion.py contract/test_conversion.py parity/test_mlx_states.py "
        "test_presets.py jax_front/test_presets.py project/test_docs.py",
    ),
    _room("recipes", "recipes/", "test_recipes.py cli/test_recommend.py"),
    _room("trainers", "trainers/ run.py", "trainers", slow=True),
    _room("cli", "cli/ __main__.py contrib/_files.py", "cli demo/test_files_written.py"),
)


def room_of(file: str) -> Room | None:
    """Return the room of a file."""
    found = [(len(path), i) for i, room in enumerate(ROOMS) for path in room.paths if file.startswith(path)]
    return ROOMS[max(found)[1]] if found else None
