import pytest
from files import NotFound, resolve


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/", "index.html"),
        ("/index.html", "index.html"),
        ("/docs", "docs/index.html"),
        ("/docs/", "docs/index.html"),
        ("/docs//./page.html", "docs/page.html"),
        ("/docs/page.html?x=1&y=../..", "docs/page.html"),
        ("/a%20b/%C3%BC.txt", "a b/ü.txt"),
        ("/100%25.txt", "100%.txt"),
        ("/inside.html", "docs/page.html"),
    ],
)
def test_served(root, url, name):
    assert resolve(root, url) == (root / name).resolve()


def test_the_root_may_be_a_link(root, tmp_path):
    link = tmp_path / "www"
    link.symlink_to(root)
    assert resolve(link, "/docs/page.html") == (root / "docs/page.html").resolve()


def test_what_is_not_there(root):
    with pytest.raises(NotFound):
        resolve(root, "/nothing.html")
