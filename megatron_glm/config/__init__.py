"""Configuration: one frozen schema, loaded from YAML with dotted overrides."""
