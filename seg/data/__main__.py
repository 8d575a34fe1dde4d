"""``python -m seg.data check``: the command :mod:`seg.check`."""

import runpy

runpy.run_module("seg.check", run_name="__main__", alter_sys=True)
