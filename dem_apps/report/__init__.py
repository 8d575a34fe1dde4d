"""Pages about runs: ``python -m dem_apps.report``."""

from dem_apps.runtime.command import command_needs

command_needs("commands", "jinja2", "matplotlib", "scipy")
