"""Safe text: redaction of secrets, JSON that every reader takes, terminal output without an agent's escape codes.

Standard library only. Run by path (`python -I -S text.py SOURCE TARGET` or `text.py --tree FOLDER`, secrets as JSON on
stdin) it redacts in a process of its own, so that a large log holds up no other trial.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import itertools
import json
import math
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

REDACTED = "[REDACTED]"
MARK = "[removed by pytest-codeprobe: the file held a secret]\n"
MIN_SECRET = 8  #: characters; shorter values would hit ordinary text
_CHUNK = 1 << 20
_HAS_NAMELESS = sys.platform == "linux" and os.path.isdir("/proc/self/fd")  # files that get their name once they are written
#: names of environment variables whose values are secrets
SECRET_NAME = re.compile(r"(?i)(^|_)(api_?key|key|secret|token|password|passwd|credential|credentials|auth|pat)($|_)")
# CSI, OSC (ended by BEL or ST), other two-byte escapes; C1 controls are dropped with the rest below
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[@-Z\\-_])")
#: where a text was cut, perhaps by somebody who does not know the secrets, or coloured: what lies beside it can be a part of one
_GAP = r"(?:\x1b|\\u001[bB]|\\x1b|\\e|\\033)\[[0-9;]*m|\[(?:…|\\u2026) \d+ [a-z]+ left out (?:…|\\u2026)\]|…|\\u2026|\.{3,}"
_AROUND = ("\n", "\\n", "\ufffd", "\\ufffd")  #: what may stand between it and the text: a character was cut, too
_GAP_LENGTH = 80  #: bytes; more than any of them takes
_PART = 6  #: characters from which a part of a secret is taken out; fewer give nothing away
_URL_SAFE = str.maketrans("+/", "-_")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")


def is_secret_name(name: str) -> bool:
    """Whether an environment variable's name says that its value is a key."""
    return SECRET_NAME.search(name) is not None


def secret_values(environ: Mapping[str, str], names: Iterable[str] = ()) -> frozenset[str]:
    """Values that must not leave a trial: of variables that look like keys, and of those named by the user."""
    wanted = set(names)
    return frozenset(v for k, v in environ.items() if len(v) >= MIN_SECRET and (k in wanted or is_secret_name(k)))


