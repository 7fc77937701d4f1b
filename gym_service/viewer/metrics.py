"""The metrics of a service in the form of Prometheus, read off what it counts anyway when somebody asks."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gym_service import __version__
from gym_service.accounts import Latencies
from gym_service.episodes import Episodes
from gym_service.sandbox.pool import Pool
from gym_service.values import StopReason, VerdictStatus


class GymCollector(Collector):
    """Reads the counts of one service."""

    def __init__(self, episodes: Episodes, pool: Pool) -> None:
        self._episodes = episodes
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Gives everything as it is now."""
        yield InfoMetricFamily("gym", "What serves.", {"version": __version__})
        yield from self._of_episodes()
        yield from self._of_sandboxes()
        yield from self._of_grading()
        errors = self._episodes.accounts.errors
        yield _counts("gym_errors", "Errors that clients were told, by reason.", "reason", errors)

    def _of_episodes(self) -> Iterator[Metric]:
        episodes, accounts = self._episodes, self._episodes.accounts
        yield _gauge("gym_episodes_live", "Episodes that hold a sandbox.", episodes.live)
        yield _gauge("gym_episodes_capacity", "Episodes that can be live at once.", episodes.capacity)
        yield _gauge("gym_episodes_kept", "Ended episodes whose records can be asked for.", episodes.kept)
        yield _gauge(
            "gym_draining", "1 while new episodes are refused before a stop.", int(episodes.draining)
        )
        yield _counts(
            "gym_episodes_created", "Episodes that were opened, by caller.", "caller", accounts.created
        )
        ended = {reason.name: accounts.ended[reason.name] for reason in StopReason}
        yield _counts("gym_episodes_ended", "Episodes that ended, by stop reason.", "stop_reason", ended)
        yield _histogram("gym_turn_seconds", "What turns took, in the service.", accounts.turns)

    def _of_sandboxes(self) -> Iterator[Metric]:
        status = self._pool.status
        yield _gauge("gym_sandboxes_size", "Sandboxes that there can be.", status.size)
        yield _gauge("gym_sandboxes_warm", "Sandboxes that wait for a user.", status.warm)
        yield _gauge("gym_sandboxes_lent", "Sandboxes in use.", status.lent)
        yield _count("gym_sandboxes_started", "Sandboxes that were started.", status.started)
        yield _counts("gym_sandboxes_retired", "Sandboxes thrown away, by reason.", "reason", status.retired)
        takes = {"at_once": status.hits, "after_wait": status.misses}
        yield _counts(
            "gym_sandbox_takes", "Sandboxes that were lent, by whether they were waited for.", "how", takes
        )
        yield _count("gym_sandbox_wait_seconds", "All waits for a sandbox together.", status.waited_seconds)

    def _of_grading(self) -> Iterator[Metric]:
        status = self._episodes.grading
        verdicts = {each.name: status.verdicts.get(each.name, 0) for each in VerdictStatus}
        yield _counts("gym_verdicts", "Verdicts, by status.", "status", verdicts)
        yield _counts("gym_flags", "Submissions with a flag, by flag.", "flag", status.flags)
        yield _histogram(
            "gym_grading_seconds", "What gradings took, waits included.", self._episodes.grader.latencies
        )
        yield _count(
            "gym_grading_retries", "Gradings tried again after a failure of the gym's own.", status.retries
        )
        yield _gauge("gym_grading_alarms", "Tasks whose gradings fail often.", len(status.alarms))
        cache = {"hit": status.cache_hits, "miss": status.cache_misses}
        yield _counts("gym_verdict_cache", "Verdicts that were looked for on record.", "result", cache)


class Metrics:
    """The metrics of one service and of its process, as they are written down."""

    def __init__(self, episodes: Episodes, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(GymCollector(episodes, pool))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self._registry)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value)


def _count(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(name, what, value)


def _counts(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, what, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _histogram(name: str, what: str, latencies: Latencies) -> Metric:
    buckets: Iterable[tuple[float, int]] = latencies.up_to()
    named = [
        ("+Inf" if bound == float("inf") else repr(float(bound)), float(count)) for bound, count in buckets
    ]
    return HistogramMetricFamily(name, what, buckets=named, sum_value=latencies.seconds)
