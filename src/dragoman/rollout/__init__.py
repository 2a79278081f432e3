"""From a system and questions to episodes: the tree, the scheduler, the store, and credit."""