class Redactor:
    """Replaces known secret values in text and files: raw, JSON-escaped, on one line, as Python shows them, in base64, in URLs.

    Beside a cut (`shorten`, `one_line`, `ending`, `...`) also a part of one: a net below those who take them out before cutting.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.secrets = tuple(sorted({s for s in values if len(s) >= MIN_SECRET}, key=lambda s: (-len(s), s)))
        forms = dict.fromkeys(f for s in self.secrets for f in _forms(s))
        ordered = sorted(forms, key=len, reverse=True)
        self._forms = tuple(form.encode("utf-8", "surrogatepass") for form in ordered)
        self.longest = max(map(len, self._forms), default=0)
        self._text = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._bytes = re.compile(b"|".join(map(re.escape, self._forms))) if ordered else None
        self._parts, self._byte_parts = _Parts(ordered, _GAP, _AROUND), _Parts(self._forms, _GAP.encode(), [a.encode() for a in _AROUND])

    def __bool__(self) -> bool:
        return self._text is not None

    def text(self, value: str) -> str:
        """The value without secrets."""
        if self._text is None:
            return value
        value = self._text.sub(REDACTED, value)
        if "\x1b" in value and self._text.search(bare := plain(value)):
            value = self._text.sub(REDACTED, bare)  # a colour in the middle of it, which no terminal would show
        return self._parts.removed(value, REDACTED)

    def data(self, value: bytes) -> bytes:
        """The same for bytes of unknown encoding."""
        if self._bytes is None:
            return value
        whole = self._bytes.sub(REDACTED.encode(), value) if self.found(value) else value
        return self._byte_parts.removed(whole, REDACTED.encode())

    def found(self, value: bytes) -> bool:
        """Whether there is a secret in it."""
        return any(form in value for form in self._forms)  # each by itself: several times faster than the pattern of all

    def json(self, value: Any) -> Any:
        """A JSON value with every string in it redacted, keys too."""
        if self._text is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.json(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(v) for v in value]
        return value

    def stream(self, source: BinaryIO, target: BinaryIO) -> None:
        """Copy with secrets replaced; a secret that lies across two reads is found, memory stays flat."""
        held = b""
        while chunk := source.read(_CHUNK):
            block = held + chunk
            if self._bytes is None:
                target.write(block)
                held = b""
                continue
            cut = self._undivided(block)
            target.write(self.data(block[:cut]))
            held = block[cut:]
        target.write(self.data(held))

    def _undivided(self, block: bytes) -> int:
        """Up to where a block can be told what to replace, whatever follows it."""
        assert self._bytes is not None
        cut = latest = max(0, len(block) - 2 * self.longest - _GAP_LENGTH)
        for match in self._bytes.finditer(block):
            if match.start() < cut < match.end():
                cut = match.start()  # decided once more of the file is known
        for start, *_, end in reversed(list(self._byte_parts.places(block))):
            if start < cut < end:
                cut = start
        return cut or latest  # 0 takes a text made for it; memory stays flat then, too


AnyText = TypeVar("AnyText", str, bytes)


class _Parts(Generic[AnyText]):
    """Finds what is left of a secret beside a cut: its beginning before one, its end after one."""

    def __init__(self, forms: Iterable[AnyText], gap: AnyText, around: Iterable[AnyText]) -> None:
        self._forms: tuple[AnyText, ...] = tuple(forms)
        self._gap: re.Pattern[AnyText] = re.compile(gap)
        self._around: tuple[AnyText, ...] = tuple(around)

    def _gaps(self, value: AnyText) -> Iterator[tuple[int, int]]:
        done = 0
        for gap in self._gap.finditer(value):
            start, end = gap.span()
            while found := next((a for a in self._around if value.endswith(a, done, start)), None):
                start -= len(found)
            while found := next((a for a in self._around if value.startswith(a, end)), None):
                end += len(found)
            yield start, end
            done = end

    def places(self, value: AnyText) -> Iterator[tuple[int, int, int, int]]:
        """Each cut that has such a part beside it: where the part before it begins, the cut, the end of the part behind it."""
        for start, end in self._gaps(value):
            before, after = self._size(value, start, before=True), self._size(value, end, before=False)
            if before or after:
                yield start - before, start, end, end + after

    def removed(self, value: AnyText, instead: AnyText) -> AnyText:
        """The value without such parts."""
        done = 0
        pieces: list[AnyText] = []
        for first, start, end, last in self.places(value) if self._forms else ():
            for begins, ends in ((first, start), (end, last)):
                if done <= begins < ends:
                    pieces += [value[done:begins], instead]
                    done = ends
        pieces.append(value[done:])
        return value[:0].join(pieces)

    def _size(self, value: AnyText, at: int, *, before: bool) -> int:
        """Length of what ends there and is the beginning of a secret, or begins there and is the end of one; 0: nothing of the kind."""
        anchor, longest = value[max(0, at - _PART) : at] if before else value[at : at + _PART], 0
        for form in self._forms if len(anchor) == _PART else ():
            found = form.find(anchor)
            while found >= 0:
                fits = value.endswith(form[: found + _PART], 0, at) if before else value.startswith(form[found:], at)
                longest = max(longest, (found + _PART if before else len(form) - found) if fits else 0)
                found = form.find(anchor, found + 1)
        return longest


def _forms(secret: str) -> tuple[str, ...]:
    shown = dict.fromkeys(s for s in (secret, plain(secret), one_line(secret, len(secret))) if len(s) >= MIN_SECRET)
    written = [form for s in shown for form in (s, json.dumps(s)[1:-1], json.dumps(s, ensure_ascii=False)[1:-1], repr(s)[1:-1])]
    return (*written, *_encoded(secret.encode("utf-8", "surrogatepass")))


def _encoded(secret: bytes) -> Iterator[str]:
    """As a part of something in base64, wherever it begins there, and in URLs."""
    for before in range(3):  # bytes of another's in its first group; what these have a bit of, and what follows, is left out
        text = binascii.b2a_base64(bytes(before) + secret, newline=False).decode()
        part = text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
        yield from (part, part.translate(_URL_SAFE))
    quoted = "".join(chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in secret)
    yield from (quoted, re.sub("%..", lambda code: code[0].lower(), quoted), quoted.replace("%20", "+"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def json_line(value: Any) -> str:
    """One line of JSON in pure ASCII without a newline at its end.

    Infinite numbers become null and lone surrogates U+FFFD, so that every strict reader takes the line.
    """
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_finite(value))
    return _lone_surrogates(text)


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_ESCAPED_PAIR = re.compile(r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _lone_surrogates(text: str) -> str:
    if "\\ud" not in text:
        return text
    return _ESCAPED_PAIR.sub(lambda m: m[0] if len(m[0]) in (2, 12) else "\\ufffd", text)


def plain(value: str) -> str:
    """Text for a terminal, a log or JUnit: no escape sequences, no controls but tab and newline, no lone surrogates."""
    if value.isascii() and value.isprintable():
        return value
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", value).replace("\r\n", "\n").replace("\r", "\n"))


def shorten(value: str, limit: int = 2000) -> str:
    """At most `limit` characters: the head and the tail, and how much was left out between them."""
    if len(value) <= limit:
        return value
    mark = f"\n[… {len(value) - limit} characters left out …]\n"
    head = limit // 2
    return value[:head] + mark + value[len(value) - (limit - head) :]


def ending(value: str, limit: int) -> str:
    """The last `limit` characters, led by … where there are more."""
    return value if len(value) <= limit else f"…{value[len(value) - limit + 1 :]}"


def one_line(value: str, limit: int = 200) -> str:
    """The text on one line, for a summary or an error."""
    flat = " ".join(plain(value).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


@contextlib.contextmanager
def whole_file(path: str | Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to be written that gets its name at the end, if nothing was raised: a reader sees the old one or all of the new one.

    Until then it has no name at all, so that kill -9 leaves nothing of it; where a file system can't do that, a temporary one
    beside it. `replace=False`: FileExistsError where there is one already.
    """
    fd, part = _new_file(path)
    try:
        with open(fd, "wb") as file:
            yield file
            file.flush()
            _give_name(fd, part, path, replace)
    except BaseException:
        _forget(part)
        raise


