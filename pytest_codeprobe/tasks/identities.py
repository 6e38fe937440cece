"""The task ids of a run. Standard library only: no two tasks may have one id, whoever read their files."""

from __future__ import annotations

from pytest_codeprobe.errors import CodeprobeError


class Identities:
    """The task ids of a run. Two that differ only in case, or in `/` and `__`, would share a folder."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str]] = {}

    def add(self, task_id: str, where: str) -> None:
        """Note an id found at `where` (file:line). CodeprobeError DUPLICATE_TASK naming both places."""
        key = task_id.replace("/", "__").casefold()
        first_id, first = self._seen.setdefault(key, (task_id, where))
        if first == where and first_id == task_id:
            return
        same = f"task_id {task_id!r} stands twice" if first_id == task_id else f"task_id {task_id!r} and {first_id!r} are too alike"
        raise CodeprobeError(
            "DUPLICATE_TASK",
            f"{where}: {same}: here and in {first}",
            detail={"task_id": task_id, "places": [first, where], "ids": [first_id, task_id]},
        )
