"""What stands before a release: a tag that is not ready, archives that differ from the sources, a wheel's list."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
import tarfile
from base64 import urlsafe_b64encode
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
release, sbom, readme = import_module("release"), import_module("sbom"), import_module("readme")

INFO = "layerwise-1.0.dist-info"
WHERE = f"{INFO}/sboms/layerwise.cdx.json"


def digest(content):
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.fixture
def wheel(tmp_path):
    """A wheel of Windows, as it is repaired: with a library of the compiler."""
    listed = json.dumps({"components": [{"name": "nanobind"}]}).encode()
    files = {"layerwise/_native.pyd": b"code", "layerwise.libs/msvcp140-0a1b.dll": b"library", WHERE: listed}
    record = "".join(f"{name},{digest(content)},{len(content)}\n" for name, content in files.items())
    path = tmp_path / "layerwise-1.0-cp311-cp311-win_amd64.whl"
    with ZipFile(path, "w") as made:
        for name, content in {**files, f"{INFO}/RECORD": f"{record}{INFO}/RECORD,,\n".encode()}.items():
            made.writestr(name, content)
    return path


def test_a_library_that_came_along_is_listed_and_recorded(wheel):
    assert [*release.unlisted(wheel)] == [f"{wheel.name} does not list msvcp140-0a1b.dll"]
    sbom.main([str(wheel)])
    assert [*release.unlisted(wheel)] == []
    files = sbom.read(wheel)
    first, library = json.loads(files[WHERE])["components"]
    assert first == {"name": "nanobind"}
    assert library["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"library").hexdigest()}]
    for name, found, length in csv.reader(files[f"{INFO}/RECORD"].decode().splitlines()):
        assert name == f"{INFO}/RECORD" or (found, int(length)) == (digest(files[name]), len(files[name]))
    before = wheel.read_bytes()
    sbom.main([str(wheel)])
    assert wheel.read_bytes() == before


def test_sources_that_differ_from_git_are_named(tmp_path):
    path = tmp_path / "layerwise-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("PKG-INFO", "README.md", "secret.txt"):
            archive.addfile(tarfile.TarInfo(f"layerwise-1.0/{name}"), io.BytesIO())
    said = [*release.apart_from_tree(path)]
    assert f"{path.name} lacks LICENSE" in said
    assert f"{path.name} has secret.txt, which is not in git" in said
    assert not any("README.md" in one or "tests/" in one for one in said if "src/" not in one and "csrc/" not in one)


@pytest.fixture
def ready(monkeypatch):
    """Texts of a project that may be released as v1.2.0, to be changed."""
    texts = {
        "pyproject.toml": '[project]\nversion = "1.2.0"\n[project.urls]\n'
        + "".join(f'{name} = "https://example.org/"\n' for name in release.LINKS),
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.0] - 2030-01-31\n",
        "CITATION.cff": "version: 1.2.0\n",
        "README.md": "pip install layerwise\n",
        "docs/start.md": "pip install layerwise\n",
    }
    monkeypatch.setattr(release, "text", texts.__getitem__)
    return texts


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("pyproject.toml", 'version = "1.2.0"', 'version = "1.3.0"', "The tag is v1.2.0, but the version"),
        ("pyproject.toml", 'Issues = "https://example.org/"', 'Issues = ""', "has no Issues"),
        ("CHANGELOG.md", "[1.2.0] - 2030-01-31", "[1.2.0]", "CHANGELOG.md has no section"),
        ("CITATION.cff", "1.2.0", "1.1.0", "CITATION.cff has another version"),
        ("README.md", "pip", "Not on PyPI yet: pip", "README.md says"),
        ("docs/start.md", "pip", "It is not on PyPI yet: pip", "docs/start.md says"),
    ],
)
def test_an_unready_tag_is_refused_in_one_sentence(ready, name, before, after, said):
    assert [*release.unready("v1.2.0")] == []
    ready[name] = ready[name].replace(before, after)
    with pytest.raises(SystemExit, match=said):
        release.main("tag", "v1.2.0")


def test_a_package_index_shows_addresses_in_place_of_paths(monkeypatch, tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    shown = readme.absolute(text, "https://example.org/layerwise")
    assert "](https://example.org/layerwise/blob/HEAD/docs/start.md" in shown
    assert "](https://example.org/layerwise/raw/HEAD/docs/assets/demo-light.svg)" in shown
    assert re.findall(r"\]\((?!https://)[^)]*\)|src=|srcset=", shown) == []
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[a](docs/a.md)", "utf-8")
    for urls, expected in (("", "docs/a.md"), ('Source = "https://x.org/y/"\n', "https://x.org/y/blob/HEAD/docs/a.md")):
        (tmp_path / "pyproject.toml").write_text(f"[project.urls]\n{urls}", "utf-8")
        made = readme.dynamic_metadata("readme", {})
        assert made == {"content-type": "text/markdown", "text": f"[a]({expected})"}
