# SPDX-License-Identifier: BSD-2-Clause
"""scripts/bench calls this folder; so does a run, in the lab, for load generators of its own."""

import importlib
import os
import sys

sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))  # the folder that has the package
if sys.argv[1:2] in (["pairs"], ["server"], ["client"]):
    PART = "loads"
else:
    PART = "paths" if "--paths" in sys.argv else "running"
sys.exit(importlib.import_module(f"bench.{PART}").main())
