"""Policies on disk, and the versions, aliases and lineage that the registry keeps of them."""
