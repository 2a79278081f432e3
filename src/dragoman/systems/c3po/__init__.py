"""C-3PO (Guo et al. 2025, arXiv 2502.06205)."""

from dragoman.systems.c3po.ablations import ABLATIONS as ABLATIONS
from dragoman.systems.c3po.system import C3PO

SYSTEM = C3PO
