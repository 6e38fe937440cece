"""Figures over many trials of one criterion. Formulas as scikit-learn has them (`precision_recall_fscore_support`, `zero_division=0`)."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

#: of any criterion
PLAIN = ("mean", "median", "std", "min", "max", "count", "completion_rate")
#: of classifications, beside precision, recall and f1 of each label
CLASSIFICATION = ("accuracy", "macro_f1", "weighted_f1", "micro_f1")
PER_LABEL = ("precision", "recall", "f1")
NO_ANSWER, OTHER_ANSWER = "(none)", "(other)"  #: labels of an answer that is none: never classes of their own


def is_known(metric: str) -> bool:
    """Whether a threshold can name it; `precision.<label>` and the like with any label."""
    head, dot, label = metric.partition(".")
    return metric in PLAIN or metric in CLASSIFICATION or (head in PER_LABEL and bool(dot and label))


def label_of(metric: str) -> str | None:
    """The label whose precision, recall or f1 a metric is; None for any other metric."""
    head, _, label = metric.partition(".")
    return label if head in PER_LABEL and label else None


def figure(figures: Mapping[str, float], metric: str) -> float | None:
    """One of several figures. 0 for a label that was neither expected nor given; None where nothing is known."""
    return figures.get(metric, 0.0 if label_of(metric) is not None and "accuracy" in figures else None)


def of_scores(scores: Sequence[float], total: int) -> dict[str, float]:
    """Figures of scores, of which there could have been `total`. The standard deviation is the sample's; 0 for one score."""
    figures = {"count": float(len(scores)), "completion_rate": len(scores) / total if total else 0.0}
    if not scores:
        return figures
    return {
        "mean": math.fsum(scores) / len(scores),
        "median": statistics.median(scores),
        "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "min": min(scores),
        "max": max(scores),
        **figures,
    }


def of_labels(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Figures of (expected, observed) labels. An answer that is none counts as a miss of what was expected."""
    if not pairs:
        return {}
    labels = sorted({label for pair in pairs for label in pair} - {NO_ANSWER, OTHER_ANSWER})
    expected, observed = Counter(e for e, _ in pairs), Counter(o for _, o in pairs)
    right = Counter(e for e, o in pairs if e == o)
    figures = {"accuracy": right.total() / len(pairs)}
    f1s: dict[str, float] = {}
    for label in labels:
        precision = _ratio(right[label], observed[label])
        recall = _ratio(right[label], expected[label])
        f1s[label] = _ratio(2 * right[label], observed[label] + expected[label])
        figures |= {f"precision.{label}": precision, f"recall.{label}": recall, f"f1.{label}": f1s[label]}
    support = sum(expected[label] for label in labels)
    figures["macro_f1"] = _ratio(math.fsum(f1s.values()), len(labels))
    figures["weighted_f1"] = _ratio(math.fsum(f1s[label] * expected[label] for label in labels), support)
    figures["micro_f1"] = _ratio(2 * sum(right[label] for label in labels), sum(observed[label] for label in labels) + support)
    return figures


def confusion(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """How often each expected label was answered by which."""
    table: dict[str, dict[str, int]] = {}
    for expected, observed in sorted(pairs):
        row = table.setdefault(expected, {})
        row[observed] = row.get(observed, 0) + 1
    return table


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
