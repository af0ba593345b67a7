"""One interface over DeepSpeed: with and without a pipeline, and what is exact in both."""