def write_whole(path: str | Path, text: str | bytes, *, replace: bool = True) -> None:
    """Write a file's content, all or nothing; see whole_file."""
    fd, part = _new_file(path)
    try:
        rest = memoryview(text.encode() if isinstance(text, str) else text)
        while rest:
            rest = rest[os.write(fd, rest) :]
        _give_name(fd, part, path, replace)
    except BaseException:
        _forget(part)
        raise
    finally:
        os.close(fd)


def _new_file(path: str | Path) -> tuple[int, str]:
    """A descriptor, and the temporary name; empty where there is none."""
    if _HAS_NAMELESS:
        try:
            return os.open(os.path.dirname(path) or ".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666), ""
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):  # the file system, an old kernel
                raise
    part = _temporary(path)
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), part


def _temporary(path: str | Path) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.{secrets.token_hex(4)}")


def _give_name(fd: int, part: str, path: str | Path, replace: bool) -> None:
    """Give a new file its name, in the place of what has it where that may be."""
    try:
        if not part:
            # with a folder's descriptor, though none is needed: without one the link would be one to /proc
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        elif not replace:
            os.link(part, path)
            os.unlink(part)
        else:
            os.replace(part, path)
    except FileExistsError:
        if not replace:
            raise
        part = _temporary(path)  # for the moment that a rename takes
        os.link(f"/proc/self/fd/{fd}", part, src_dir_fd=fd, follow_symlinks=True)
        try:
            os.replace(part, path)
        except BaseException:
            _forget(part)
            raise


def _forget(part: str) -> None:
    if part:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def holds_secret(path: str, redactor: Redactor) -> bool:
    """Whether a regular file holds a secret; read in chunks that overlap."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        held, size = b"", min(_CHUNK, os.fstat(fd).st_size + 1)
        while chunk := os.read(fd, size):
            if redactor.found(block := held + chunk):
                return True
            held = block[-redactor.longest :]
    finally:
        os.close(fd)
    return False


def scrub(folder: str, redactor: Redactor) -> int:
    """Replace each file below `folder` that holds a secret, and each link that leads to one, by a mark; how many there were.

    What has a secret in its name gets another one, and counts too.
    """
    count = 0
    for parent, folders, names in os.walk(folder, topdown=False):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            linked = stat.S_ISLNK(mode) and redactor.found(os.fsencode(os.readlink(path)))
            holds = linked or (stat.S_ISREG(mode) and holds_secret(path, redactor))
            if holds:
                os.unlink(path)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(MARK)
            named = redactor.found(os.fsencode(name))
            if named:
                os.rename(path, _other_name(parent))
            count += holds or named
    return count


def _other_name(parent: str) -> str:
    """A free name for what may not keep its own."""
    return next(path for n in itertools.count(1) if not os.path.lexists(path := os.path.join(parent, f"{REDACTED}-{n}")))


def _main() -> None:
    redactor = Redactor(json.loads(sys.stdin.buffer.read()))
    if sys.argv[1] == "--tree":
        sys.stdout.write(str(scrub(sys.argv[2], redactor)))
        return
    with open(sys.argv[1], "rb") as reader, whole_file(sys.argv[2]) as writer:
        redactor.stream(reader, writer)


if __name__ == "__main__":
    _main()
