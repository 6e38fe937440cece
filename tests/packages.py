"""Small Python and Node packages, made by hand: nothing has to be built, and no index or registry of the world is asked."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str = "1.0", *, code: str = "", script: bool = True) -> Path:
    """A wheel with one module, whose `main` prints its version, and a program of that name."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\ndef main():\n    import sys\n    print({name!r}, VERSION, sys.prefix)\n{code}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for path, text in files.items()}
    record = "".join(f"{path},sha256={digests[path]},{len(files[path].encode())}\n" for path in files) + f"{info}/RECORD,,\n"
    target = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return target


def node_package(folder: Path, name: str, version: str = "1.0.0") -> Path:
    """A tarball as `npm pack` makes it: a module that is its version, and a program of that name which prints it."""
    files = {
        "package.json": json.dumps({"name": name, "version": version, "main": "main.js", "bin": {name: "cli.js"}}),
        "main.js": f"module.exports = {json.dumps(version)};\n",
        "cli.js": f"#!/usr/bin/env node\nconsole.log({json.dumps(name)}, require('./main.js'));\n",
    }
    target = folder / f"{name}-{version}.tgz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target
