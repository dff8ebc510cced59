"""Evidence against a real Triton: every way in which a broken call's credit comes back, held against the work itself."""
