"""The local stand-in for a VM: an SSH server process on its own loopback address with its own folder."""
