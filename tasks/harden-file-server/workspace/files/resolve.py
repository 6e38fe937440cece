"""From the path of a request to a file."""

import os
from pathlib import Path
from urllib.parse import unquote


class NotFound(Exception):
    """There is no such file, or it is none of the client's business."""


def resolve(root: Path, url_path: str) -> Path:
    """The file that a request means."""
    path = os.path.join(root, unquote(url_path).lstrip("/"))
    if "../" in url_path:
        raise NotFound(url_path)
    if os.path.isdir(path):
        path = os.path.join(path, "index.html")
    if not os.path.exists(path):
        raise NotFound(url_path)
    return Path(path)
