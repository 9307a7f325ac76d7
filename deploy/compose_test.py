"""`make compose-test`: the compose cluster from nothing to an exact answer, for real.

Builds the images unless DOVETAIL_IMAGE names them, brings the cluster up as a project of its own,
joins three streams with two thirds of the groups on one processor and too little memory, adds a
processor and removes it, restarts the manager, tries to clean up while the Spark service is down,
cleans up when it is back, compares with DuckDB, and takes everything down. Says why where no Docker
engine answers, and ends with 0 then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STREAMS = ("trades", "quotes", "reviews")
SETTINGS = {
    "COMPOSE_PROJECT_NAME": "dovetail-test",
    "PROCESSOR_MEMORY": "9MB",  # a third of what the join needs
    "MOVE_INTERVAL_S": "1",
    "REST_PORT": "17071",
    "SECRETS_DIR": "./deploy/secrets",
}
CLEANUP = ("cleanup", "prices", "--master", "spark://spark-master:7077", "--json")
HEALTHY_S_MAX = 300.0
FEED_RATE = "20000/s"  # the feed takes long enough for moves and a restart to fall into it


def main() -> int:
    """The exit code."""
    compose = _compose_command()
    if compose is None:
        print("compose-test: not run, no Docker engine answers or Compose is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        work.chmod(0o755)
        for path in (ROOT / "examples").iterdir():
            shutil.copy(path, work)
        test = ComposeTest(compose, work)
        try:
            test.run()
        except CheckError as e:
            print(f"compose-test: FAILED: {e}")
            print(test.compose("logs", "--tail", "20", check=False)[-6000:])
            return 1
        finally:
            test.say("down")
            test.compose("down", "--volumes", "--remove-orphans", check=False)
    print("compose-test: ok")
    return 0


class CheckError(Exception):
    """Something is not as it has to be."""


class ComposeTest:
    """One run."""

    def __init__(self, compose: list[str], work: Path) -> None:
        self._compose = compose
        self._work = work
        self._environment = {**os.environ, **SETTINGS, "WORK_DIR": str(work)}
        self._began_s = time.monotonic()

    def run(self) -> None:
        """All of it; CheckError says what did not go well."""
        self._call([str(ROOT / "deploy" / "make-secrets")])
        if "DOVETAIL_IMAGE" not in os.environ:
            self.say("images, of what is in this folder")
            self.compose("build", "manager", "spark-master")
        self.say("up, from nothing")
        self.compose("up", "-d")
        self._wait_until_healthy(7)
        self._call([sys.executable, "examples/stock_day.py", str(self._work / "day")])
        for stream in STREAMS:
            self._tools("stream", "create", stream, "--schema", f"day/{stream}")
        self._tools("submit", "prices.sql", "--weights", "4,1,1", "--results", "/results/prices")
        self.say("three processors, 9 MB each, two thirds of the groups on one; feeding")
        feed = [
            subprocess.Popen(
                self._in_tools_command(
                    *("dovetail", "feed", stream, f"day/{stream}", "--rate", FEED_RATE)
                ),
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for stream in STREAMS
        ]
        self.say(self._scale(4))
        self.compose("restart", "manager")
        self._wait_until_healthy(8)
        self.say("manager restarted while rows came in")
        self.say(self._scale(2))
        if any(f.wait(HEALTHY_S_MAX) for f in feed):
            raise CheckError("a feed ended with an error")
        rows = self._tools("wait", "prices", "--json")["rows"]
        moves = [m for m in self._tools("moves", "prices", "--json") if m["outcome"] == "completed"]
        self.say(f"{rows:,} rows joined, {len(moves)} moves completed")
        closed = self._tools("close", "prices", "--json")
        self.say(
            f"closed: {closed['results']:,} results, {closed['pushes']} pushes, "
            f"{closed['spilled_bytes'] / 1e6:.1f} MB on disk"
        )
        if not moves or not closed["pushes"]:
            raise CheckError("nothing was moved, or nothing went to disk")
        self.compose("stop", "spark-worker", "spark-master")
        self.say(
            self._refusal("clean-up without Spark", self._in_tools_command("dovetail", *CLEANUP))
        )
        self.compose("start", "spark-master", "spark-worker")
        self._wait_until_healthy(6)
        owed = self._tools(*CLEANUP)
        self.say(f"clean-up on the Spark service: {owed['results_cleanup']:,} results")
        self.say(
            self._in_tools(
                *("python", "check_with_duckdb.py", "prices.sql", "day", "/results/prices")
            ).strip()
        )

    def say(self, text: str) -> None:
        """A line with the seconds so far."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def compose(self, *words: str, check: bool = True) -> str:
        """What `docker compose …` prints."""
        return self._call([*self._compose, *words], check=check)

    def _scale(self, count: int) -> str:
        return self._call(self._scale_command(count)).strip()

    def _refusal(self, what: str, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self._host(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            raise CheckError(f"{what} was not refused")
        said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        if not said:
            raise CheckError(f"{what}: no clear error: {done.stderr[-2000:]}")
        return f"{what} is refused: {said[0].removeprefix('error: ')}"

    def _scale_command(self, count: int) -> list[str]:
        return [sys.executable, "-m", "dovetail", "scale", str(count)]

    def _host(self) -> dict[str, str]:
        return {
            **self._environment,
            "DOVETAIL_URL": f"http://127.0.0.1:{SETTINGS['REST_PORT']}",
            "DOVETAIL_TOKEN_FILE": "deploy/secrets/token",
        }

    def _tools(self, *words: str) -> Any:
        """What a command of ours, run within the cluster's network, says."""
        text = self._in_tools("dovetail", *words)
        return json.loads(text.strip().splitlines()[-1]) if "--json" in words else text

    def _in_tools(self, *words: str) -> str:
        return self._call(self._in_tools_command(*words))

    def _in_tools_command(self, *words: str) -> list[str]:
        return [*self._compose, "run", "--rm", "-T", "tools", *words]

    def _call(self, words: list[str], *, check: bool = True) -> str:
        done = subprocess.run(
            words, cwd=ROOT, env=self._host(), capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise CheckError(f"{' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def _wait_until_healthy(self, count: int) -> None:
        until_s = time.monotonic() + HEALTHY_S_MAX
        project = f"label=com.docker.compose.project={SETTINGS['COMPOSE_PROJECT_NAME']}"
        form = ["--filter", project, "--format", "{{.Status}}"]
        while time.monotonic() < until_s:
            states = self._call(["docker", "ps", "--filter", "health=healthy", *form]).splitlines()
            if len(states) >= count:
                self.say(f"{len(states)} containers are healthy")
                return
            time.sleep(1.0)
        raise CheckError(f"{count} containers are not healthy after {HEALTHY_S_MAX:g} s")


def _compose_command() -> list[str] | None:
    """Compose 2, else 1; None if there is no engine or no Compose."""
    for words in (["docker", "compose"], ["docker-compose"]):
        try:
            subprocess.run(["docker", "info"], capture_output=True, check=True, timeout=20)
            subprocess.run([*words, "version"], capture_output=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        return words
    return None


if __name__ == "__main__":
    sys.exit(main())
