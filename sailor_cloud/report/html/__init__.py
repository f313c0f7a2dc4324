"""The HTML report: one file, no network, charts by the bundled ECharts."""
