"""Where keyed state lives: key groups, rows and their encodings, timers, and the local store behind them."""
