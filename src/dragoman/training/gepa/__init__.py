"""Rewrites the instructions of a system's roles and trains no weights: GEPA (Agrawal et al. 2025, arXiv 2507.19457)."""
