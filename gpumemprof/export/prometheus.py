"""The agent's metrics in Prometheus' formats, read from its view at each scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpumemprof.errors import GpumemprofError
from gpumemprof.export import metric_labels
from gpumemprof.export.metric_cap import MemoryCap, ToldMemory
from gpumemprof.export.metrics import MEMORY_METRICS, METRICS, Metric, Scrape
from gpumemprof.export.model import AgentView, PushStatus

MAX_SERIES = 12_000
"""Series of memory that one agent tells at most, unless told otherwise: 2,000 label sets."""

PROCESS_PREFIX = "gpumemprof_agent"
PROCESS_METRICS = tuple(
    f"{PROCESS_PREFIX}_process_{name}"
    for name in (
        "cpu_seconds_total",
        "max_fds",
        "open_fds",
        "resident_memory_bytes",
        "start_time_seconds",
        "virtual_memory_bytes",
    )
)
"""What prometheus_client tells of the agent's own process."""


class AgentCollector(Collector):
    """Makes the metric families of one scrape from ``view()`` and ``push()``.

    Both are called once a scrape, in the thread of the scrape. ``view`` may raise GpumemprofError
    when the agent has no time: then its health is told as it was, with its time, and no memory: the
    namespace may have been switched off meanwhile. ``push``: None where nothing is pushed.
    ``max_series``: of memory; failed allocations have at most a sixth as many besides.
    """

    def __init__(
        self,
        view: Callable[[], AgentView],
        push: Callable[[], PushStatus | None] = lambda: None,
        *,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._view = view
        self._push = push
        self._cap = MemoryCap(max(1, max_series // len(MEMORY_METRICS)))
        self._process = ProcessCollector(namespace=PROCESS_PREFIX, registry=None)
        self._lock = threading.Lock()  # two Prometheus servers may scrape at once
        self._last: AgentView | None = None

    def collect(self) -> Iterator[Family]:
        """The families, in the order of the table. Raises what ``view`` raises, at first."""
        view, told = self._now()
        scrape = Scrape(view, told, self._push())
        node = metric_labels.value(view.node)
        for metric in METRICS:
            family = _family(metric, scrape, node)
            if family.samples:
                yield family
        for family in self._process.collect():
            for sample in family.samples:
                sample.labels["node"] = node
            yield family

    def _now(self) -> tuple[AgentView, ToldMemory]:
        try:
            view = self._view()
        except GpumemprofError:
            if self._last is None:
                raise
            return self._last, ToldMemory({}, {}, 0, 0, 0)
        with self._lock:
            self._last = view
            return view, self._cap.told(view)


def _family(metric: Metric, scrape: Scrape, node: str) -> Family:
    # The suffix is the sample's; the family is named without it.
    bare = metric.name.removesuffix("_total").removesuffix("_info")
    family = Family(bare, metric.help, metric.type)
    own = {} if "node" in metric.labels else {"node": node}
    for labels, number in metric.samples(scrape):
        family.add_sample(
            metric.name, {**dict(zip(metric.labels, labels, strict=True)), **own}, number
        )
    return family


class Exposition:
    """What ``/metrics`` answers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def __call__(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type: OpenMetrics where the header ``Accept`` asks for it, the
        plain text format otherwise."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._collector), content_type
