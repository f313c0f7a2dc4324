"""Files that people edit or programs read: job templates and JSON Schemas."""
