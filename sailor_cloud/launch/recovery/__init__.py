"""Carries out decisions: gets nodes, falls back to other plans, grows again, avoids slow links."""
