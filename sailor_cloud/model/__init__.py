"""Values that every part of sailor-cloud shares; nothing here reads or writes anything."""
