"""Questions that only a pytest can answer, in this process: with the project's conftest.py files, ini and hooks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError


def asked(flag: str, arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """What a pytest writes to the file that `flag` names: the text, and its content as JSON. The error that it met, if it met one."""
    with tempfile.TemporaryDirectory(prefix="codeprobe-answer-") as folder:
        answer = Path(folder, "answer.json")
        # by name, for those who switch off the loading of installed plugins
        pytest.main(["-p", "codeprobe", f"{flag}={answer}", *arguments])
        try:
            text = answer.read_text(encoding="utf-8")
        except FileNotFoundError:
            refused = "pytest refused its command line or configuration; what it says is on stderr"
            raise CodeprobeError("USAGE_ERROR", refused) from None
    content: dict[str, Any] = json.loads(text)
    if "error" in content:
        wrong = content["error"]
        raise CodeprobeError(wrong["code"], wrong["message"], remediation=wrong["remediation"], detail=wrong["detail"])
    return text, content
