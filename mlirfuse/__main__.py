"""``python -m mlirfuse COMMAND``: the programs that are run now and then."""

from __future__ import annotations

import sys

from mlirfuse.tools.main import main

if __name__ == "__main__":
    sys.exit(main())
