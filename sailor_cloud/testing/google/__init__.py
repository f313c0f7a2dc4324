"""What Google Cloud answers, from stand-ins: Compute Engine, data services, prices."""
