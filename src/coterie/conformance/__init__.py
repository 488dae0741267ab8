"""What every method must do, as checks that anybody can run on theirs."""
