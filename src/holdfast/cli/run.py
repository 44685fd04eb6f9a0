"""The command run: starts a program as the driver of its jobs."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from holdfast.cli.app import FAILED, INTERRUPTED, REFUSED, USAGE, AsJson, CommandFailed, command
from holdfast.cli.drivers import STANDBY, Driver
from holdfast.cli.launcher import Launcher, Restart, begin_daemon, exit_code
from holdfast.cli.options import Settings, parse_settings
from holdfast.cli.output import console, duration, note, print_json, table, working
from holdfast.common.config_options import HighAvailabilityOptions, StateRecoveryOptions
from holdfast.common.system.modes import HighAvailabilityMode
from holdfast.runtime.driver.job_registry import JobRecord
from holdfast.runtime.driver.leadership import UNKNOWN_HOST
from holdfast.runtime.driver.restore_check import OperatorCheck, RestoreCheck

__all__: list[str] = []


Program = Annotated[Path, typer.Argument(metavar="PROGRAM", help="The Python program, which calls env.execute().")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the program.")]
Parallelism = Annotated[int | None, typer.Option("--parallelism", "-p", min=1, help="Default parallelism.")]
FromSavepoint = Annotated[
    str | None, typer.Option("--from-savepoint", "--fromSavepoint", "-s", metavar="PATH", help="Savepoint to start from.")
]
RestoredJob = Annotated[
    str | None,
    typer.Option(
        "--restored-job", metavar="NAME", help="Of a program with several jobs: the one that starts from the savepoint."
    ),
]
AllowNonRestored = Annotated[
    bool,
    typer.Option(
        "--allow-non-restored-state", "--allowNonRestoredState", "-n", help="Drop state that the program no longer has."
    ),
]
SparkMaster = Annotated[
    str | None, typer.Option("--spark-master", metavar="URL", help="Spark's master; default: this machine.")
]
Detached = Annotated[bool, typer.Option("--detached", "-d", help="Return when the job runs, and leave it running.")]
_OWN_OPTIONS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the program are the program's."""


_LONGEST_LOOK_S = 20.0
"""A driver takes over by then from an owner of whom nothing is known, unless that one lives."""
_STEPS = ("starting Python and Spark", "looking for other drivers of the job, restoring the state")


class WhenRun(str, Enum):
    """The values of ``--restart``."""

    NEVER = Restart.NEVER.value
    ALWAYS = Restart.ALWAYS.value


