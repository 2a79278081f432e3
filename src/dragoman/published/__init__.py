"""Published data sets: where they are, how they are fetched and checked, and how their formats become the project's and back."""
