"""The servers and the adapter behind them."""
