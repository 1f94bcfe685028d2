"""Add the libraries that a repaired wheel brings along, such as MSVC's, to its list of what is in it (PEP 770).

python tools/sbom.py wheelhouse/*.whl

What is compiled in the build has listed already (csrc/sbom.json.in). Tools that repair wheels list what they bring
along in forms of their own, or not at all.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

LIST = re.compile(r"[^/]+\.dist-info/sboms/layerwise\.cdx\.json")
BROUGHT = re.compile(r"[^/]+\.(libs|dylibs)/[^/]+|.+/\.dylibs/[^/]+")


def component(name: str, content: bytes) -> dict[str, Any]:
    """Return what is said of a library: its name, which its tool made unique, and its hash."""
    digest = {"alg": "SHA-256", "content": sha256(content).hexdigest()}
    return {"type": "library", "bom-ref": name, "name": Path(name).name, "hashes": [digest]}


def with_libraries(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a wheel, of which its list names all libraries and its record what the list is now."""
    where = next(filter(LIST.fullmatch, files), None)
    brought = [component(name, content) for name, content in files.items() if BROUGHT.fullmatch(name)]
    if where is None or not brought:
        return dict(files)
    found = json.loads(files[where])
    found["components"] = [one for one in found["components"] if "hashes" not in one] + brought
    listed = json.dumps(found, indent=2).encode()
    record = f"{where.partition('/')[0]}/RECORD"
    digest = urlsafe_b64encode(sha256(listed).digest()).rstrip(b"=").decode()
    line = f"{where},sha256={digest},{len(listed)}"
    recorded = re.sub(rf"^{re.escape(where)},.*$", line, files[record].decode(), flags=re.MULTILINE)
    return {**files, where: listed, record: recorded.encode()}


def read(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        before = read(path)
        after = with_libraries(before)
        if after != before:
            with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
                for name, content in after.items():
                    wheel.writestr(name, content)
        print(f"{path.name}: {sum(map(bool, map(BROUGHT.fullmatch, after)))} libraries came along")


if __name__ == "__main__":
    main(sys.argv[1:])
