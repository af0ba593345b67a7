"""What a run tells: banner, console, metrics, plots."""
