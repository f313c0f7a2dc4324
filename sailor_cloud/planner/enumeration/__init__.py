"""Small jobs: every plan, in the order of its lower bound."""
