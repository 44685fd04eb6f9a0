"""The faults. Each is a function of the stage: it breaks something, repairs it if need be, and says what it did."""
