"""`make bench`: all of them, after `make pipeline`."""

from benchmarks import engines, retrievers, scheduler

for benchmark in (engines, retrievers, scheduler):
    benchmark.main([])
