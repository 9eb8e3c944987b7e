"""`python -m jax_ptx check file.ptx …`: see `jax_ptx/check.py`."""

from __future__ import annotations

import sys

from jax_ptx.check import main

sys.exit(main())
