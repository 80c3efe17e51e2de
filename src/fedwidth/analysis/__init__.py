"""What runs and methods come to: coverage of weights, differences with intervals, yardsticks, targets."""
