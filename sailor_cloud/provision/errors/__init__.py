"""What the providers' errors mean, and how often a request is repeated."""
