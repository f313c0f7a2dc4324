"""The HTML report: one file, no network, charts as inline SVG."""
