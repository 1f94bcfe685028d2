"""Sequences of events on one PyTorch optimizer: each step is that of an optimizer rebuilt before it, bit for bit."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from contract import sequences
from contract.apis import arrays, bits
from contract.sequences import NAMES, SHAPES, names, numbers, rates, rules, three_rules
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from torch.nn import Parameter

import layerwise
import layerwise.torch
from layerwise.torch import step_in_backward

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


class Sub(Parameter):
    """A parameter that no kernel takes."""


def twin(p: Any) -> Any:
    return type(p)(p.detach().clone(memory_format=torch.preserve_format))


def all_but(group: dict[str, Any], *keys: str) -> dict[str, Any]:
    return copy.deepcopy({key: value for key, value in group.items() if key not in keys})


DATA = {
    "another": lambda x: x * 2,
    "transposed": lambda x: x.t() if x.dim() == 2 and x.shape[0] == x.shape[1] else x,
    "in columns": lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
    **{name: lambda x, to=dtype: x.to(to) for name, dtype in DTYPES.items()},
}


def with_data(x: Any, data: Any) -> Any:
    x.data = data
    return x


STATE = {
    "replaced": lambda state, key: state.update({key: state[key] * 2}),
    "written": lambda state, key: state[key].mul_(2),
    "other data": lambda state, key: with_data(state[key], state[key].data * 2),
    "wider": lambda state, key: state.update({key: state[key].double()}),
    "deleted": lambda state, key: state.pop(key),
    "another shape": lambda state, key: state.update({key: state[key].reshape(-1, 1, 1)}),
}


class Events(sequences.Sequence):
    @initialize(
        rules=three_rules,
        mixed=st.booleans(),
        fused=st.sampled_from([None, False]),
        skip_nonfinite=st.booleans(),
        named=st.booleans(),
        low=st.sets(names).map(sorted),
    )
    def begin(self, rules: Any, mixed: bool, fused: Any, skip_nonfinite: bool, named: bool, low: list[str]) -> None:
        self.mixed, self.named = mixed, named
        self.rules = rules if mixed else [rules[0]] * 3
        self.whole = {"fused": fused, "skip_nonfinite": skip_nonfinite}
        if named:
            self.whole["blocks"] = {layerwise.optional("*.square"): 2}
        given = arrays(0, {name: SHAPES[name] for name in NAMES})
        self.weights = {name: Parameter(torch.tensor(x, dtype=torch.float32)) for name, x in given.items()}
        for name in low:
            self.weights[name].data = self.weights[name].data.bfloat16()
        late = {name: self.weights.pop(name) for name in NAMES if name.startswith("2")}
        self.late = [late]
        self.opt = self.front([self.group_of(number, self.weights) for number in range(2)], **self.whole)
        self.keep_options()

    @property
    def front(self) -> Any:
        return getattr(layerwise.torch, "Mixed" if self.mixed else self.rules[0])

    def group_of(self, number: int, weights: dict[str, Any]) -> dict[str, Any]:
        own = [(name, p) for name, p in weights.items() if name.startswith(str(number))]
        rule = {"rule": self.rules[number]} if self.mixed else {}
        return {"params": own if self.named else [p for _, p in own], "lr": 0.1, **rule}

    # ---- both optimizers

    def rebuilt(self) -> tuple[Any, dict[str, Any]]:
        twins = {p: twin(p) for p in self.weights.values()}
        groups = []
        for group in self.opt.param_groups:
            params = [twins[p] for p in group["params"]]
            if "param_names" in group:
                params = list(zip(group["param_names"], params, strict=True))
            groups.append({**all_but(group, "params", "param_names"), "params": params})
        other = self.front(groups, **self.whole)
        for p, state in self.opt.state.items():
            other.state[twins[p]] = {key: x.clone(memory_format=torch.preserve_format) for key, x in state.items()}
        return other, {name: twins[p] for name, p in self.weights.items()}

    def kept(self, opt: Any, weights: dict[str, Any]) -> Any:
        return bits({name: (p, opt.state.get(p, {})) for name, p in weights.items()})

    def take(self, opt: Any, weights: dict[str, Any], grads: dict[str, Any], how: str) -> None:
        given = {name: torch.tensor(g).to(weights[name].dtype) for name, g in grads.items()}
        for p in weights.values():
            p.grad = None
        if how == "in backward":
            right = [(weights[name], g) for name, g in given.items() if g.shape == weights[name].shape]
            handle = step_in_backward(opt)
            try:
                sum(((p * g).sum().double() for p, g in right), torch.zeros((), requires_grad=True)).backward()
            finally:
                handle.remove()
            return
        for name, g in given.items():
            p = weights[name]  # no gradient of another shape can be set
            p.grad = g if g.shape == p.shape else torch.zeros_like(p).to_sparse() if p.dim() else None
        if how == "alone":
            for name in given:
                opt.step_parameter(weights[name])
        elif how == "raising":
            opt.step(lambda: 1 / 0)
        else:
            opt.step((lambda: torch.tensor(1.0)) if how == "by closure" else None)

    @rule(how=st.sampled_from(["in backward", "alone", "by closure", "raising"]))
    def step_otherwise(self, how: str) -> None:
        self.both_step(how)

    # ---- options

    def keep_options(self) -> None:
        self.options = [all_but(group, "params", "param_names") for group in self.opt.param_groups]

    def restore_options(self) -> None:
        for group, options in zip(self.opt.param_groups, self.options, strict=True):
            for key in group.keys() - options.keys() - {"params", "param_names"}:
                del group[key]
            group.update(copy.deepcopy(options))

    def set_option(self, number: int, key: str, value: Any) -> None:
        if number < len(self.opt.param_groups):
            self.opt.param_groups[number][key] = value

    @rule(number=numbers, lr=rates, how=st.sampled_from(["a tensor", "written", "for all"]))
    def rate_otherwise(self, number: int, lr: float, how: str) -> None:
        if how == "for all":
            self.opt.set_lr(lr)
        elif number < len(self.opt.param_groups):
            group = self.opt.param_groups[number]
            if how == "written" and isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = torch.tensor(lr)

    @rule(number=numbers, bound=st.sampled_from([None, 0.5]))
    def clip(self, number: int, bound: float | None) -> None:
        """The one option that couples groups."""
        if number < len(self.opt.param_groups) and "max_grad_norm" in self.opt.param_groups[number]:
            self.set_option(number, "max_grad_norm", bound)

    @rule(number=numbers, other=rules)
    def another_rule(self, number: int, other: str) -> None:
        """With the options of the new one, and without the state of the old."""
        if self.mixed and number < len(self.opt.param_groups):
            group = self.opt.param_groups[number]
            fresh = self.front([{"params": [Parameter(torch.ones(2))], "lr": 0.1, "rule": other}]).param_groups[0]
            for p in group["params"]:
                self.opt.state.pop(p, None)
            for key in group.keys() - fresh.keys() - {"param_names"}:
                del group[key]
            group.update(all_but(fresh, "params"))
            self.rules[number] = other

    # ---- parameters and state

    @rule()
    def add_group(self) -> None:
        for late in self.late:
            self.weights |= late
            self.opt.add_param_group(self.group_of(2, late))
        self.late = []
        self.keep_options()

    @rule(name=names, what=st.sampled_from(sorted(DATA)))
    def data(self, name: str, what: str) -> None:
        if name in self.weights:
            self.weights[name].data = DATA[what](self.weights[name].data)

    @rule(name=names)
    def another_class(self, name: str) -> None:
        if name in self.weights:
            self.weights[name].__class__ = Sub

    @rule(name=names, key=st.integers(0, 3), what=st.sampled_from(sorted(STATE)))
    def state(self, name: str, key: int, what: str) -> None:
        state = self.opt.state.get(self.weights.get(name))
        if state:
            STATE[what](state, list(state)[key % len(state)])

    @rule(name=names)
    def another_dict_of_state(self, name: str) -> None:
        if self.opt.state.get(self.weights.get(name)):
            self.opt.state[self.weights[name]] = dict(self.opt.state[self.weights[name]])

    @rule(name=names)
    def forget_state(self, name: str) -> None:
        self.opt.state.pop(self.weights.get(name), None)

    @rule(number=numbers, new=st.sampled_from(["a.square", "b.other"]))
    def rename(self, number: int, new: str) -> None:
        if self.named and number < len(self.opt.param_groups):
            self.opt.param_groups[number]["param_names"][0] = f"{number}.{new}"

    @rule(number=numbers)
    def prune(self, number: int) -> None:
        """Take the first parameter out of a group; without names, measurements would keep to the places of before."""
        if self.named and number < len(self.opt.param_groups):
            group = self.opt.param_groups[number]
            if len(group["params"]) > 1:
                gone = group["params"].pop(0)
                group["param_names"].pop(0)
                self.opt.state.pop(gone, None)
                self.weights = {name: p for name, p in self.weights.items() if p is not gone}

    @rule(number=numbers)
    def regroup(self, number: int) -> None:
        """Move the last parameter of a group to the next one, where it comes first; without names it gets another."""
        if self.named and number + 1 < len(self.opt.param_groups):
            group, after = self.opt.param_groups[number : number + 2]
            if len(group["params"]) > 1:
                self.opt.state.pop(group["params"][-1], None)
                for key in ("params", "param_names"):
                    after[key].insert(0, group[key].pop())


@pytest.mark.filterwarnings("ignore")
def test_each_step_of_a_sequence_is_that_of_an_optimizer_rebuilt_before_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sequences.tried(Events)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    ("event", "given"), [("clip", {"number": 1, "bound": 0.5}), ("rename", {"number": 0, "new": "b.other"})]
)
def test_sequences_that_draws_seldom_find(event, given, fused):
    """A norm in which groups of a rule that is never clipped count as well; other blocks by another name."""
    events = Events()
    events.begin(rules=["Lans", "SGD", "SGD"], mixed=True, fused=fused, skip_nonfinite=False, named=True, low=[])
    events.step()
    getattr(events, event)(**given)
    events.step()
