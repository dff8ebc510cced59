"""Evidence against a real Triton: how a broken call's credit comes back, held against the work itself."""
