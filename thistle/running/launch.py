"""Carry out one experiment on an engine, with progress, and leave a folder that says how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import RunFailed, UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.extras import require
from thistle.experiments.plugins import is_own
from thistle.experiments.runfolder import RunFolder, disk_fault, read_json
from thistle.experiments.settings import Runtime
from thistle.results import shown
from thistle.results.detected import detected
from thistle.results.sites import findings
from thistle.running.cautions import few
from thistle.running.prepare import claim_folder
from thistle.tasks.threads import cores
from thistle.terminal.progress import RunProgress
from thistle.terminal.screen import complain, decoding, results, say, table

if TYPE_CHECKING:
    from thistle.tasks.task import Task

Runner = Callable[[Experiment, RunFolder, RunProgress], None]
Job = tuple[Runner, Experiment, RunFolder, str]
"""What runs it, the experiment, its folder, and the plan in one line."""


class Engine(StrEnum):
    """Where to run."""

    RAY = "ray"
    INLINE = "inline"


@contextmanager
def engine_for(engine: Engine, runtime: Runtime) -> Iterator[Runner]:
    """What runs experiments, for as long as the block lasts. Ray and its workers warm up while we still check."""
    if engine is Engine.INLINE:
        yield _run_inline
        return
    require("ray", "psutil")
    from thistle.engines.ray import RayProcess, check_address

    if runtime.ray_address:
        check_address(runtime.ray_address)
    with RayProcess(runtime) as process:
        yield process.carry_out


@dataclass(frozen=True)
class Launch:
    """How a command, or a call from Python, wants its runs carried out."""

    engine: Engine
    quiet: bool
    summary: bool = True

    def check(self, experiment: Experiment) -> str:
        """Everything that can be wrong, found before anything is trained; returns the plan in one line."""
        from thistle.attacks.checks import check_attack
        from thistle.attacks.evasion.table import check_evaluation
        from thistle.attacks.poisoning.build import check_own
        from thistle.running.forecast import plan
        from thistle.tasks.task import check_inputs
        from thistle.tasks.training import check_precision, pick_device

        check_precision(experiment.client.precision, pick_device(experiment.runtime.device))
        task = check_data(experiment, self.quiet)
        check_inputs(experiment, task)
        check_attack(experiment.attack, experiment.task.clients, experiment.rounds, task.classes, task.shape)
        check_own(experiment, task.classes)
        check_evaluation(experiment.evaluate, task.classes)
        if is_own(experiment.strategy.name) or is_own(experiment.attack.kind):
            from thistle.engines.inline import undisturbed
            from thistle.running.dry_run import dry_run

            with undisturbed():
                dry_run(experiment, task)
        return plan(experiment, task, self.engine.value, cores())

    @contextmanager
    def new_run(self, experiment: Experiment, exact: bool) -> Iterator[Job]:
        """A checked run in its own folder, to carry out while its engine exists."""
        with engine_for(self.engine, experiment.runtime) as runner:
            plan = self.check(experiment)
            yield runner, *claim_folder(experiment, exact), plan

    def carry_out(self, runner: Runner, experiment: Experiment, folder: RunFolder, plan: str) -> int:
        """Run (or continue) in `folder`; the exit code."""
        try:
            self.execute(runner, experiment, folder, plan)
        except RunFailed as error:
            complain(f"{error}; the log is {folder.log}")
            complain(f"continue with: thistle resume {folder.path}")
            return 1
        except KeyboardInterrupt:
            complain(f"stopped; continue with: thistle resume {folder.path}")
            raise
        if not self.quiet and folder.get_status().get("status") == "paused":
            say(f"{folder.get_status()['message']}; continue with: thistle resume {folder.path}")
        elif self.summary and not self.quiet:
            show_summary(folder)
        return 0

    def execute(self, runner: Runner, experiment: Experiment, folder: RunFolder, plan: str) -> None:
        """Run (or continue) in `folder`; raises if the run does not finish."""
        if not self.quiet:
            for line in (plan, *few(experiment)):
                say(line)
        try:
            folder.save_experiment(experiment)
            with RunProgress(folder, experiment.rounds, self.quiet) as progress:
                runner(experiment, folder, progress)
        except UserError as error:
            folder.set_status("failed", message=str(error))
            raise
        except OSError as error:
            raise disk_fault(error, folder.path) or error from None
        except EngineError as error:
            folder.set_status("failed", message=str(error))
            raise RunFailed(str(error), folder.path) from error
        except KeyboardInterrupt:
            folder.set_status("stopped", message="stopped by the user")
            raise


def check_data(experiment: Experiment, quiet: bool) -> Task:
    """The task with its data, which is decoded where nobody has done that yet."""
    from thistle.strategies.build import needs_server_data
    from thistle.tasks.task import prepare_task

    with decoding(quiet) as progress:
        return prepare_task(experiment.task, experiment.seed, needs_server_data(experiment), progress)


def _run_inline(experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
    from thistle.engines.inline import run_inline, undisturbed

    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            progress.update()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with undisturbed():
            run_inline(experiment)
    except UserError:
        raise
    except Exception as error:
        raise EngineError(folder.get_status().get("message", str(error))) from error
    finally:
        over.set()
        watcher.join()


def show_summary(folder: RunFolder, where: str = "") -> None:
    """The result on stdout: a small table and where everything is (`where`, if that is not this folder)."""
    summary = read_json(folder.summary)
    rows = [
        *([name, f"{value:.4f}"] for name, value in shown.accuracies(summary).items()),
        *([f"under {name}", f"{value:.4f}"] for name, value in summary.get("final_robust", {}).items()),
        *_further(summary),
        ["rounds", f"{summary['rounds']}"],
        *([["lost rounds", f"{summary['lost_rounds']}"]] if summary.get("lost_rounds") else []),
        ["seconds per round", f"{summary['seconds_per_round']:.3f}"],
        *(
            [["seconds of the defence", f"{defence:.3f}"]]
            if (defence := summary.get("seconds_defence")) is not None
            else []
        ),
        *([name, value] for name, value in detected(summary).items()),
        ["rejected, failed", f"{summary['rejected']}, {summary['failed']}"],
        *([["clipped", f"{summary['clipped']}"]] if summary.get("clipped") else []),
        ["model sha256", summary["model_sha256"][:16]],
    ]
    results.print(table("", ["", ""], rows))
    for found in findings(summary):
        results.print(f"{found.site} {found.text} {found.advice}", markup=False, soft_wrap=True)
    results.print(f"run folder: {where or folder.path}", markup=False, soft_wrap=True)
    if not where:
        results.print(f"next: thistle report {folder.path}", markup=False, soft_wrap=True)


def _further(summary: dict[str, Any]) -> Iterator[list[str]]:
    """Classes, clients and backdoor, where they were measured."""
    if worst := shown.worst_class(summary):
        yield ["worst class", f"{worst[1]:.4f} (class {worst[0]})"]
    if summary.get("macro_f1") is not None:
        figures = (shown.as_share(summary.get(key)) for key in ("macro_f1", "auc", "calibration_error"))
        yield ["macro-F1, AUC, calibration error", ", ".join(figures)]
    for site in summary.get("site_scores", ()):
        yield [f"client {site['client']} on its own data", f"{site['accuracy']:.4f} of {site['examples']}"]
    if clients := summary.get("client_accuracy"):
        yield ["honest clients: worst, 10th percentile", f"{clients['worst']:.4f}, {clients['p10']:.4f}"]
    if "attack_success" in summary:
        yield ["backdoor success", f"{summary['attack_success']:.4f}"]
    if lifespan := shown.lifespan(summary):
        yield ["backdoor lifespan", lifespan]
