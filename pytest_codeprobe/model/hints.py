"""What may lie behind the words of a command that did not come out as wanted."""

from __future__ import annotations

import os
import re
import shutil

_NOT_FOUND = re.compile(
    r"(?:^|[\s'\"`])([\w.+-]+)['\"`]?: (?:command )?not found|(?:command not found|not found): ([\w.+-]+)", re.MULTILINE
)
_TEXT = 20_000  #: characters at the end that are looked at


def not_shown(said: str, path: str, driver: str) -> str:
    """A hint in brackets where a shell missed a program that is on this machine's PATH; else nothing."""
    for match in reversed(list(_NOT_FOUND.finditer(said[-_TEXT:]))):
        name = match[1] or match[2]
        if (there := shutil.which(name, path=path)) is not None:
            if driver == "docker":
                return f" (this machine has {name}, the image does not: install it there)"
            return f" ({name} is in {os.path.dirname(there)}, which the sandbox does not show: name it in ini codeprobe_bind)"  # noqa: PTH120
    return ""
