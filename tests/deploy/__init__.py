"""What is in deploy/, checked with the tools it is made for."""
