"""Make `demo`, which is in no package that is installed, one that scripts here can import: `import checkout`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
