"""What the benchmarks share: the cases, the implementations, their timing and the tables."""
