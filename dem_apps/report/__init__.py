"""Pages about runs: ``python -m dem_apps.report``."""
