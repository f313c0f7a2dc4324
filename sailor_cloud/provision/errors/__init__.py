"""The meaning of the providers' errors, and the number of retries."""
