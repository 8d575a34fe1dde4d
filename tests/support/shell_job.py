"""A job that is a shell script."""

from dem_apps.jobs.executor import Job


class Shell(Job):
    """``module`` is the script; RUN is its run folder, which is there and counts its starts."""

    def command(self) -> list[str]:
        return [
            "sh",
            "-c",
            f'RUN={self.run}; mkdir -p "$RUN"; echo $$ >> "$RUN/starts"; {self.module}',
        ]
