"""When a probe is due beside users' own traffic: seen on a real vLLM, see docs/verified.md."""

from __future__ import annotations

from tailkeeper_exporter.evidence import Answer, Evidence, Memory, PageSeen, ProbeSeen, Work
from tailkeeper_exporter.liveness import Liveness, LivenessSettings, step
from tailkeeper_exporter.probe_plan import ProbeTiming, plan_probe
from tailkeeper_exporter.state import State

SETTINGS = LivenessSettings(probe_interval_s=2)
TIMING = ProbeTiming(interval_s=2)


class Engine:
    """A busy engine: 8 requests in flight; ``live`` moves tokens and answers due probes as told."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.tokens = 0.0
        self.asked = 0

    def page(self, now: float, moving: bool) -> Liveness:
        self.tokens += 100 if moving else 0
        work = Work(8.0, 0.0, 0.5, (("tokens", self.tokens),))
        self.memory, liveness = step(self.memory, Evidence(page=PageSeen(Answer.OK, now - 0.01, work=work)), now, SETTINGS)
        return liveness

    def probe(self, answer: Answer, sent: float, now: float) -> None:
        self.memory, _ = step(self.memory, Evidence(probe=ProbeSeen(answer, sent)), now, SETTINGS)

    def live(self, start: int, end: int, answer: Answer) -> Liveness:
        for second in range(start, end):
            liveness = self.page(float(second), moving=True)
            if plan_probe(self.memory, float(second), TIMING).due_s <= second:
                self.asked += 1
                self.probe(answer, second + 0.1, second + 0.3)
        return liveness


def frozen_and_thawed() -> Engine:
    engine = Engine()
    engine.probe(Answer.OK, 0.0, 0.1)
    engine.live(1, 8, Answer.OK)
    for second in range(8, 20):
        engine.page(float(second), moving=False)
    engine.probe(Answer.SILENT, 10.0, 11.2)
    engine.probe(Answer.SILENT, 12.2, 18.0)
    engine.probe(Answer.LATE, 19.0, 38.0)
    return engine


def test_a_late_answer_at_the_thaw_is_asked_about_again_though_traffic_moves() -> None:
    engine = frozen_and_thawed()
    assert engine.page(39.0, moving=True).state is State.BUSY
    assert engine.live(40, 50, Answer.OK).state is State.SERVING


def test_a_probe_that_waits_in_a_full_queue_is_not_repeated_more_often_than_its_interval() -> None:
    engine = Engine()
    engine.probe(Answer.OK, 0.0, 0.1)
    engine.live(1, 8, Answer.OK)
    engine.probe(Answer.SILENT, 8.0, 9.2)
    engine.asked = 0
    engine.live(10, 40, Answer.SILENT)
    assert engine.asked <= 30 / TIMING.interval_s


def test_no_probe_is_due_while_traffic_proves_life_and_the_last_answer_was_good() -> None:
    engine = Engine()
    engine.probe(Answer.OK, 0.0, 0.1)
    engine.live(1, 60, Answer.OK)
    assert engine.asked == 0
