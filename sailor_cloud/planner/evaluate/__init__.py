"""What a draft takes in time and money, and which drafts are on the Pareto frontier."""
