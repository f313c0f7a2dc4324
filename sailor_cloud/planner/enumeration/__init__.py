"""Small jobs: all plans in the order of their lower bounds."""
