"""The search: rung by rung, all fractions together; every run is a cell that can be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from thistle.attacks.stress.halving import FINALISTS, Tried, after_full_runs, after_short_runs, pause, rank
from thistle.attacks.stress.suite import Candidate, candidates, variations
from thistle.experiments.errors import UserError
from thistle.experiments.locks import holding
from thistle.experiments.runfolder import read_lines
from thistle.running.launch import Engine, Launch, check_data
from thistle.sweeps.cells import Cell
from thistle.sweeps.launch import carriers, fit_jobs, make_home, with_workers
from thistle.sweeps.scheduler import Carry, Scheduler
from thistle.terminal.screen import complain, say
from thistle.worst_case.document import Found, LeftOut, check_home, read_plan, write_found, write_plan
from thistle.worst_case.files import write_files
from thistle.worst_case.plan import START_UP, Plan, fit
from thistle.worst_case.question import NOBODY, Cells, Question
from thistle.worst_case.trials import Trial, has_reached

RUNGS = 3


@dataclass
class Search:
    """A question that is being answered."""

    question: Question
    home: Path
    engine: Engine
    jobs: int = 0
    quiet: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    _carries: Sequence[Carry] = ()

    def __post_init__(self) -> None:
        self.cells = Cells(self.question, self.home)
        first = self.cells.cell(NOBODY, 0.0, 0).experiment
        self.whole = Plan(first.rounds, pause(first.rounds, first.evaluate.every), self.question.seeds)

    def prepare(self) -> tuple[list[Candidate], list[LeftOut]]:
        """What can be tried and what cannot; raises UserError if nothing can, for example because data is missing."""
        if self.question.dropped:
            self._say(
                f"{', '.join(self.question.dropped)}: the experiment's own attack is left out; stress tries others"
            )
        experiment = self.cells.cell(NOBODY, 0.0, 0).experiment
        Launch(self.engine, self.quiet).check(experiment)
        task = check_data(experiment, self.quiet)
        possible, left_out = [], []
        for candidate in candidates(self.question.suite):
            reasons = {f: self.cells.refused(candidate, f, task) for f in self.question.fractions}
            bad = {fraction: reason for fraction, reason in reasons.items() if reason}
            if bad:
                left_out.append(LeftOut(candidate, list(bad), next(iter(bad.values()))))
            else:
                possible.append(candidate)
        if not possible:
            raise UserError(left_out[0].reason)
        return possible, left_out

    def run(self) -> Found:
        """All rungs, then the files."""
        possible, left_out = self.prepare()
        self.jobs = fit_jobs(self.engine, self.jobs, len(possible), self._say)
        make_home(self.home)
        with holding(self.home, "this stress search has not ended yet"):
            check_home(self.question, self.home)
            try:
                runtime = with_workers(self.cells.cell(NOBODY, 0.0, 0), self.engine, self.jobs).experiment.runtime
                with carriers(self.engine, self.jobs, runtime) as self._carries:
                    return self._climb(possible, left_out)
            except KeyboardInterrupt:
                if not self.quiet:
                    complain(f"stopped; continue with the same command: the runs in {self.home} are kept")
                raise

    def _climb(self, possible: Sequence[Candidate], left_out: Sequence[LeftOut]) -> Found:
        plan = self._plan(possible)
        chosen = plan.chosen(possible)
        nobody = Trial(NOBODY, 0.0, [self.cells.cell(NOBODY, 0.0, seed) for seed in range(plan.seeds)])
        trials = [self._trial(one, fraction) for fraction in self.question.fractions for one in chosen]
        short = [(trial.cells[0], plan.pause) for trial in trials]
        self._rung(1, [*((cell, plan.rounds) for cell in nobody.cells), *short], plan)

        reached = [trial for trial in trials if has_reached(trial.cells[0], plan.pause)]
        paused = [trial.tried([value]) for trial in reached if (value := trial.at_pause(plan.pause)) is not None]
        full = _each_group(paused, after_short_runs)
        for trial in full:
            trial.rung = 2
        self._rung(2, [(trial.cells[0], plan.rounds) for trial in full], plan)

        finished = [trial.tried(values) for trial in full if (values := trial.harm)]
        finalists = _each_group(finished, after_full_runs)
        worst = _each_group(finished, lambda group: rank(group)[:FINALISTS])
        varied = [
            Trial(made, trial.fraction, varied=True)
            for trial in worst
            for made in variations(trial.candidate, plan.rounds)
        ]
        last = [*finalists, *varied]
        for trial in last:
            trial.rung = 3
            trial.cells = [self.cells.cell(trial.candidate, trial.fraction, seed) for seed in range(plan.seeds)]
        self._rung(3, [(cell, plan.rounds) for trial in last for cell in trial.cells], plan)
        found = Found(self.question, plan, nobody, [*trials, *varied], left_out, self.failed)
        write_found(found, self.home)
        write_files(found, self.home)
        return found

    def _plan(self, possible: Sequence[Candidate]) -> Plan:
        """The one that was begun here, or all, or what a budget allows."""
        begun = read_plan(self.question, self.home, possible)
        if begun is not None:
            return begun
        plan, budget = self.whole, self.question.budget
        if budget is not None:
            plan = fit(plan, possible, len(self.question.fractions), self._speed(possible), self.jobs, budget)
            self._tell_plan(plan, possible)
        write_plan(self.question, plan, possible, self.home)
        return plan

    def _speed(self, possible: Sequence[Candidate]) -> float:
        """Seconds per round, measured on runs that every plan has."""
        smallest = replace(self.whole, per_kind=1)
        trials = [self._trial(one, self.question.fractions[-1]) for one in smallest.chosen(possible)]
        steps = [(trial.cells[0], self.whole.pause) for trial in trials]
        self._carry_out(steps, f"budget: timing {len(steps)} runs of {self.whole.pause} rounds")
        seconds = [line["seconds"] for cell, _ in steps for line in read_lines(cell.folder.metrics)]
        if not seconds:
            raise UserError(f"--budget: no run could be timed; {next(iter(self.failed.values()), 'none was started')}")
        return sum(seconds) / len(seconds)

    def _tell_plan(self, plan: Plan, possible: Sequence[Candidate]) -> None:
        chosen, seeds = len(plan.chosen(possible)), f"{plan.seeds} seed{'s' * (plan.seeds != 1)}"
        parts = f"{chosen} of {len(possible)} candidates, {seeds}"
        self._say(f"--budget {self.question.budget:g}: {parts if plan.shortened else 'the whole search fits'}")

    def _trial(self, candidate: Candidate, fraction: float) -> Trial:
        return Trial(candidate, fraction, [self.cells.cell(candidate, fraction, 0)])

    def _rung(self, number: int, steps: Sequence[tuple[Cell, int]], plan: Plan) -> None:
        until = f"{plan.pause} rounds" if number == 1 else f"{plan.rounds} rounds"
        what = until if number < RUNGS else f"{until}, {plan.seeds} seed{'s' * (plan.seeds != 1)}"
        self._carry_out(steps, f"rung {number} of {RUNGS}: {len(steps)} runs of {what}")

    def _carry_out(self, steps: Sequence[tuple[Cell, int]], what: str) -> None:
        """Those that have not got there yet."""
        todo = [(cell, until) for cell, until in steps if not has_reached(cell, until)]
        done = len(steps) - len(todo)
        self._say(f"{what}{f', {done} finished before' if done else ''}{self._time_left(todo)}")
        ready = [_until(with_workers(cell, self.engine, self.jobs), until) for cell, until in todo]
        for outcome in Scheduler(ready, len(steps), self._carries, self.quiet).run() if ready else ():
            self.failed.pop(outcome.cell.label, None)
            if outcome.message:
                self.failed[outcome.cell.label] = outcome.message

    def _time_left(self, todo: Sequence[tuple[Cell, int]]) -> str:
        """What this rung will take, going by the rounds that there are so far."""
        lines = [line for path in self.home.glob("*/metrics.jsonl") for line in read_lines(path)]
        if not lines or not todo:
            return ""
        left = sum(until - sum(1 for _ in read_lines(cell.folder.metrics)) for cell, until in todo)
        seconds = START_UP * left * sum(line["seconds"] for line in lines) / len(lines) / self.jobs
        return f"; about {seconds / 60:.0f} min" if seconds >= 90 else f"; about {seconds:.0f} s"

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def _each_group(tried: Iterable[Tried[Trial]], cut: Callable[[list[Tried[Trial]]], list[Tried[Trial]]]) -> list[Trial]:
    """Who goes on, among those with the same aim and the same fraction."""
    groups: dict[tuple[str, float], list[Tried[Trial]]] = {}
    for one in tried:
        groups.setdefault(one.candidate.group, []).append(one)
    return [one.candidate for group in groups.values() for one in cut(group)]


def _until(cell: Cell, until: int) -> Cell:
    """The cell as a run that pauses after this round."""
    stop = until if until < cell.experiment.rounds else 0
    run = cell.experiment.run.model_copy(update={"until": stop})
    return replace(cell, experiment=cell.experiment.model_copy(update={"run": run}))
