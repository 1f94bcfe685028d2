"""README.md as a package index shows it: links and pictures lead to the repository that pyproject.toml names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r'^Source\s*=\s*"(.+?)/?"$', re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)")
PICTURE = re.compile(r'<picture>.*?<img alt="([^"]*)" src="([^"]+)">\s*</picture>', re.DOTALL)


def dynamic_metadata(field: str, settings: Mapping[str, Any], project: object = None) -> dict[str, str]:
    """Return the field `readme`, as scikit-build-core asks for it."""
    found = SOURCE.search((ROOT / "pyproject.toml").read_text("utf-8"))
    text = (ROOT / "README.md").read_text("utf-8")
    return {"content-type": "text/markdown", "text": absolute(text, found[1]) if found else text}


def absolute(text: str, source: str) -> str:
    """Return the text with the light pictures, which every index shows, and with addresses for paths."""
    shown = PICTURE.sub(rf"![\1]({source}/raw/HEAD/\2)", text)
    return LINK.sub(rf"{source}/blob/HEAD/\1", shown)
