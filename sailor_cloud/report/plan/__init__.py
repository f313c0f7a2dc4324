"""What a plan is, for the terminal, Markdown and HTML."""
