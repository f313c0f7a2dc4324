"""What a draft takes in time and money, and which drafts no other beats."""
