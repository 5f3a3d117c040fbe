"""`python -m ballot`."""

from __future__ import annotations

import sys

from ballot.commands import main

sys.exit(main())
