"""``python -m fedtailor``."""

from __future__ import annotations

import sys

from fedtailor.cli.main import main

sys.exit(main())
