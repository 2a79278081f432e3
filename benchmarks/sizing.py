"""How much of everything so many passages and requests need: formulas over what was measured (benchmarks/constants.py).

Each is a small function of numbers. docs/scale.md says where they come from and how far they can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.constants import CODE, DIMENSIONS, Constants

GIB = 2**30
MONTH_S = 30 * 86_400
LUCENE_DOCUMENTS = 2**31 - 129  # IndexWriter.MAX_DOCS: Lucene numbers documents in 32 bits
ID, OFFSET = 8, 8  # bytes FAISS keeps for the number of a vector; bytes the passage store keeps in memory for a row
PROBES = 64  # lists of an IVF index that a query looks into

# DiskANN as published (Subramanya and others, NeurIPS 2019): a billion points on one machine of 16 cores with 64 GB, 5,000
# queries a second. It was not measured here.
DISKANN_MOST, DISKANN_SEARCH_S = 10**9, 16 / 5000
DISKANN_RAM, DISKANN_DEGREE, SECTOR = 64, 64, 4096  # bytes of a point in memory; neighbours of one; bytes of a read


@dataclass(frozen=True)
class Limits:
    """What one machine that holds a part of the index has, and how long a search may take."""

    cores: int = 16
    ram_gib: float = 128.0
    disk_gib: float = 4000.0
    search_ms: float = 200.0
    utilisation: float = 0.7
    """The share of its time that anything is busy. Queues grow without end as it nears 1."""


@dataclass(frozen=True)
class Prices:
    """Dollars a month, but for `hosted_read`, which is for a million reads of a GiB. Round guesses: put your own in their place."""

    core: float = 25.0
    ram_gib: float = 3.0
    disk_gib: float = 0.1
    hosted_gib: float = 0.33
    hosted_read: float = 16.0


@dataclass(frozen=True)
class Kind:
    """One way to index: what `n` passages need on one machine. Bytes, and seconds of a core for a search."""

    name: str
    ram: Callable[[float], float]
    disk: Callable[[float], float]
    search: Callable[[float], float]
    most: float = math.inf
    """The passages that one index can hold, or was ever seen to."""
    build_ram: Callable[[float], float] = lambda n: 0.0
    build_s: Callable[[float], float] = lambda n: 0.0
    query_s: float = 0.0
    """To embed a query: once, however many machines hold the index."""


def kinds(c: Constants) -> dict[str, Kind]:
    """The ways to index that are compared, from what was measured."""

    def store(n: float) -> float:
        return c.store_bytes.at(n)

    def lists(n: float) -> float:
        return 16 * math.sqrt(n)  # FAISS advises 4 to 16 times the root

    def coded(n: float) -> float:
        return n * (CODE + ID) + lists(n) * 4 * DIMENSIONS

    def probed(n: float) -> float:
        # All centroids are compared, then the codes of some lists.
        return lists(n) * c.vector_seconds + min(1.0, PROBES / lists(n)) * n * c.code_seconds

    def sectors(n: float) -> float:
        node = 4 * DIMENSIONS + 4 * (DISKANN_DEGREE + 1)
        return n * SECTOR / max(1, SECTOR // node)

    def embedded(n: float) -> float:
        return n * c.embed_seconds

    return {
        "bm25": Kind(
            "bm25",
            ram=lambda n: c.open_bytes.at_zero + c.lucene_bytes.at(n) + OFFSET * n,
            disk=lambda n: c.lucene_bytes.at(n) + store(n),
            search=c.search_seconds.at,
            most=LUCENE_DOCUMENTS,
            build_ram=c.build_bytes.at,
            build_s=c.build_seconds.at,
        ),
        "flat": Kind(
            "flat",
            ram=lambda n: n * (4 * DIMENSIONS + OFFSET),
            disk=lambda n: n * 4 * DIMENSIONS + store(n),
            search=lambda n: n * c.vector_seconds,
            build_s=embedded,
            query_s=c.query_seconds,
        ),
        "ivf-pq": Kind(
            "ivf-pq",
            ram=lambda n: coded(n) + OFFSET * n,
            disk=lambda n: coded(n) + store(n),
            search=probed,
            build_s=embedded,
            query_s=c.query_seconds,
        ),
        "diskann": Kind(
            "diskann",
            ram=lambda n: n * (DISKANN_RAM + OFFSET),
            disk=lambda n: sectors(n) + store(n),
            search=lambda n: DISKANN_SEARCH_S,
            most=DISKANN_MOST,
            build_s=embedded,
            query_s=c.query_seconds,
        ),
    }


def loads(kind: Kind, n: float, limits: Limits) -> dict[str, float]:
    """What `n` passages on one machine need of each thing, as a share of what it has. A machine searches with all its cores."""
    return {
        "memory of the index": kind.ram(n) / (limits.ram_gib * GIB),
        "memory to build it": kind.build_ram(n) / (limits.ram_gib * GIB),
        "disk": kind.disk(n) / (limits.disk_gib * GIB),
        "time of a search": kind.search(n) / limits.cores / (limits.search_ms / 1000),
        "size of one index": n / kind.most,
    }


def shard_size(kind: Kind, passages: int, limits: Limits) -> int:
    """The most passages, up to all of them, that one machine holds within its limits; 1 where even that is too much."""
    fits, too_many = 1, passages + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if max(loads(kind, middle, limits).values()) <= 1:
            fits = middle
        else:
            too_many = middle
    return fits


def servers(rate: float, seconds: float, utilisation: float) -> int:
    """How many are needed for `rate` requests a second that keep one busy for `seconds` each (Little's law), at least one."""
    return max(1, math.ceil(round(rate * seconds / utilisation, 9)))  # 100 * 0.14 / 0.7 is a little more than 20


@dataclass(frozen=True)
class Plan:
    """For an index of one kind: machines, GiB over all of them, dollars a month. What would be too much for one machine first."""

    kind: str
    passages: int
    rps: float
    shards: int
    replicas: int
    ram_gib: float
    disk_gib: float
    proxies: int
    llms: int
    index_month: float
    month: float
    build_core_days: float
    breaks_first: str


def plan(
    kind: Kind, passages: int, rps: float, c: Constants, limits: Limits, prices: Prices, llm: tuple[float, float]
) -> Plan:
    """How to serve so much. `llm` is what one replica of the LLM takes for a question in seconds, and costs in dollars a month."""
    size = shard_size(kind, passages, limits)
    shards = math.ceil(passages / size)
    searches = rps * c.asked.searches
    replicas = servers(searches, kind.search(size) / limits.cores, limits.utilisation)
    embedders = servers(searches, kind.query_s, limits.utilisation) if kind.query_s else 0  # cores
    index = shards * replicas * month_of(limits, prices) + embedders * prices.core
    proxies, llms, answers = answering(rps, c, limits, prices, llm)
    needs = loads(kind, passages, limits) | {
        "searches": searches * kind.search(passages) / limits.cores / limits.utilisation,
        "proxy": rps * c.asked.proxy_seconds / limits.utilisation,
        "LLM": rps * llm[0] / limits.utilisation,
    }
    first = max(needs, key=lambda name: needs[name])
    return Plan(
        kind=kind.name,
        passages=passages,
        rps=rps,
        shards=shards,
        replicas=replicas,
        ram_gib=shards * replicas * kind.ram(size) / GIB,
        disk_gib=shards * replicas * kind.disk(size) / GIB,
        proxies=proxies,
        llms=llms,
        index_month=index,
        month=index + answers,
        build_core_days=shards * kind.build_s(size) / 86_400,
        breaks_first=f"{first} ({needs[first]:,.0f} x)" if needs[first] >= 10 else f"{first} ({needs[first]:.2g} x)",
    )


def hosted(passages: int, rps: float, c: Constants, limits: Limits, prices: Prices, llm: tuple[float, float]) -> Plan:
    """The same, where somebody else keeps vectors and passages, and is paid by size and by what a search reads.

    A search reads a share for each GiB that is stored, and a quarter at least, as Pinecone counts it
    (docs.pinecone.io/guides/organizations/manage-cost/understanding-cost).
    """
    stored = (passages * 4 * DIMENSIONS + c.store_bytes.at(passages)) / GIB
    searches = rps * c.asked.searches
    embedders = servers(searches, c.query_seconds, limits.utilisation)
    reads = searches * MONTH_S * max(0.25, stored)
    index = stored * prices.hosted_gib + reads / 1e6 * prices.hosted_read + embedders * prices.core
    proxies, llms, answers = answering(rps, c, limits, prices, llm)
    days = passages * c.embed_seconds / 86_400
    return Plan("hosted", passages, rps, 0, 0, 0, stored, proxies, llms, index, index + answers, days, "its bill")


def answering(
    rps: float, c: Constants, limits: Limits, prices: Prices, llm: tuple[float, float]
) -> tuple[int, int, float]:
    """Replicas of the proxy and of the LLM, and what both cost a month. A replica of the proxy is a machine as was measured."""
    proxies = servers(rps, c.asked.proxy_seconds, limits.utilisation)
    llms = servers(rps, llm[0], limits.utilisation)
    return proxies, llms, proxies * c.cores * prices.core + llms * llm[1]


def month_of(limits: Limits, prices: Prices) -> float:
    """What a machine of the index costs a month, in dollars."""
    return limits.cores * prices.core + limits.ram_gib * prices.ram_gib + limits.disk_gib * prices.disk_gib
