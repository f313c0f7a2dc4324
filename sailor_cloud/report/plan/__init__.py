"""Reports of a plan for the terminal, Markdown and HTML."""
