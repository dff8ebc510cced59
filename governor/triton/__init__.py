"""The only package that speaks HTTP to Triton: lanes, readings, the table of outcomes, the text adapter."""
