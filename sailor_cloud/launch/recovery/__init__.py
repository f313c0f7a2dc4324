"""Carries out what was decided: gets nodes, falls back to other plans, grows again, leaves slow links."""
