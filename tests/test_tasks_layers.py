"""Layers: how settings of several places become one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_codeprobe.tasks.layers import Layer, combine, lookup, merge, without_foreign_fields

keys = st.sampled_from(["a", "b", "sandbox", "env_passthrough", "pre_run"])
leaves = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
layers = st.recursive(
    st.dictionaries(keys, leaves, max_size=4), lambda inner: st.dictionaries(keys, leaves | inner, max_size=4), max_leaves=10
)


def has_null(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and any(map(has_null, value.values())))


def paths(value: Any, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if not isinstance(value, dict):
        return {at}
    return {at} | {path for k, v in value.items() for path in paths(v, (*at, k))}


@given(layers, layers)
def test_merging_changes_neither_and_shares_nothing(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    before = copy.deepcopy((lower, upper))
    merged = merge(lower, upper)
    for path in paths(merged):
        inner = lookup(merged, path)
        if isinstance(inner, list):
            inner.append("mark")
        elif isinstance(inner, dict):
            inner["mark"] = 1
    assert (lower, upper) == before


@given(layers, layers)
def test_nulls_remove_and_never_stay(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    merged = merge(lower, upper)
    assert not has_null(merged)
    for key, value in upper.items():
        assert (key in merged) == (value is not None)


@given(layers)
def test_nothing_is_neutral(values: dict[str, Any]) -> None:
    assert merge(values, {}) == merge({}, values)
    assert merge(merge({}, values), {}) == merge({}, values)


@given(layers, layers)
def test_what_the_upper_does_not_speak_of_stays(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    merged, alone = merge(lower, upper), merge({}, lower)
    for key in alone.keys() - upper.keys():
        assert merged[key] == alone[key]


@given(layers, layers, layers)
def test_without_nulls_it_does_not_matter_what_is_merged_first(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    a, b, c = (merge({}, x) for x in (a, b, c))
    if all(kinds_agree(x, y) for x, y in ((a, b), (b, c), (a, c))):
        assert merge(merge(a, b), c) == merge(a, merge(b, c))


def kinds_agree(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """A mapping over a scalar replaces it, so that the order of merging would matter."""
    return all(type(a[k]) is type(b[k]) and (not isinstance(a[k], dict) or kinds_agree(a[k], b[k])) for k in a.keys() & b.keys())


@given(layers, layers)
def test_four_lists_append_and_others_are_replaced(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    lower["pre_run"], upper["pre_run"] = [1], [2]
    lower["a"], upper["a"] = [1], [2]
    lower["sandbox"] = {"env_passthrough": ["X"], "ignore_patterns": ["x"], "pre_run": [1]}
    upper["sandbox"] = {"env_passthrough": ["Y"], "ignore_patterns": ["y"], "pre_run": [2]}
    merged = merge(lower, upper)
    assert merged["pre_run"] == [1, 2]
    assert merged["a"] == [2]
    assert merged["sandbox"] == {"env_passthrough": ["X", "Y"], "ignore_patterns": ["y"], "pre_run": [2]}


def test_appended_lists_have_orders_of_their_own() -> None:
    def layer(name: Any) -> Layer:
        return Layer(
            name=name, values={"sandbox": {"template_sources": [name], "env_passthrough": [name]}, "pre_run": [name], "post_run": [name]}
        )

    got = combine([layer(name) for name in ("default", "experiment", "task", "variant")])
    assert got["sandbox"]["template_sources"] == ["task", "default", "experiment", "variant"]
    assert got["sandbox"]["env_passthrough"] == ["default", "experiment", "task", "variant"]
    assert got["pre_run"] == ["default", "experiment", "variant", "task"]
    assert got["post_run"] == ["task", "variant", "experiment", "default"]


def test_a_null_takes_what_lower_layers_appended() -> None:
    default = Layer(name="default", values={"sandbox": {"env_passthrough": ["A"]}, "pre_run": [1]})
    task = Layer(name="task", values={"sandbox": None, "pre_run": None})
    variant = Layer(name="variant", values={"sandbox": {"env_passthrough": ["B"]}})
    assert combine([default, task]) == {}
    assert combine([default, task, variant]) == {"sandbox": {"env_passthrough": ["B"]}}


NAMES = {"claude": "claude", "claude-code": "claude", "codex": "codex", "scripted": "scripted"}


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ({"type": "claude", "model": "m", "env": {"A": "1"}}, {"type": "codex"}, {"type": "codex"}),
        ({"type": "claude", "model": "m"}, {"type": "claude-code"}, {"type": "claude-code", "model": "m"}),
        ({"model": "m", "env": {"A": "1"}}, {"type": "codex"}, {"type": "codex", "model": "m", "env": {"A": "1"}}),
        ({"type": "claude", "scripted": {"steps": []}}, {"type": "scripted"}, {"type": "scripted", "scripted": {"steps": []}}),
        ({"type": "claude", "model": "m"}, {"model": "n"}, {"type": "claude", "model": "n"}),
        ({"type": "claude"}, {}, {"type": "claude"}),
    ],
)
def test_fields_for_another_agent_are_dropped(lower: dict[str, Any], upper: dict[str, Any], expected: dict[str, Any]) -> None:
    stack = [Layer(name="task", values={"agent": lower}), Layer(name="flags", values={"agent": upper})]
    assert combine(without_foreign_fields(stack, NAMES))["agent"] == expected


def test_a_layer_without_a_type_belongs_to_the_one_below_by_some_fields() -> None:
    stack = [
        Layer(name="experiment", values={"agent": {"type": "claude"}}),
        Layer(name="task", values={"agent": {"model": "m", "effort": "high", "args": ["-x"], "env": {"A": "1"}}}),
        Layer(name="flags", values={"agent": {"type": "codex"}}),
    ]
    assert combine(without_foreign_fields(stack, NAMES))["agent"] == {"type": "codex", "env": {"A": "1"}}
    assert combine(without_foreign_fields(stack[:2], NAMES))["agent"]["model"] == "m"
