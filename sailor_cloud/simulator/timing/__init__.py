"""The seconds of an iteration: closed form, replay, all-reduces, and their errors."""
