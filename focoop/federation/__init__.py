"""Federation on one machine: the local loop, the round and the in-process simulator."""
