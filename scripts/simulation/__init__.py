"""A discrete-event simulation of the fleet: the gateway's own policies under a clock of its own."""
