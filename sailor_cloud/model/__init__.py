"""Values that all parts of sailor-cloud share; nothing here does input or output."""
