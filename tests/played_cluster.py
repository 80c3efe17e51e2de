"""A Ray cluster played by workers of this process, with a clock that goes on to whoever is done first."""

from __future__ import annotations

from types import SimpleNamespace

from fedwidth.engines.ray.worker import Worker


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Ref:
    """The answer to a call, and when it will be there."""

    def __init__(self, value, at):
        self.value, self.at = value, at


class PlayedCluster:
    """Ray, as the engine uses it: workers in this process, each busy as long as the table of widths says."""

    def __init__(self, seconds, workers):
        self.seconds, self.workers, self.clock = seconds, workers, Clock()
        error = type("Never", (Exception,), {})
        self.ray = SimpleNamespace(
            put=lambda value: value,
            get=lambda ref: ref.value,
            wait=self.wait,
            kill=lambda actor: None,
            exceptions=SimpleNamespace(RayTaskError=error, RayError=error),
        )
        self.check_room = self.close = lambda: None
        self.check_store = lambda size: None
        self.wanted = lambda: workers

    def start(self):
        worker, free = Worker(), [0.0]

        def prepare(*setup):
            return Ref(worker.prepare(*setup), self.clock.now)

        def train(state, work):
            took = sum(self.seconds[capacity] for capacity in work.capacities)
            free[0] = max(free[0], self.clock.now) + took
            answer = worker.train(state, work)
            return Ref(type(answer)(answer.sums, answer.report, took), free[0])

        return SimpleNamespace(prepare=SimpleNamespace(remote=prepare), train=SimpleNamespace(remote=train))

    def wait(self, refs, timeout):
        first = min(refs, key=lambda ref: ref.at)
        self.clock.now = max(self.clock.now, first.at)
        return [first], []
