"""What happens when: rounds, events in virtual time, and the clocks behind them."""
