"""Fakes of what sailor-cloud talks to, for tests of it and of programs that use it: extra `[testing]`."""
