"""Run the command :mod:`seg.check` by ``python -m seg.data check``."""

import runpy

runpy.run_module("seg.check", run_name="__main__", alter_sys=True)
