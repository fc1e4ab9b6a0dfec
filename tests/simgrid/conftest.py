"""The random workloads are those of the kernel's own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit/simulate"))
