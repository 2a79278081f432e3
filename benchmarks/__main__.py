"""`make bench`, after `make pipeline`: engines, retrievers, scheduler, inference, endpoint, capacity, `harvest` and `drift`."""

import benchmarks.capacity
import benchmarks.drift
import benchmarks.engines
import benchmarks.harvest
import benchmarks.inference
import benchmarks.retrievers
import benchmarks.scheduler
import benchmarks.serving

benchmarks.engines.main([])
benchmarks.retrievers.main([])
benchmarks.scheduler.main([])
benchmarks.scheduler.main(["--tree", "--questions", "4"])
benchmarks.inference.main([])
benchmarks.serving.main([])
benchmarks.capacity.main(["measure"])
benchmarks.harvest.main([])
benchmarks.drift.main([])
