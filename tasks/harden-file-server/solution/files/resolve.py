"""From the path of a request to a file."""

from pathlib import Path
from urllib.parse import unquote


class NotFound(Exception):
    """There is no such file, or it is none of the client's business."""


def segments(url_path: str) -> list[str]:
    """The decoded path's parts; ValueError for what no honest client sends."""
    decoded = unquote(url_path.partition("?")[0], errors="strict")
    if "\0" in decoded or "\\" in decoded:
        raise ValueError("NUL or backslash")
    parts = [part for part in decoded.split("/") if part not in ("", ".")]
    if any(part.startswith(".") for part in parts):
        raise ValueError("a segment that begins with a dot")
    return parts


def resolve(root: Path, url_path: str) -> Path:
    """The real path of the plain file below root that a request means, or NotFound."""
    try:
        top = Path(root).resolve(strict=True)
        path = top.joinpath(*segments(url_path)).resolve(strict=True)
        if path.is_dir():
            path = (path / "index.html").resolve(strict=True)
        inside = path.is_relative_to(top) and path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise NotFound(url_path) from error
    if not inside:
        raise NotFound(url_path)
    return path
