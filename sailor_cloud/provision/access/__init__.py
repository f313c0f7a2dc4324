"""Access to nodes: instances, addresses, logins, host keys and tunnels."""
