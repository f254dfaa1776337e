"""Processes of a federation: keys, join bundles, the TLS port, SuperLink and SuperNode."""
