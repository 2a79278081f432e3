"""What is fast, measured: each module compares alternatives within one run and prints ratios with intervals."""
