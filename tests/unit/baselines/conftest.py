"""Jobs are those of the simulator's own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "simulate"))
