"""What gateway, worker and clusterctl agree on: messages, errors, states, configuration."""

__version__ = "0.1.0"
