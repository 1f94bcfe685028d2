"""Names of parameters without the additions of wrappers."""

from __future__ import annotations

from collections.abc import Callable

Form = Callable[[str], str]

# Modules that wrap another and whose attribute nobody else has; DDP's "module" may be a module's own.
WRAPPERS = {
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
}


def _without(components: set[str]) -> Form:
    def form(name: str) -> str:
        *modules, last = name.split(".")
        return ".".join([*(module for module in modules if module not in components), last])

    return form


# Forms in which names are compared, from as they are to what only a wrapper at some depth explains.
FORMS: tuple[Form, ...] = (str, _without(WRAPPERS), _without({*WRAPPERS, "module"}))
without_wrappers = FORMS[-1]
