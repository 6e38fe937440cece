"""Figures of labels against scikit-learn's on random labels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_codeprobe.model import metrics

LABELS = ("a", "b", "c", "some label")
ANSWERS = (*LABELS, metrics.NO_ANSWER, metrics.OTHER_ANSWER)


@pytest.fixture(scope="module")
def sklearn() -> Any:
    return pytest.importorskip("sklearn.metrics")


@given(pairs=st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(ANSWERS)), min_size=1, max_size=40))
def test_they_are_equal(sklearn: Any, pairs: list[tuple[str, str]]) -> None:
    """Answers that are none are no classes: scikit-learn leaves them out of its means by `labels`."""
    expected, observed = zip(*pairs, strict=True)
    labels = sorted({label for pair in pairs for label in pair} & set(LABELS))
    figures = metrics.of_labels(pairs)
    table = sklearn.precision_recall_fscore_support(expected, observed, labels=labels, zero_division=0)
    theirs = {"accuracy": sklearn.accuracy_score(expected, observed)}
    for name, values in zip(metrics.PER_LABEL, table, strict=False):
        theirs |= {f"{name}.{label}": value for label, value in zip(labels, values, strict=True)}
    for average in ("macro", "weighted", "micro"):
        theirs[f"{average}_f1"] = sklearn.f1_score(expected, observed, labels=labels, average=average, zero_division=0)
    assert figures == pytest.approx(theirs)


@given(scores=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_figures_of_scores(scores: list[float]) -> None:
    numpy = pytest.importorskip("numpy")
    theirs = {name: getattr(numpy, name)(scores) for name in ("mean", "median", "min", "max")}
    theirs |= {"std": numpy.std(scores, ddof=1) if len(scores) > 1 else 0, "count": len(scores), "completion_rate": len(scores) / 50}
    assert metrics.of_scores(scores, 50) == pytest.approx(theirs, abs=1e-9)
