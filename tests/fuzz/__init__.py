"""The HTTP surface under requests that a machine made up from the OpenAPI document."""
