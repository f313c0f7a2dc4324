"""Fakes of external services, for tests of sailor-cloud and of programs that use it: extra `[testing]`."""
