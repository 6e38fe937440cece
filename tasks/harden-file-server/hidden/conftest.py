"""A document root with a secret beside it; comes along with each hidden test file of this folder."""

import pytest


@pytest.fixture
def root(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (outside / "index.html").write_text("secret")
    made = tmp_path / "root"
    for folder in ("docs", "empty", ".git", "docs/.hidden", "a b"):
        (made / folder).mkdir(parents=True)
    for name in (
        "index.html",
        "docs/index.html",
        "docs/page.html",
        ".git/config",
        ".env",
        "docs/.hidden/x",
        "a b/ü.txt",
        "100%.txt",
        "%2e.txt",
    ):
        (made / name).write_text(name, encoding="utf-8")
    (made / "inside.html").symlink_to("docs/page.html")
    (made / "leak.txt").symlink_to(outside / "secret.txt")
    (made / "leak").symlink_to(outside)
    (made / "loop").symlink_to("loop")
    (made / "dangling").symlink_to("nothing")
    (tmp_path / "root-private").mkdir()
    (tmp_path / "root-private" / "secret.txt").write_text("secret")
    (made / "sibling.txt").symlink_to(tmp_path / "root-private" / "secret.txt")
    return made
