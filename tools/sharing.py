"""What the programs of a rule share: the names of the numbers that they compute with, and functions of one text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from expressions import free
from programs import Program
from symbols import NotPrinted, Symbol, leaf

ANSWERS = 8  # for which layers have room


class Members:
    """The numbers that elements are computed with, each under one name in all programs of a rule.

    They are coefficients, what is made of these alone and needed before the first totals, and answers, each in a slot.
    """

    def __init__(
        self, programs: Sequence[Program], numbers: Sequence[str], taken: set[str], spelled: Callable[[str], str]
    ) -> None:
        used = set[Symbol]().union(*(one.in_arrays() for one in programs))
        coefficients = {one: leaf("coefficient", one, is_array=False) for one in numbers}
        self.coefficients = {one: free(spelled(one), taken) for one, x in coefficients.items() if x in used}
        self.early: dict[Symbol, str] = {}
        self.slots: list[str] = []
        known = {x: self.coefficients[one] for one, x in coefficients.items() if x in used}
        self._of = {program: known | self._answers(program, taken) for program in programs}
        if len(self.slots) > ANSWERS:
            raise NotPrinted(f"kernels take at most {ANSWERS} answers, but {programs[0].entry.name} has more")

    def _answers(self, program: Program, taken: set[str]) -> dict[Symbol, str]:
        early = [one for one in program.answers if program.is_early(one)]
        later = [one for one in program.answers if not program.is_early(one)]
        for one in early:
            if one.value not in self.early:
                self.early[one.value] = free(f"early{len(self.early)}", taken)
        for number in range(len(self.slots), len(later)):
            self.slots.append(free(f"answer{number}", taken))
        found = {one.leaf: self.early[one.value] for one in early}
        return found | {one.leaf: name for one, name in zip(later, self.slots, strict=False)}

    def names(self) -> list[str]:
        """Return all names, in their order."""
        return [*self.coefficients.values(), *self.early.values(), *self.slots]

    def of(self, program: Program) -> dict[Symbol, str]:
        """Return the names of what a program computes elements with."""
        return self._of[program]

    def answers(self, program: Program, number: int) -> dict[int, Any]:
        """Return what is known with the totals of a round, by its slot."""
        of = self.of(program)
        return {
            self.slots.index(of[one.leaf]): one.value
            for one in program.answers
            if not program.is_early(one) and max(one.round, 0) == number
        }


class Functions:
    """Functions of the programs of a rule: one text of a kind has one name, after the first program that has it."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def named(self, kind: str, suffix: str, text: str) -> str:
        """Return the name of a function of this text, in which its own name is `@`."""
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", suffix).lower()
        return self._names.setdefault((kind.split("_")[0], text), f"{kind}_{words}" if words else kind)

    def texts(self) -> Mapping[str, str]:
        """Return the texts by their names."""
        return {name: text.replace("@", name) for (_, text), name in self._names.items()}
