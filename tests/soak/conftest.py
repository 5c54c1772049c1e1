"""The oracle and the calls are those of the conformance tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "conformance"))
