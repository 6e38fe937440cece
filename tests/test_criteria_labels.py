"""Criterion classification_match: the label in a file or in an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.criteria.labels import ClassificationMatch
from pytest_codeprobe.model.criterion import NotApplicable, Score
from tests.fake_grading import FakeGrading


def make(kind: type[ClassificationMatch], **fields: Any) -> ClassificationMatch:
    return kind.model_validate({"type": "classification_match", **fields})


def judge(folder: Path, criterion: ClassificationMatch, *, final_message: str | None) -> Score:
    return criterion.evaluate(FakeGrading(folder=folder, agent="scripted", final_message=final_message))


@pytest.mark.parametrize(
    ("said", "allowed", "observed"),
    [
        ("spam\n", ["spam", "ham"], "spam"),
        (" SPAM ", ["spam", "ham"], "spam"),
        ("ham", ["spam", "ham"], "ham"),
        ("it is spam", ["spam", "ham"], "(other)"),
        ("\n", ["spam"], "(none)"),
        (None, ["spam"], "(none)"),
        ("anything", None, "anything"),
        ("two\nlines", None, "(other)"),
    ],
)
def test_labels_in_a_file(tmp_path: Path, said: str | None, allowed: list[str] | None, observed: str) -> None:
    grading = FakeGrading(folder=tmp_path)
    if said is not None:
        (grading.workspace / "label.txt").write_text(said)
    found = make(ClassificationMatch, path="label.txt", expected_label="Spam", allowed_labels=allowed).evaluate(grading)
    assert found.evidence["observed_label"] == observed
    assert found.value == (observed.lower() == "spam")
    assert found.evidence["expected_label"] == ("spam" if allowed else "Spam")


def test_labels_in_an_answer(tmp_path: Path) -> None:
    criterion = make(ClassificationMatch, answer=True, expected_label="ham", allowed_labels=["spam", "ham"])
    assert criterion.needs_session
    assert not make(ClassificationMatch, path="x", expected_label="a").needs_session
    for message, label in (("I thought about it.\n\n**Ham**.", "ham"), ("spam", "spam"), ("ham it is", "(other)"), ("", "(none)")):
        assert judge(tmp_path, criterion, final_message=message).evidence["observed_label"] == label
    strict = make(ClassificationMatch, answer=True, expected_label="ham", allowed_labels=["ham", "Ham"], case_sensitive=True)
    assert judge(tmp_path, strict, final_message="Ham").value == 0
    assert judge(tmp_path, make(ClassificationMatch, answer=True, expected_label="(none)"), final_message=" ").value == 1
    with pytest.raises(NotApplicable):
        judge(tmp_path, criterion, final_message=None)
