"""What every part costs, against what it must cost on this machine.  Run from a checkout: python -m benchmarks."""
