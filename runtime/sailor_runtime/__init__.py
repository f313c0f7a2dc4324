"""The code on nodes: the spec, the agent and the training ranks. Never imports sailor_cloud."""
