"""``seg.adapt`` as one of several processes, with the decision of whether it helps taken for it; see test_adapt.py.

adapt_worker.py yes|no FLAG…
"""

from __future__ import annotations

import os
import sys

import seg.adaptation.rounds
from dem_apps.runtime.command import run_command
from seg.adapt import main
from seg.adaptation.decision import Verdict

if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # as of python -m, where the network's module is
    decided = sys.argv.pop(1) == "yes"
    seg.adaptation.rounds.decide = lambda *_arguments, **_options: Verdict(decided, "decided here")
    run_command(main)