@command(interrupted="Interrupted before the program began.", context_settings=_OWN_OPTIONS)
def run(
    program: Program,
    arguments: Arguments = None,
    parallelism: Parallelism = None,
    settings: Settings = None,
    from_savepoint: FromSavepoint = None,
    restored_job: RestoredJob = None,
    allow_non_restored: AllowNonRestored = False,
    spark_master: SparkMaster = None,
    detached: Detached = False,
    restart: Annotated[
        WhenRun,
        typer.Option(
            help="always: start the program again when its driver has died or its job has failed; on several machines, "
            "one driver owns the job and the others stand by."
        ),
    ] = WhenRun.NEVER,
    check_restore: Annotated[
        bool,
        typer.Option(
            "--check-restore",
            help="Only tell whether the program can restore: from the savepoint of -s, or from its newest checkpoint.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Run a program: this process, or with -d one in the background, is the driver of its jobs.

    Options stand before PROGRAM, its own arguments after it. Settings in the program override options.
    """
    given = _settings(settings, parallelism, from_savepoint, restored_job, allow_non_restored, spark_master)
    if check_restore:
        _check_restore(program, arguments, given, json)
        return
    _run(program, arguments, given, detached, Restart(restart.value), json)


@command(interrupted="Interrupted before the program began.", context_settings=_OWN_OPTIONS)
def standby(
    program: Program,
    arguments: Arguments = None,
    parallelism: Parallelism = None,
    settings: Settings = None,
    from_savepoint: FromSavepoint = None,
    restored_job: RestoredJob = None,
    allow_non_restored: AllowNonRestored = False,
    spark_master: SparkMaster = None,
    detached: Detached = False,
    json: AsJson = False,
) -> None:
    """Run a program on several machines, of which one owns the job: when it dies, another one takes the job over.

    Start it on each machine with the same checkpoint directory (execution.checkpointing.dir). Ctrl-C and SIGTERM leave the
    job to another driver; when the job ends, or `holdfast cancel` or `stop` ends it, all its drivers end.
    """
    given = _settings(settings, parallelism, from_savepoint, restored_job, allow_non_restored, spark_master)
    given[HighAvailabilityOptions.TYPE.key] = HighAvailabilityMode.STORAGE.name
    _run(program, arguments, given, detached, Restart.STANDBY, json)


def _settings(
    settings: list[str] | None,
    parallelism: int | None,
    from_savepoint: str | None,
    restored_job: str | None,
    allow_non_restored: bool,
    spark_master: str | None,
) -> dict[str, str]:
    """The settings that the options stand for."""
    given = parse_settings(settings)
    if parallelism is not None:
        given["parallelism.default"] = str(parallelism)
    if from_savepoint is not None:
        given["execution.state-recovery.path"] = from_savepoint
    if restored_job is not None:
        given[StateRecoveryOptions.JOB_NAME.key] = restored_job
    if allow_non_restored:
        given["execution.state-recovery.ignore-unclaimed-state"] = "true"
    if spark_master is not None:
        given["spark.master"] = spark_master
    return given


def _run(
    program: Path, arguments: list[str] | None, given: dict[str, str], detached: bool, restart: Restart, json: bool
) -> None:
    _check_program(program)
    launcher = Launcher(program, arguments or [], given, detached, restart)
    if detached:
        _run_detached(launcher, json)
    else:
        _run_here(program, launcher, json, given.get(StateRecoveryOptions.JOB_NAME.key))


def _check_restore(program: Path, arguments: list[str] | None, given: dict[str, str], json: bool) -> None:
    """Let the program build its job, and show whether that can restore."""
    _check_program(program)
    launcher = Launcher(program, arguments or [], given, detached=False, restart=Restart.NEVER, checks=True)
    status = launcher.run(lambda job: None)
    found = launcher.checked()
    if found is None:
        raise CommandFailed(f"{program} ended without a job{f' and with exit code {status}' if status else ''}.", FAILED)
    if isinstance(found, str):
        raise CommandFailed(found + (f" It ended with exit code {status}." if status else ""), FAILED)
    if json:
        print_json(asdict(found) | {"restorable": found.restorable})
    else:
        _show_check(found)
    if not found.restorable:
        raise typer.Exit(REFUSED)


def _show_check(found: RestoreCheck) -> None:
    console.print(f"{found.path}, checkpoint {found.checkpoint_id} of job {found.job_name}", markup=False)
    rows = [(each.uid, f"({each.kind})", each.verdict, _parallelism(each)) for each in found.operators]
    rows += [(each.uid, each.state, each.verdict, each.reason or each.declared or each.stored) for each in found.states]
    if rows:
        rows.sort(key=lambda row: row[0])  # the states of an operator below it
        console.print(table(["UID", "STATE", "VERDICT", ""], [tuple(map(Text, row)) for row in rows]))
    for text in found.notes:
        console.print(f"- {text}", markup=False)
    for text in found.problems:
        note(text)
    said = "The program can restore from it." if found.restorable else "The program cannot restore from it."
    console.print(said, markup=False)


def _parallelism(operator: OperatorCheck) -> str:
    before, now = operator.stored_parallelism, operator.parallelism
    if before and now and before != now:
        return f"parallelism {before} -> {now}"
    return f"parallelism {now or before}" if now or before else ""


def _check_program(program: Path) -> None:
    if not program.is_file():
        raise CommandFailed(f"There is no program {program}. `holdfast new DIR` makes one to start from.", USAGE)
    try:
        compile(program.read_bytes(), str(program), "exec")
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        line = (error.text or "").rstrip()
        mark = f"\n  {line}\n  {' ' * ((error.offset or 1) - 1)}^" if line else ""
        raise CommandFailed(f"{where}: {error.msg}{mark}", FAILED) from None
    except ValueError as error:
        raise CommandFailed(f"{program} is not a Python program: {error}", FAILED) from None


def _run_here(program: Path, launcher: Launcher, json: bool, restored_job: str | None) -> NoReturn:
    status = launcher.run(_tell_start)
    jobs = launcher.jobs()
    code = exit_code(status)
    if launcher.interrupted:
        code = 128 + launcher.interrupted
    elif status == 0 and not jobs:
        raise CommandFailed(f"{program} ended without a job: call env.execute(NAME) at its end.", FAILED)
    if restored_job is not None and restored_job not in {job.name for job in jobs}:
        ran = ", ".join(repr(job.name) for job in reversed(jobs)) or "none"
        note(f"No job {restored_job!r} ran: nothing has started from the savepoint. The program's jobs: {ran}.")
    if json:
        print_json({"jobs": [_shown(job) for job in jobs], "exit_code": code})
    else:
        _tell_end(jobs, status, launcher)
    raise typer.Exit(code)


def _tell_start(job: JobRecord) -> None:
    if job.stands_by_for:
        note(f"This driver stands by for job {job.name}, which a driver on {job.stands_by_for} owns.")
        return
    note(f"Job {job.name} ({job.job_id}) runs. Dashboard: {job.url}/#/jobs/{job.job_id}")


def _tell_end(jobs: list[JobRecord], status: int, launcher: Launcher) -> None:
    for job in jobs[:1]:
        note(f"Job {job.name}: {job.state or 'RUNNING'} after {duration(job.ended_ms - job.started_ms)}.")
        if job.state == "SUSPENDED":
            note("A standby driver takes the job over; if there is none, run the program again.")
        elif job.state != "FINISHED":
            note(
                "Run the program again to resume from its last checkpoint, if there is one."
                if job.checkpoints
                else "It kept no checkpoints."
            )
    if launcher.interrupted and not jobs:
        note("Interrupted before a job ran.")
    elif status < 0 and not launcher.interrupted:
        note(f"The driver was killed by signal {-status}.")


def _run_detached(launcher: Launcher, json: bool) -> None:
    child = os.fork()
    if child == 0:
        _supervise(launcher)
    try:
        job = _wait_for_job(launcher, child, json)
    except KeyboardInterrupt:
        os.kill(child, 15)
        note("The start was interrupted; the program is being stopped.")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(_shown(job) | {"driver_pid": job.pid, "supervisor_pid": child, "log": str(launcher.log)})
        return
    _tell_start(job)
    note(f"Log: {launcher.log} (`holdfast logs {job.job_id[:8]}`)")


def _supervise(launcher: Launcher) -> NoReturn:
    """Run the program in this process, which is in the background, and never return."""
    code = FAILED
    try:
        begin_daemon(launcher.log)
        code = exit_code(launcher.run(lambda job: None))
        note(f"The program ended with exit code {code}.")
    finally:
        os._exit(code)


def _wait_for_job(launcher: Launcher, child: int, quiet: bool) -> JobRecord:
    """Wait until the program's job runs or has ended.

    Raises:
        CommandFailed: the program ended without a job.
    """
    waits = 0.0
    with working(_STEPS[0], quiet) as update:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            job = next(iter(launcher.jobs()), None)
            step = 0
            if job is not None:
                state = job.state or _state(job)
                waits = waits or (time.monotonic() if state == STANDBY else 0.0)
                looked = job.stands_by_for != UNKNOWN_HOST or time.monotonic() - waits > _LONGEST_LOOK_S
                if state in ("RUNNING", "FINISHED") or (state == STANDBY and looked):
                    return job
                step = 1
            if ended:
                raise CommandFailed(_failed_start(launcher, os.waitstatus_to_exitcode(status)))
            update(_STEPS[step], (step, len(_STEPS)))
            time.sleep(0.2)  # another process starts the job, and tells by files


def _state(job: JobRecord) -> str:
    if job.stands_by_for:
        return STANDBY
    try:
        state: str = Driver(job.url, "", job, timeout=5).get(f"/jobs/{job.job_id}")["state"]
    except CommandFailed:
        return ""  # it begins or ends at this moment
    return state


def _failed_start(launcher: Launcher, code: int) -> str:
    try:
        said = launcher.log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        said = []
    if code == 0:
        return f"The program ended without a job: call env.execute(NAME) at its end. Log: {launcher.log}"
    return "\n".join([f"The program failed with exit code {code}; the end of {launcher.log}:", *said[-20:]])


def _shown(job: JobRecord) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "name": job.name,
        "state": job.state or (STANDBY if job.stands_by_for else "RUNNING"),
        "url": job.url,
    }
