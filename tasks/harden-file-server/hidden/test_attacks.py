import os

import pytest
from files import NotFound, resolve


@pytest.mark.parametrize(
    "url",
    [
        "/../outside/secret.txt",
        "/docs/../../outside/secret.txt",
        "/%2e%2e/outside/secret.txt",
        "/..%2foutside%2fsecret.txt",
        "/%2e%2e%2foutside/secret.txt",
        "/docs/%2E./index.html",
        "/docs/..",
        "/..",
        "..",
        "/..\\outside\\secret.txt",
        "/docs\\page.html",
        "/docs%5cpage.html",
    ],
)
def test_no_way_up(root, url):
    with pytest.raises(NotFound):
        resolve(root, url)


def test_an_absolute_path_is_below_the_root(root):
    for url in (f"/{root.parent}/outside/secret.txt", f"//{root.parent}/outside/secret.txt", f"/%2f{root.parent}/outside/secret.txt"):
        with pytest.raises(NotFound):
            resolve(root, url)


@pytest.mark.parametrize("url", ["/leak.txt", "/leak/secret.txt", "/leak/", "/leak", "/sibling.txt", "/loop", "/dangling"])
def test_links_do_not_lead_out(root, url):
    with pytest.raises(NotFound):
        resolve(root, url)


@pytest.mark.parametrize("url", ["/.git/config", "/%2egit/config", "/.env", "/docs/.hidden/x", "/docs/%2ehidden/x"])
def test_hidden_files_stay_hidden(root, url):
    with pytest.raises(NotFound):
        resolve(root, url)


def test_odd_requests_are_not_found(root):
    for url in ("/index.html%00", "/\0", "/%ff%fe", "/" + "a" * 5000, "/" + "a/" * 3000, "/\ud800", "/empty/"):
        with pytest.raises(NotFound):
            resolve(root, url)


def test_decoding_happens_once(root):
    with pytest.raises(NotFound):
        resolve(root, "/%252e%252e/outside/secret.txt")
    assert resolve(root, "/%252e.txt").name == "%2e.txt"


def test_plain_files_only(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(NotFound):
        resolve(root, "/pipe")
    with pytest.raises(NotFound):
        resolve(root, "/empty")
