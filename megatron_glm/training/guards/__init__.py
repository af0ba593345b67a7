"""What watches a run from within: values that are not finite, spikes, slow ranks, no progress."""
