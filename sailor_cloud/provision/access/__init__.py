"""How nodes are reached: instances, addresses, logins, host keys and tunnels."""
