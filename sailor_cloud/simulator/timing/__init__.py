"""The seconds of an iteration: closed form, replay, all-reduces, and how far off they may be."""
