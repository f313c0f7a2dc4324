"""Commands on the data behind a plan: prices, quotas, links, profiles, other tools' formats."""
